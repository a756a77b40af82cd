"""The code units of keys, and the versions and facts of the machine in them."""

import shutil
from pathlib import Path

import grimp
import pytest

import pipeline
from pipeline.store import toolchain

ROOT = Path(pipeline.__file__).parent
# What each kind of key must change with: its entry points, and all that these import, lazily too.
ENTRIES = {
    "describing": ["pipeline.program.sources", "pipeline.program.archive_facts"],
    "planning": ["pipeline.plan.plan"],
    "export": ["pipeline.run.export.*", "pipeline.features.exporters.export"],
    "compile": ["pipeline.run.build.*"],
    "measure": ["pipeline.run.prove.measure"],
    "validate": ["pipeline.run.prove.validate"],
}
# What performs every action, whatever it does; what it hands an action to is an entry of its own.
HARNESS = ("pipeline.run.perform", "pipeline.run.worker")
CODES = {
    "describing": lambda: toolchain.code("describe"),
    "planning": lambda: toolchain.code("plan"),
    "export": lambda: toolchain.code("export"),
    "compile": lambda: toolchain.code("compile"),
    "measure": lambda: toolchain.code("measure"),
    "validate": lambda: toolchain.code("validate") + toolchain.code("measure"),
}


@pytest.fixture(scope="module")
def reached():
    """The modules that each kind of key can reach."""
    graph = grimp.build_graph("pipeline", exclude_type_checking_imports=True)
    found = {}
    for kind, patterns in ENTRIES.items():
        entries = {
            module
            for pattern in patterns
            for module in graph.modules
            if module == pattern or (pattern[-1] == "*" and module.startswith(pattern[:-1]))
        }
        assert entries
        found[kind] = entries.union(*(graph.find_upstream_modules(each) for each in entries))
        if kind not in ("describing", "planning"):
            found[kind].update(HARNESS)
    return found


def file_of(module, root):
    path = root.parent / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.slow
def test_a_line_more_in_any_module_changes_every_key_that_can_reach_it(
    reached, tmp_path, monkeypatch
):
    root = Path(shutil.copytree(ROOT, tmp_path / "pipeline"))
    monkeypatch.setattr(toolchain, "__file__", str(root / "store" / "toolchain.py"))
    monkeypatch.setattr(toolchain, "_room", toolchain._room.__wrapped__)
    monkeypatch.setattr(toolchain, "code", toolchain.code.__wrapped__)
    before = {kind: code() for kind, code in CODES.items()}
    missed = []
    for module in sorted(set().union(*reached.values()) - {"pipeline"}):
        path = file_of(module, root)
        source = path.read_bytes()
        path.write_bytes(source + b"# changed\n")
        missed += [
            (kind, module)
            for kind, code in CODES.items()
            if module in reached[kind] and code() == before[kind]
        ]
        path.write_bytes(source)
    assert not missed
    assert before == {kind: code() for kind, code in CODES.items()}


def test_reports_are_made_without_measuring_and_packages_measured_without_building(reached):
    for kind, rooms in {
        "export": ("cli", "run.prove", "features.pages", "features.charts"),
        "compile": ("cli", "devices", "report", "run.prove", "validate"),
        "measure": ("cli", "report.html", "features.pages", "features.charts"),
    }.items():
        strays = [m for m in reached[kind] if m.startswith(tuple(f"pipeline.{r}." for r in rooms))]
        assert not strays


@pytest.mark.parametrize(
    "name", ["features/pages/templates/style.css", "backends/xnnpack/constructors.json"]
)
def test_data_files_count(name, tmp_path, monkeypatch):
    root = Path(shutil.copytree(ROOT, tmp_path / "pipeline"))
    monkeypatch.setattr(toolchain, "__file__", str(root / "store" / "toolchain.py"))
    monkeypatch.setattr(toolchain, "_room", toolchain._room.__wrapped__)
    monkeypatch.setattr(toolchain, "code", toolchain.code.__wrapped__)
    before = toolchain.code("compile"), toolchain.code("validate")
    (root / name).write_text("changed")
    now = toolchain.code("compile"), toolchain.code("validate")
    reports = name.startswith("features/pages/")
    assert (now[0] == before[0], now[1] == before[1]) == (reports, not reports)


def test_the_public_interface_counts_for_what_user_code_makes(tmp_path, monkeypatch):
    root = Path(shutil.copytree(ROOT, tmp_path / "pipeline"))
    public = Path(shutil.copytree(ROOT.with_name("pte_pipeline"), tmp_path / "pte_pipeline"))
    monkeypatch.setattr(toolchain, "__file__", str(root / "store" / "toolchain.py"))
    monkeypatch.setattr(toolchain, "_room", toolchain._room.__wrapped__)
    monkeypatch.setattr(toolchain, "code", toolchain.code.__wrapped__)
    before = toolchain.code("compile"), toolchain.code("plan")
    (public / "report" / "schema.py").write_text("changed")
    now = toolchain.code("compile"), toolchain.code("plan")
    assert (now[0] == before[0], now[1] == before[1]) == (False, True)


def test_bytecode_does_not_count_while_it_is_written(tmp_path, monkeypatch):
    root = Path(shutil.copytree(ROOT, tmp_path / "pipeline"))
    monkeypatch.setattr(toolchain, "__file__", str(root / "store" / "toolchain.py"))
    monkeypatch.setattr(toolchain, "_room", toolchain._room.__wrapped__)
    monkeypatch.setattr(toolchain, "code", toolchain.code.__wrapped__)
    before = toolchain.code("compile")
    (root / "plan" / "__pycache__").mkdir(exist_ok=True)
    for name in ("new.cpython-311.pyc", "new.cpython-311.pyc.140213"):
        (root / "plan" / "__pycache__" / name).write_bytes(b"half")
    assert toolchain.code("compile") == before


def test_versions_of_what_takes_part():
    versions = toolchain.toolchain(("surely-not-installed",))
    assert {"python", "torch", "executorch", "flatbuffers", "torchao"} <= versions.keys()
    assert versions["surely-not-installed"] == "not installed"


def test_host_facts_are_stable():
    facts = toolchain.host()
    toolchain.cpu_fields.cache_clear()
    assert toolchain.host() == facts
