"""The page for all packages: what didn't run, what changed, sums, and provenance."""

import copy
import subprocess

import pytest

from pipeline.features.gates import section as section_of_gates
from pipeline.features.overview.overview import _build_error
from pipeline.features.pages import heads, overview
from pipeline.features.pages.markdown import markdown
from pipeline.features.pages.provenance import find_provenance
from pipeline.report.formatting import short
from pipeline.report.packages import Entry
from pipeline.report.render import render_all
from pipeline.store.workspace import open_workspace
from tests.support import golden

ENTRIES = golden.entries()


def rows(section, table=0):
    (part, *_) = [each for each in section.parts if not isinstance(each, str)][table:]
    texts = [[cell.text for cell in row] for row in part.cells]
    return [dict(zip(part.columns, row, strict=True)) for row in texts]


def test_what_did_not_run_has_its_reason():
    assert rows(overview.not_run_section(ENTRIES)) == [
        {"package": "add_sub", "methods": "add", "why": "add_sub: no <device> & nothing | else"},
        {"package": "wav2vec", "methods": "all", "why": "not validated yet"},
    ]


def test_methods_with_one_reason_stand_in_one_row():
    report = copy.deepcopy(golden.records()["add_sub"])
    report["methods"] = [{**report["methods"][0], "method": f"m{n}"} for n in range(6)]
    for method in report["methods"]:
        method["not_run"] = "no device"
    (row,) = rows(overview.not_run_section([Entry("six", report)]))
    assert row["methods"] == "m0, m1, m2, m3 and 2 more"


def test_changes_are_those_of_all_packages_the_worse_ones_first():
    report = copy.deepcopy(golden.records()["seq2seq-int8"])
    smaller = copy.deepcopy(report) | {"package": "smaller"}
    smaller["baseline"]["size"] *= 2
    section = section_of_gates.changes_section([Entry("smaller", smaller), Entry("larger", report)])
    found = [(row["package"], row["figure"], row["change"][0]) for row in rows(section)]
    assert found[-1] == ("smaller", "size", "−") and len(found) == 6
    assert ("larger", "size", "+") in found[:-1]


def test_equal_builds_say_so_and_those_without_a_baseline_nothing():
    report = copy.deepcopy(golden.records()["seq2seq-int8"])
    report["baseline"] = {"size": report["contents"]["size"], "methods": {}}
    (said,) = section_of_gates.changes_section([Entry("equal", report)]).parts
    assert said == "No figure of 1 package with a baseline changed."
    assert (
        section_of_gates.changes_section([Entry("bare", {**report, "baseline": None})]).parts == []
    )


def test_nodes_of_backends_and_kernels_sum_up_to_all_nodes():
    found = rows(overview.sums_section(ENTRIES))
    assert {row["runs on"] for row in found} == {"XnnpackBackend", "portable kernels"}
    counts = [c for e in ENTRIES if e.report for c in (e.report.get("delegation") or {}).values()]
    nodes = sum(each["nodes"] for each in counts)
    assert sum(int(row["nodes"].replace(",", "")) for row in found) == nodes


def test_targets_have_their_outcomes():
    targets = {row["target"]: row for row in rows(overview.sums_section(ENTRIES), table=1)}
    own = targets["android-arm64"]
    assert (own["packages"], own["passed"], own["failed"], own["others"]) == ("2", "1", "1", "0")


@pytest.mark.parametrize("scale", [1, 40])
def test_the_report_of_a_package_is_a_comment_of_a_pull_request(scale):
    """GitHub accepts 65,536 characters; the verdict, the changes and the failures aren't folded."""
    report = copy.deepcopy(golden.records()["seq2seq-int8"])
    methods = report["methods"]
    report["methods"] = [
        {**method, "method": f"{method['method']}_{n}"} for n in range(scale) for method in methods
    ]
    report["delegation"] = {
        f"{name}_{n}": counts for n in range(scale) for name, counts in report["delegation"].items()
    }
    text = markdown(report)
    assert len(text) < 65_536
    head = text.partition("<details>")[0]
    assert [line for line in head.splitlines() if line.startswith("#")] == [
        "# seq2seq-int8: FAILED",
        "### Changed",
        "### Failures",
        "### Where it goes wrong",
    ]
    assert text.count("<details>") == text.count("</details>") > 1
    assert ("Left out here, see report.html: " in text) == (scale > 1)


def test_provenance_is_on_the_page_over_all_packages_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PTE_PIPELINE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as in a git hook
    (tmp_path / "a.txt").write_text("1")
    for words in (
        ["init", "-q"],
        ["add", "a.txt"],
        ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "one"],
    ):
        command = ["git", "-C", str(tmp_path), *words]
        subprocess.run(command, check=True, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
    workspace = open_workspace(tmp_path)
    found = find_provenance(workspace, [])
    assert len(found["revision"]) == 12 and "CPUs" in found["host"] and "UTC" in found["date"]
    (tmp_path / "a.txt").write_text("2")
    assert find_provenance(workspace, [])["revision"] == f"{found['revision']}, with changes"
    files = render_all(ENTRIES, None, found)
    for name in ("index.html", "summary.md"):
        assert found["revision"] in files[name].decode() and found["date"] in files[name].decode()


@pytest.mark.parametrize(
    ("value", "text"), [(1e-5, "1e−5"), (0.15, "0.15"), (30.0, "30"), (2.5e10, "2.5e10")]
)
def test_limits_are_written_as_figures_are(value, text):
    assert short(value) == text


def test_a_package_whose_export_failed_has_its_reason():
    export = {"kind": "export", "package": None, "method": None, "outcome": "failed", "model": "m"}
    waiting = {"package": "p", "outcome": "not-run", "model": "m", "error": ""}
    actions = [
        {**export, "error": "models/m.py:3: `import x`: no x", "reason": ""},
        {**export, "error": "another's", "reason": "", "model": "n"},
        {**waiting, "kind": "compile", "method": "forward", "reason": "export:m failed"},
        {**waiting, "kind": "link", "method": None, "reason": "compile:p/forward failed"},
    ]
    assert _build_error("p", actions) == "export m: models/m.py:3: `import x`: no x"


def test_weights_that_packages_share_count_once_in_a_target():
    """Three packages of 0.1 kB each with one `.ptd` of 100 kB are 100.3 kB, not 300.3 kB."""
    entries = []
    for number in range(3):
        name = f"asr-{number}"
        files = {f"{name}.pte": f"{number:064x}", "asr.ptd": "d" * 64}
        sizes = {f"{name}.pte": 100, "asr.ptd": 100_000}
        report = {**golden.records()["vision"], "package": name, "files": files, "sizes": sizes}
        entries.append(Entry(name, report))
    (target,) = rows(overview.sums_section(entries), table=1)
    assert target["size"] == "100.3 kB"


def test_a_gate_that_is_not_met_is_named_beside_the_count():
    (report,) = (entry.report for entry in ENTRIES if entry.package == "seq2seq-int8")
    (row,) = heads.table([Entry("seq2seq-int8", report)]).rows
    assert row["gates"].note == (
        "min_delegated_nodes of decode, max_size_growth, max_sqnr_drop of decode, 1 not checked"
    )
