import ast
import shutil
from pathlib import Path

import pytest

import pipeline
from pipeline import toolchain

FOLDER = Path(pipeline.__file__).parent

# What only finds, orders, stores or shows what the deciding modules make.
HARMLESS = {
    "__init__", "acceptance", "actions", "batch", "builds", "canonical", "changes", "columns",
    "commands", "comparison", "compose", "config", "config_fields", "config_models",
    "config_parser", "config_validate", "console", "diff", "digest", "doit_hooks", "errors",
    "explain", "files", "last_words", "listing", "loaded", "matrix", "mistakes", "overview",
    "plan", "pool",
    "rebuild", "records", "remembered", "remote", "remote_files", "report_record",
    "report_schema", "reports/*", "resolved", "revisions", "runner", "schema", "settings",
    "signing", "sizes", "source_lines", "sources", "stages", "status", "steps", "store",
    "strict_yaml", "tasks", "timeline", "toolchain", "upkeep", "variables", "worker", "workspace",
}  # fmt: skip


def test_every_module_either_counts_or_is_known_not_to():
    modules = {
        *(path.stem for path in FOLDER.glob("*.py")),
        *(f"{path.parent.name}/*" for path in FOLDER.glob("*/*.py")),
        *(f"{path.parent.parent.name}/*/*" for path in FOLDER.glob("*/*/*.py")),
    }
    assert modules == set(toolchain._DECIDING) | HARMLESS
    assert not set(toolchain._DECIDING) & HARMLESS


@pytest.mark.parametrize("name", toolchain._DECIDING)
def test_deciding_modules_are_there(name):
    files = list(FOLDER.glob(f"{name}.py"))
    assert files
    for file in files:
        ast.parse(file.read_text())


def test_a_change_of_the_code_changes_the_key(tmp_path, monkeypatch):
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    ours = toolchain.code(), toolchain.planning_code(), toolchain.describing_code()
    monkeypatch.setattr(toolchain, "__file__", str(tmp_path / "toolchain.py"))
    monkeypatch.setattr(toolchain, "_digest_of", toolchain._digest_of.__wrapped__)
    assert ours == (toolchain.code(), toolchain.planning_code(), toolchain.describing_code())
    for changed, number in (("quantize", 0), ("config_parser", 1), ("canonical", 2)):
        (tmp_path / f"{changed}.py").write_text("# changed\n")
        now = (toolchain.code(), toolchain.planning_code(), toolchain.describing_code())
        assert [was == is_now for was, is_now in zip(ours, now, strict=True)] == [
            other > number for other in range(3)
        ]
    before = toolchain.code()
    (tmp_path / "backends" / "xnnpack.py").write_text("# changed\n")
    assert toolchain.code() != before


def test_toolchain_names_what_takes_part():
    versions = toolchain.toolchain(("surely-not-installed",))
    assert {"python", "torch", "executorch", "flatbuffers", "torchao"} <= versions.keys()
    assert versions["surely-not-installed"] == "not installed"


def test_host_facts_are_stable():
    assert toolchain.host.__wrapped__() == toolchain.host()
