import ast
import shutil
from pathlib import Path

import grimp
import pytest

import pipeline
from pipeline.store import toolchain

FOLDER = Path(pipeline.__file__).parent
DECIDING = (*toolchain._BUILDING, *toolchain._MEASURING, *toolchain._REPORTING)

# What only finds, orders, stores or shows what the deciding modules make.
HARMLESS = {
    "__init__", "acceptance", "actions", "batch", "builds", "canonical", "changes", "columns",
    "commands", "comparison", "compose", "config", "config_fields", "config_models",
    "config_parser", "config_validate", "console", "diff", "digest", "doit_hooks", "errors",
    "explain", "files", "inventory", "last_words", "listing", "loaded", "matrix", "mistakes",
    "plan", "pool", "rebuild", "records", "remembered", "remote", "remote_files",
    "report_record", "report_schema", "resolved", "revisions", "runner", "schema", "settings",
    "signing", "sizes", "source_lines", "sources", "stages", "status", "steps", "store",
    "strict_yaml", "tasks", "timeline", "toolchain", "upkeep", "variables", "worker",
    "workspace",
}  # fmt: skip


def test_every_module_either_counts_or_is_known_not_to():
    modules = {
        *(path.stem for path in FOLDER.glob("*.py")),
        *(f"{path.parent.name}/*" for path in FOLDER.glob("*/*.py")),
        *(f"{path.parent.parent.name}/*/*" for path in FOLDER.glob("*/*/*.py")),
    }
    assert modules == {name for name in DECIDING if "templates" not in name} | HARMLESS
    assert not set(DECIDING) & HARMLESS
    assert len(DECIDING) == len(set(DECIDING))


def test_what_builds_a_package_imports_nothing_that_only_measures_or_reports():
    """So a change there need not build anything again."""
    graph = grimp.build_graph("pipeline")
    used = {"pipeline." + name for name in ("compile", "contents", "etrecord", "export", "link")}
    used |= {each for name in used for each in graph.find_upstream_modules(name)}
    names = {name.removeprefix("pipeline.") for name in used}
    others = {*toolchain._MEASURING, *toolchain._REPORTING}
    assert not names & others
    assert not {name for name in names if name.startswith(("devices", "reports"))}


@pytest.mark.parametrize("name", DECIDING)
def test_deciding_modules_are_there(name):
    files = list(FOLDER.glob(name if "templates" in name else f"{name}.py"))
    assert files
    if "templates" in name:
        return
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
    kinds = ("compile", "measure", "validate")
    before = [toolchain.code(kind) for kind in kinds]
    (tmp_path / "reports" / "templates" / "style.css").write_text("changed")
    assert [toolchain.code(kind) for kind in kinds] == [*before[:2], toolchain.code("validate")]
    assert toolchain.code("validate") != before[2]
    (tmp_path / "validating" / "validate.py").write_text("# changed")
    now = [toolchain.code(kind) for kind in kinds]
    assert now[0] == before[0] and now[1] != before[1]
    before = toolchain.code()
    (tmp_path / "backends" / "xnnpack.py").write_text("# changed\n")
    assert toolchain.code() != before


def test_toolchain_names_what_takes_part():
    versions = toolchain.toolchain(("surely-not-installed",))
    assert {"python", "torch", "executorch", "flatbuffers", "torchao"} <= versions.keys()
    assert versions["surely-not-installed"] == "not installed"


def test_host_facts_are_stable():
    assert toolchain.host.__wrapped__() == toolchain.host()
