"""What a user does, tested from outside with the real ExecuTorch."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.support.events import read_events
from tests.support.patches import PREPROCESS, patched

ALL = {
    "export pair",
    "compile pair/encode",
    "compile pair/decode",
    "link pair",
    "validate pair",
}


def test_first_run_builds_everything(built):
    assert built.outcomes() == dict.fromkeys(ALL, "built")
    files = {path.name for path in (built.root / "build" / "pair").iterdir()}
    names = (
        "contents.json",
        "contract.json",
        "selected_operators.yaml",
        "manifest.json",
        "report.json",
        "report.md",
        "report.html",
        "modules.html",
        "junit.xml",
    )
    assert files == {"pair.pte", *names}
    assert (
        "pair" in built.output and "encode" in built.output and "5 actions: 5 built" in built.output
    )


def test_run_json_has_the_documented_fields(built):
    fields = {"kind", "package", "method", "outcome", "reason", "seconds", "peak_bytes"}
    for action in built.actions():
        assert fields <= action.keys()
        assert action["seconds"] > 0 and action["peak_bytes"] > 1 << 20 and action["reason"]
    assert {a["method"] for a in built.actions()} == {None, "encode", "decode"}


def test_the_event_stream_tells_what_runs_did(built):
    build = built.root / "build"
    first, *lines, last = read_events(build)
    assert (first["event"], last["event"]) == ("run-started", "run-ended")
    actions = {(e["kind"], e["method"]) for e in lines}
    for event in ("action-queued", "action-ended"):
        assert {(e["kind"], e["method"]) for e in lines if e["event"] == event} == actions
    assert len(actions) == 5 and last["outcomes"] == {"built": 5}
    recorded = json.loads((build / "run.json").read_text())["actions"]
    ended = [line for line in lines if line["event"] == "action-ended"]
    assert [{name: line[name] for name in recorded[0]} for line in ended] == recorded
    spent = {kind: use["spent"] for kind, use in last["caches"]["kinds"].items()}
    assert built.doit() == 0
    assert [e["event"] for e in read_events(build)] == ["run-started", "run-ended"]
    assert read_events(build)[-1]["outcomes"] == {"up-to-date": 4}
    shutil.rmtree(build)
    assert built.doit() == 0
    assert built.output.endswith("report: build/index.html\n")
    *_, link, validate, last = read_events(build)
    assert (link["kind"], link["outcome"], validate["outcome"]) == ("link", "hit", "hit")
    kinds = last["caches"]["kinds"]
    assert {kind: use["hits"] for kind, use in kinds.items()} == {
        "compile": 2,
        "link": 1,
        "validate": 1,
    }
    assert kinds["compile"]["saved"] == pytest.approx(spent["compile"], rel=0.5)
    page = (build / "index.html").read_text()
    assert "Reused instead of rebuilt" in page and "All runs with this store" in page


def test_second_run_does_nothing(built):
    before = built.bytes_of("pair", "pair.pte")
    stat = (built.root / "build" / "pair" / "pair.pte").stat()
    assert built.doit() == 0
    assert set(built.outcomes().values()) == {"up-to-date"}
    assert built.output == "up to date: 1 package\n"
    assert built.bytes_of("pair", "pair.pte") == before
    assert (built.root / "build" / "pair" / "pair.pte").stat().st_mtime_ns == stat.st_mtime_ns


def never_exported(bench):
    """Add a package of a model that has never been exported."""
    for name in ("models/pair.py", "partition_configs/pair.yaml"):
        text = (bench.root / name).read_text().replace("model: pair", "model: other")
        (bench.root / name.replace("pair.", "other.")).write_text(text)
    bench.settle()
    assert bench.doit("list") == 0  # remembers what it found


@pytest.mark.parametrize(
    "command", [["list", "--all"], ["info", "lower:pair"], ["validate:pair"]], ids=" ".join
)
def test_torch_is_not_imported_when_nothing_is_to_be_done(built, command):
    built.settle()
    assert built.doit() == 0  # a copy has other inodes, so files are read once
    never_exported(built)
    code = (
        "import sys, os; sys.argv = ['doit', *sys.argv[1:]]\n"
        "from doit.doit_cmd import DoitMain\n"
        "assert DoitMain().run(sys.argv[1:]) == 0\n"
        "heavy = {'torch', 'executorch', 'joblib', 'rich', 'numpy', 'pydantic', 'yaml', 'fsspec'}\n"
        "heavy |= {'pipeline.config.parser', 'pipeline.features.explain.plan'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        cwd=built.root,
        env=built.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_one_changed_method_compiles_alone(built):
    built.edit("models/pair.py", "- 1.0", "- 2.0")
    assert built.doit() == 0
    assert built.outcomes() == {
        **dict.fromkeys(ALL, "built"),
        "compile pair/encode": "up-to-date",
        "link pair": "refit",  # its objects have the same sizes as before
    }


def test_change_that_changes_no_program_compiles_nothing(built):
    before = built.bytes_of("pair", "pair.pte")
    built.edit("models/pair.py", '"""Two methods', '"""\n\nTwo methods')
    assert built.doit() == 0
    # The lines named in the report have moved.
    again = {"export pair": "built", "validate pair": "built"}
    assert built.outcomes() == {**dict.fromkeys(ALL, "up-to-date"), **again}
    assert built.bytes_of("pair", "pair.pte") == before


@pytest.mark.slow
def test_what_an_exporter_imports_is_its_input(built):
    built.edit("models/_parts.py", "8", "4")
    built.edit("partition_configs/pair.yaml", "get_size: 8", "get_size: 4")
    assert built.doit() == 0
    assert set(built.outcomes().values()) == {"built"}
    manifest = json.loads(built.bytes_of("pair", "manifest.json"))
    assert manifest["constant_methods"] == {"get_size": 4}


def test_changed_config_of_a_method_compiles_it_alone(built):
    built.edit("partition_configs/pair.yaml", "[xnnpack]", "[xnnpack: {per_op_mode: true}]")
    assert built.doit("info", "lower:pair") == 1
    assert "decode: " in built.output and "per_op_mode: False -> True" in built.output
    assert built.doit() == 0
    assert built.outcomes() == {
        "export pair": "up-to-date",
        "compile pair/encode": "up-to-date",
        "compile pair/decode": "built",
        "link pair": "built",
        "validate pair": "built",
    }


def test_config_changed_back_is_a_hit(built):
    before = built.bytes_of("pair", "pair.pte")
    for old, new in (
        ("[xnnpack]", "[]"),
        ("decode:\n    partitioners: []", "decode:\n    partitioners: [xnnpack]"),
    ):
        built.edit("partition_configs/pair.yaml", old, new)
        assert built.doit("lower") == 0
    assert built.outcomes()["link pair"] == "hit"
    assert built.bytes_of("pair", "pair.pte") == before


def test_what_two_packages_ask_for_is_compiled_once(built):
    config = (built.root / "partition_configs" / "pair.yaml").read_text()
    for name in ("one", "two"):
        path = built.root / "partition_configs" / f"{name}.yaml"
        path.write_text(config.replace("[xnnpack]", "[]"))
    assert built.doit("lower:one", "lower:two") == 0
    assert built.outcomes()["compile one/decode"] == "built"
    assert built.outcomes()["compile two/decode"] == "hit"
    (reason,) = (
        action["reason"]
        for action in built.actions()
        if (action["kind"], action["package"], action["method"]) == ("compile", "two", "decode")
    )
    assert reason.endswith("; compile one/decode is the same")


@pytest.mark.parametrize("damage", ["edited", "truncated", "deleted", "linked", "manifest edited"])
def test_damaged_package_comes_back_from_the_store(built, damage):
    before = built.bytes_of("pair", "pair.pte")
    path = built.root / "build" / "pair" / "pair.pte"
    if damage == "edited":
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    elif damage == "truncated":
        path.write_bytes(before[:100])
    elif damage == "deleted":
        path.unlink()
    elif damage == "linked":
        path.rename(path.with_name("other.pte"))
        path.symlink_to("other.pte")
    else:
        path.with_name("manifest.json").write_text("{}")
    assert built.doit("info", "lower:pair") == 1
    assert ("is missing" if damage == "deleted" else "was edited") in built.output
    assert built.doit("lower") == 0
    assert built.outcomes()["link pair"] == "hit"
    assert built.bytes_of("pair", "pair.pte") == before


def test_fresh_checkout_with_a_warm_store_compiles_nothing(built):
    before = built.bytes_of("pair", "pair.pte")
    shutil.rmtree(built.root / "build")
    assert built.doit() == 0
    assert "built" not in built.outcomes().values()
    assert built.outcomes()["link pair"] == "hit"
    assert built.bytes_of("pair", "pair.pte") == before


@pytest.mark.slow
def test_lost_store_costs_time_only(built):
    before = built.bytes_of("pair", "pair.pte")
    shutil.rmtree(built.store)
    assert built.doit() == 0
    assert built.bytes_of("pair", "pair.pte") == before


def test_corrupt_blobs_are_never_served(built):
    """With every blob damaged and the package gone, it is built again."""
    before = built.bytes_of("pair", "pair.pte")
    for path in (built.store / "blobs").rglob("*"):
        if path.is_file() and path.stat().st_size:
            path.chmod(0o644)
            path.write_bytes(b"\0" * path.stat().st_size)
    shutil.rmtree(built.root / "build")
    assert built.doit("lower") == 0, built.output
    assert built.outcomes()["compile pair/encode"] == "built"
    assert built.bytes_of("pair", "pair.pte") == before


TELLING = """
_preprocess = XnnpackBackend.preprocess

