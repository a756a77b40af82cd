"""The code digests in keys, and the versions and machine facts."""

from pathlib import Path

import grimp
import pytest

from pipeline.store import toolchain
from tests.support.own_code import BASE, read_codes

# What each kind of key depends on: its entry points, and everything these import, even lazily.
ENTRIES = {
    "describing": ["pipeline.program.sources", "pipeline.program.archive_facts"],
    "planning": ["pipeline.plan.plan"],
    "export": ["pipeline.run.export.*", "pipeline.features.exporters.export"],
    "compile": ["pipeline.run.build.*"],
    "measure": ["pipeline.run.prove.measure"],
    "validate": ["pipeline.run.prove.validate"],
}
# Modules that perform every action, of any kind; the module that handles an action is an entry too.
HARNESS = ("pipeline.run.perform", "pipeline.run.worker")
CODES = {
    "describing": ("describe",),
    "planning": ("plan",),
    "export": ("export",),
    "compile": ("compile",),
    "measure": ("measure",),
    "validate": ("validate", "measure"),
}
KINDS = sorted(set().union(*CODES.values()))


@pytest.fixture(scope="module")
def reached():
    """Return the modules that each kind of key can reach."""
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


def file_of(module):
    path = Path(module.replace(".", "/"))
    return str(path / "__init__.py" if (BASE / path).is_dir() else path.with_suffix(".py"))


@pytest.mark.slow
def test_a_line_more_in_any_module_changes_every_key_that_can_reach_it(reached):
    before = read_codes(KINDS)
    missed = []
    for module in sorted(set().union(*reached.values()) - {"pipeline"}):
        codes = read_codes(KINDS, file_of(module))
        missed += [
            (kind, module)
            for kind, units in CODES.items()
            if module in reached[kind] and all(codes[unit] == before[unit] for unit in units)
        ]
    assert not missed
    assert before == read_codes(KINDS)


def test_reports_are_made_without_measuring_and_packages_measured_without_building(reached):
    for kind, rooms in {
        "export": ("cli", "run.prove", "features.pages", "features.charts"),
        "compile": ("cli", "devices", "report", "run.prove", "validate"),
        "measure": ("cli", "report.html", "features.pages", "features.charts"),
    }.items():
        strays = [m for m in reached[kind] if m.startswith(tuple(f"pipeline.{r}." for r in rooms))]
        assert not strays


@pytest.mark.parametrize(
    "name", ["features/pages/templates/style.css", "features/xnnpack/constructors.json"]
)
def test_data_files_count(name):
    kinds = ("compile", "validate")
    before, now = read_codes(kinds), read_codes(kinds, f"pipeline/{name}")
    changed = "validate" if name.startswith("features/pages/") else "compile"
    assert [kind for kind in kinds if now[kind] != before[kind]] == [changed]


def test_the_public_interface_counts_for_what_user_code_makes():
    kinds = ("compile", "plan")
    before, now = read_codes(kinds), read_codes(kinds, "pte_pipeline/report/schema.py")
    assert [kind for kind in kinds if now[kind] != before[kind]] == ["compile"]


def test_versions_of_what_takes_part():
    versions = toolchain.toolchain(("surely-not-installed",))
    assert {"python", "torch", "executorch", "flatbuffers", "torchao"} <= versions.keys()
    assert versions["surely-not-installed"] == "not installed"


def test_host_facts_are_stable():
    facts = toolchain.host()
    toolchain.cpu_fields.cache_clear()
    assert toolchain.host() == facts
