import json
import os

import pytest

from pipeline.features.overview.overview import read_run, write_overview
from pipeline.report.events import Event, write_run
from pipeline.report.failures import describe_failed
from pipeline.report.render import read_report, write_reports
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace
from tests.support import builds

T = 1_700_000_000.0


def span(end=1.0, **more):
    times = {"start": T, "seconds": end}
    return Event("compile", "pack", "run", "model", "built", worker=7, **times, **more)


def workspace(tmp_path):
    made = Workspace(tmp_path, Store(tmp_path / "store"), 1)
    made.build.mkdir()
    return made


def test_the_record_of_a_run_has_an_action_a_line(tmp_path):
    space = workspace(tmp_path)
    assert read_run(space) == []
    tricky = '}, {"kind": "link'
    write_run(space, [span(end=1.23456, stages=[("lower", 0, 1)]), span(error=tricky)], {})
    assert len((space.build / "run.json").read_text().splitlines()) == 4
    action, other = read_run(space)
    assert other["error"] == tricky
    assert (action["kind"], action["method"], action["seconds"]) == ("compile", "run", 1.235)
    assert not {"stages", "start", "worker"} & action.keys()


# The reports over all packages


REPORT = {
    "package": "pack",
    "ok": True,
    "verdict": "passed",
    "failures": [],
    "settings": {"atol": 0.1, "rtol": 0.0, "inputs": 1, "seed": 0, "steps": 1},
    "methods": [],
    "files": {"model.pte": "abc"},
}


def put(space, package, name, record):
    folder = space.package(package)
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(record))


def run(space, *actions):
    record = {"actions": [{"reason": "", "error": "", "method": None, **a} for a in actions]}
    (space.build / "run.json").write_text(json.dumps(record))


def summary(space, *packages):
    write_overview(space, packages)
    return (space.build / "summary.md").read_text()


def test_an_overview_of_what_is_in_build(tmp_path):
    space = workspace(tmp_path)
    put(space, "pack", "report.json", REPORT)
    assert "1 package: 1 passed" in summary(space, "pack")
    assert {"index.html", "junit.xml"} <= {path.name for path in space.build.iterdir()}


def test_a_report_of_another_build_of_the_package_is_none(tmp_path):
    space = workspace(tmp_path)
    put(space, "pack", "report.json", REPORT)
    manifest = builds.manifest(files={"model.pte": {"digest": "f" * 64, "size": 1}})
    put(space, "pack", "manifest.json", manifest)
    assert read_report(space, "pack") is None
    assert "1 package: 1 not validated" in summary(space, "pack")
    manifest["files"]["model.pte"]["digest"] = "abc"
    put(space, "pack", "manifest.json", manifest)
    assert "1 package: 1 passed" in summary(space, "pack")


def test_a_package_that_the_last_run_could_not_build_has_failed_whatever_was_before(tmp_path):
    space = workspace(tmp_path)
    put(space, "pack", "report.json", REPORT)
    run(
        space,
        {"kind": "compile", "package": "pack", "method": "f", "outcome": "failed", "error": "ow"},
        {"kind": "link", "package": "pack", "outcome": "not-run", "reason": "compile failed"},
    )
    text = summary(space, "pack", "other")
    assert text.startswith("# FAILED: 2 packages: 1 not built, 1 not validated")
    assert "compile f: ow" in text


def test_a_package_whose_model_could_not_be_exported_says_so(tmp_path):
    space = workspace(tmp_path)
    failed = {"kind": "export", "package": None, "outcome": "failed", "error": "boom"}
    unrun = {"kind": "link", "package": "pack", "outcome": "not-run", "reason": "export:m failed"}
    run(space, failed, unrun)
    assert "export:m failed" in summary(space, "pack")


def test_a_package_that_failed_validation_is_described_by_its_report(tmp_path):
    space = workspace(tmp_path)
    report = {**REPORT, "ok": False, "verdict": "failed", "failures": ["too large"]}
    put(space, "pack", "report.json", report)
    failed = {"kind": "validate", "package": "pack", "outcome": "failed"}
    link = {"kind": "link", "package": "pack", "outcome": "built"}
    run(space, link, {**failed, "error": f"{describe_failed(report, 'pack')}\n  a culprit"})
    text = summary(space, "pack")
    assert "1 package: 1 failed" in text and "- too large" in text and "killed" not in text


@pytest.mark.parametrize("report", [REPORT, {**REPORT, "failures": ["too large"]}, None])
def test_a_validation_that_failed_without_a_report_is_not_described_by_an_earlier_one(
    tmp_path, report
):
    space = workspace(tmp_path)
    if report:
        put(space, "pack", "report.json", report)
    failed = {"kind": "validate", "package": "pack", "outcome": "failed"}
    run(space, {**failed, "error": "its process was killed"})
    text = summary(space, "pack")
    assert text.startswith("# FAILED: 1 package: 1 failed")
    assert "its process was killed" in text and "too large" not in text
    cases = (space.build / "junit.xml").read_text()
    assert 'failures="1"' in cases and 'name="validated"' in cases
    if report:  # its own reports don't say that it passed, either
        assert read_report(space, "pack")["verdict"] == "failed"
        pages = [(space.package("pack") / name).read_text() for name in ("junit.xml", "report.md")]
        assert all("its process was killed" in page for page in pages)
        assert 'failures="1"' in pages[0] and "# pack: FAILED" in pages[1]


def test_a_report_that_is_newer_than_the_last_run_is_kept(tmp_path):
    """`doit sensitivity` validates a package, too, but isn't recorded as a run."""
    space = workspace(tmp_path)
    failed = {"kind": "validate", "package": "pack", "outcome": "failed"}
    run(space, {**failed, "error": "its process was killed"})
    put(space, "pack", "report.json", REPORT)
    newer = (space.build / "run.json").stat().st_mtime_ns + 1
    os.utime(space.package("pack") / "report.json", ns=(newer, newer))
    summary(space, "pack")
    assert read_report(space, "pack")["verdict"] == "passed"


def test_a_report_with_invisible_characters_is_that_of_the_last_run(tmp_path):
    space = workspace(tmp_path)
    report = {**REPORT, "ok": False, "verdict": "failed", "failures": ["too\tlarge"]}
    put(space, "pack", "report.json", report)
    failed = {"kind": "validate", "package": "pack", "outcome": "failed"}
    run(space, {**failed, "error": str(PipelineError(describe_failed(report, "pack")))})
    summary(space, "pack")
    assert read_report(space, "pack")["failures"] == ["too\tlarge"]


def test_rendering_again_leaves_the_recorded_files_current(tmp_path):
    """Otherwise the next run would think that they had been edited."""
    from pipeline.store.digest import hash_file

    space = workspace(tmp_path)
    put(space, "pack", "report.json", REPORT)
    (space.build / ".state").mkdir()
    recorded = {"report.md": "0" * 64, "x": "1" * 64}
    space.write_state("pack", {"validate": {"action": "2" * 64, "files": recorded}})
    written = write_reports(space, "pack")
    assert {path.name for path in written} == {
        "report.md",
        "report.html",
        "modules.html",
        "junit.xml",
    }
    kept = space.state("pack")["validate"]["files"]
    assert kept == {"report.md": hash_file(space.package("pack") / "report.md"), "x": "1" * 64}


def test_damaged_records_are_none(tmp_path):
    space = workspace(tmp_path)
    for damage in ("", "[]", "{}", "{"):
        folder = space.package("pack")
        folder.mkdir(exist_ok=True)
        (folder / "report.json").write_text(damage)
        assert read_report(space, "pack") is None
        assert write_reports(space, "pack") == []