def telling(program, specs):
    print("the backend preprocesses")
    return _preprocess(program, specs)

XnnpackBackend.preprocess = staticmethod(telling)
"""


@pytest.mark.slow
def test_forced_run_builds_the_same_bytes(built, tmp_path):
    changes = patched(tmp_path, PREPROCESS, TELLING)
    assert built.doit("lower:pair", PYTHONPATH=changes["PYTHONPATH"]) == 0
    before = {name: built.bytes_of("pair", name) for name in ("pair.pte", "manifest.json")}
    assert built.doit("-a", "lower:pair", **changes) == 0
    assert built.outcomes()["compile pair/decode"] == "built"
    log = built.root / "build" / ".logs" / "pair" / "compile-decode.log"
    assert "the backend preprocesses" in log.read_text()
    assert {name: built.bytes_of("pair", name) for name in before} == before


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_bytes_do_not_depend_on_workers_or_hash_seed(built, jobs):
    before = {name: built.bytes_of("pair", name) for name in ("pair.pte", "manifest.json")}
    shutil.rmtree(built.root / "build")
    shutil.rmtree(built.store)
    assert built.doit("lower", PTE_PIPELINE_JOBS=jobs, PYTHONHASHSEED="7") == 0
    assert {name: built.bytes_of("pair", name) for name in before} == before


def test_listing_and_cleaning(built):
    assert built.doit("list") == 0
    assert [line.split()[0] for line in built.output.splitlines()] == [
        "compile",
        "export",
        "lower",
        "quantize",
        "validate",
    ]
    (built.root / "build" / "pair" / "mine.txt").write_text("a file of the user's")
    index, link = built.root / "build" / "index.html", 'href="pair/report.html"'
    assert link in index.read_text()
    assert built.doit("clean", "-n", "lower:pair") == 0
    assert (built.root / "build" / "pair" / "pair.pte").exists()
    assert built.doit("clean", "lower:pair") == 0
    assert "removing build/pair/pair.pte" in built.output
    assert [p.name for p in (built.root / "build" / "pair").iterdir()] == ["mine.txt"]
    assert link not in index.read_text() and "pair" in index.read_text()
    assert built.doit("lower:p*") == 0
    assert built.outcomes()["link pair"] == "hit"


def test_package_is_selected_by_its_file(built):
    assert built.doit("build/pair/pair.pte") == 0
    assert built.outcomes()["link pair"] == "up-to-date"


@pytest.mark.slow
def test_validation_that_fails_fails_again(built):
    built.edit(
        "partition_configs/pair.yaml", "constant", "validate: {gates: {max_size: 1kB}}\nconstant"
    )
    for _ in range(2):
        assert built.doit("validate:pair") == 1
        assert built.outcomes()["validate pair"] == "failed"
        assert "at most 1,000 allowed" in built.output
    report = built.bytes_of("pair", "report.md").decode()
    assert "FAILED" in report.splitlines()[0]
    record = json.loads(built.bytes_of("pair", "report.json"))
    assert record["ok"] is False and "at most 1,000 allowed" in record["failures"][0]


@pytest.mark.slow
def test_another_gate_measures_nothing_again(built):
    before = json.loads(built.bytes_of("pair", "report.json"))
    for size, code in (("40MB", 0), ("1kB", 1)):
        gates = f"validate:\n  gates: {{max_size: {size}}}\n"
        built.edit("partition_configs/pair.yaml", "constant", f"{gates}constant")
        assert built.doit("validate:pair") == code
        assert built.outcomes()["validate pair"] == ("failed" if code else "built")
        after = json.loads(built.bytes_of("pair", "report.json"))
        assert after["seconds"] == before["seconds"]  # no two runs have the same
        if code:
            built.edit("partition_configs/pair.yaml", "1kB", "2kB")
            assert built.doit("plan") == built.doit("explain", "pair") == 0
            assert "config validate.gates.max_size: 1000 -> 2000" in built.output
            built.edit("partition_configs/pair.yaml", "2kB", "1kB")
        built.edit("partition_configs/pair.yaml", gates, "")
    assert built.doit("-a", "validate:pair") == 0
    assert json.loads(built.bytes_of("pair", "report.json"))["seconds"] != before["seconds"]


@pytest.mark.slow
def test_archives_of_both_kinds(bench):
    workspace = bench("archives")
    assert workspace.doit() == 0, workspace.output
    assert workspace.outcomes()["validate one"] == "built"
    assert workspace.outcomes()["compile many/classify"] == "built"
    assert workspace.doit() == 0
    assert set(workspace.outcomes().values()) == {"up-to-date"}
    shutil.rmtree(workspace.store)  # not needed while the package is current
    assert workspace.doit() == 0
    assert set(workspace.outcomes().values()) == {"up-to-date"}


def test_other_tasks_of_the_same_dodo_file_run_as_ever(built):
    (built.root / "dodo.py").write_text(
        "from pipeline.tasks import *\n"
        "def task_copy():\n"
        "    return {'actions': ['cp build/pair/pair.pte shipped.pte'],\n"
        "            'file_dep': ['build/pair/pair.pte'], 'targets': ['shipped.pte']}\n"
    )
    assert built.doit("copy") == 0
    assert ".  copy" in built.output
    assert (built.root / "shipped.pte").read_bytes() == built.bytes_of("pair", "pair.pte")
    assert built.doit("copy") == 0
    assert "-- copy" in built.output


def test_a_dodo_file_with_settings_of_its_own_keeps_ours(bench):
    workspace = bench("archives")
    workspace.edit("dodo.py", "*", "*\nDOIT_CONFIG = {'default_tasks': ['lower'], 'verbosity': 1}")
    workspace.edit("partition_configs/many.yaml", "model: many", "model: none")
    assert workspace.doit() == 1
    assert "no model 'none'" in workspace.output
    assert (
        workspace.outcomes()["link one"] == "built" and "validate one" not in workspace.outcomes()
    )
    assert "package  build" in workspace.output
    assert (workspace.root / ".doit.sqlite3").exists()


@pytest.mark.slow
def test_doits_own_reporters_and_options_work(built):
    """`-n` sets the number of workers, `-P` has no effect, and other reporters show our tasks."""
    built.edit("partition_configs/pair.yaml", "[xnnpack]", "[]")
    assert built.doit("-n", "1", "-P", "thread", "-r", "json", "lower") == 0
    results = {task["name"]: task["result"] for task in json.loads(built.output)["tasks"]}
    assert results["compile:pair/decode"] == results["lower:pair"] == "success"
    assert results["compile:pair/encode"] == "up-to-date"
