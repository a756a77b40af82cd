"""The table at the end of a run fits the terminal, and names the worst results."""

import pytest

from pipeline.cli.console import describe_failures
from pipeline.features.summary import table
from pipeline.features.summary.table import make_table
from pipeline.report.events import INTERRUPTED, Event

LONG = "a-package-of-a-matrix-with-a-very-long-name-for-android"


def method(name, error, **more):
    limits = {"atol": 1e-3}
    run = {"origin": "example 0", "outputs": [{"max_abs": error, "of_limit": error / 1e-3}]}
    facts = {"method": name, "kind": "program", "verdict": "passed", "limits": limits, "ok": True}
    return facts | {"limits_from": "config", "runs": [run], "not_run": ""} | more


class Built:
    """A plan whose packages were built, and its workspace."""

    packages = ("small", LONG)

    def __init__(self, root):
        self.root, self.build = root, root / "build"

    @property
    def workspace(self):
        return self

    def package(self, name):
        return self.build / name

    def state(self, name):
        return {"validate": {"ok": False}}


@pytest.fixture
def plan(tmp_path, monkeypatch):
    from pipeline.report import records

    counts = {"delegation": {"nodes": 4, "delegated_nodes": 3}}
    manifest = {
        "files": {"a.pte": {"size": 2000, "digest": "d"}},
        "methods": {"one": counts, "two": counts},
    }
    judged = [method("one", 1e-6), method("two", 5e-4)]
    report = {"methods": judged, "files": {"a.pte": "d"}, "verdict": "passed"}
    monkeypatch.setattr(records, "read_manifest", lambda *_: manifest)
    monkeypatch.setattr(records, "read_fitting", lambda path: report)
    return Built(tmp_path)


def events(*packages):
    return [
        Event(kind, package, each, "m", "built", seconds=2.0)
        for package in packages
        for kind, each in (
            ("compile", "one"),
            ("compile", "two"),
            ("link", None),
            ("validate", None),
        )
    ]


def test_a_package_has_a_line_with_its_worst_method(plan):
    assert list(make_table(plan, events("small"), (), None)) == [
        "package  build  verdict  delegated    size   figure         limit  seconds",
        "-------  -----  -------  ---------  ------  -------  ------------  -------",
        "small    built  passed      75.0 %  2.0 kB  5.00e\u22124  0.001 config      8.0",
    ]


def test_methods_have_lines_where_they_are_asked_for(plan):
    lines = list(make_table(plan, events("small", LONG), ("small",), None))
    assert [line.split()[0] for line in lines[2:]] == [LONG, "small", "one", "two"]
    assert lines[4].startswith("  one") and "1.00e\u22126" in lines[4]
    assert len(list(make_table(plan, events("small", LONG), None, None))) == 8


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60, 40])
def test_it_fits(plan, width):
    lines = list(make_table(plan, events("small", LONG), None, width))
    assert max(map(len, lines)) <= width
    head = lines[0].split("  ")
    assert head[0] == "package" and "build" in lines[0] and "verdict" in lines[0]
    assert ("limit" in lines[0]) is (width >= 100)
    assert any("android" in line for line in lines)


def test_what_was_not_asked_for_has_no_column(plan):
    only = [event for event in events("small") if event.kind == "compile"]
    assert list(make_table(plan, only, (), None))[::2] == [
        "package  build  seconds",
        "small    built      4.0",
    ]
    assert "verdict" not in table.HEADINGS[:2]


def test_failures_are_listed_with_the_file_to_open(plan):
    page = plan.package("small") / "report.html"
    page.parent.mkdir(parents=True)
    page.write_text("")
    log = "build/.logs/x.log"
    shared = "partition_configs/_base.yaml:1: is wrong"
    failed = [
        Event("compile", "small", "one", "m", "failed", error="no kernel", stage="emit", log=log),
        Event("validate", "small", None, "m", "failed", error="gate max_size: 2 allowed", log=log),
        Event("link", "a", None, "m", "failed", error=f"{shared}\nmore"),
        Event("link", "b", None, "m", "failed", error=f"{shared}\nmore"),
    ]
    assert list(describe_failures(plan, [*events("small"), *failed])) == [
        "",
        "failed, for the reasons above:",
        "  compile small/one in stage 'emit': build/.logs/x.log",
        "  validate small: build/small/report.html",
        "  link a, link b",
    ]
    assert not list(describe_failures(plan, events("small")))
    # A validation that failed in a stage wrote no report.
    killed = Event("validate", "small", None, "m", "failed", error="killed", stage="run", log=log)
    *_, line = describe_failures(plan, [killed])
    assert line == "  validate small in stage 'run': build/.logs/x.log"


def test_a_run_that_ended_in_an_export_has_no_table():
    event = Event("export", None, None, "m", "not-run", reason="interrupted")
    assert list(make_table(None, [event], None, 60)) == []


def test_what_was_interrupted_before_it_was_linked_was_not_built(plan):
    events_of_methods = [each for each in events("small") if each.kind == "compile"]
    link = Event("link", "small", None, "m", "not-run", reason=INTERRUPTED)
    late = Event("compile", "small", "three", "m", "not-run", reason=INTERRUPTED)
    for more in (link, late):
        row = list(make_table(plan, [*events_of_methods, more], (), None))[-1]
        assert row.split()[:3] == ["small", "not", "built"]
