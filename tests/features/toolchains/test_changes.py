"""The changes of an upgrade are ranked, and described in terms of both builds' records."""

import copy

import pytest

from pipeline.features.gates.figures import make_build
from pipeline.features.toolchains.changes import (
    BROKEN,
    DELEGATION,
    LATENCY,
    MEMORY,
    NUMERICS,
    SIZE,
    TOLD,
    WARNINGS,
    compare_peaks,
    find_changes,
)
from pipeline.features.toolchains.summary import write_markdown, write_text

VERSIONS = {"executorch": ("1.4.1", "1.5.1")}


def make_records():
    """Return the records of a package with one method."""
    delegation = {
        "nodes": 10,
        "delegated_nodes": 9,
        "operators": 4,
        "delegated_operators": 3,
        "partitions": {"XnnpackBackend": 1},
        "undelegated": {"aten.sum.dim_IntList": 1},
    }
    files = {"demo.pte": {"digest": "a" * 64, "size": 1000}}
    steady = {"median": 2.0, "low": 1.9, "high": 2.1, "runs": 9}
    method = {
        "method": "encode",
        "kind": "program",
        "verdict": "passed",
        "runs": [{"outputs": [{"sqnr_db": 80.0}]}],
        "max_abs": 1e-3,
        "latency": {"steady_ms": steady, "ratio": 1.0},
    }
    segments = [
        {"kind": "program", "digest": "p", "size": 600},
        {"kind": "delegate", "digest": "d", "size": 400},
    ]
    inside = {"planned_memory": [{"arena": 1, "size": 4096}], "constants": 0, "delegated": 400}
    return {
        "manifest": {"files": files, "methods": {"encode": {"delegation": delegation}}},
        "contents": {"segments": segments, "methods": {"encode": inside}, "tensors": []},
        "report": {
            "ok": True,
            "failures": [],
            "files": {"demo.pte": "a" * 64},
            "methods": [method],
            "warnings": {"encode": [{"what": "old warning", "operator": "", "module": ""}]},
        },
        "cost": (3.0, 500),
        "errors": [],
    }


def make_side(records):
    if records is None:
        return {"errors": [], "build": None, "report": None, "cost": (0.0, 0)}
    build = make_build(records["manifest"], records["contents"], records["report"])
    return {**records, "build": build}


def compare(change=None):
    """Compare a package with itself after a change to its records."""
    old, new = make_records(), copy.deepcopy(make_records())
    if change is not None:
        change(new)
        digest = "b" * 64
        new["manifest"]["files"]["demo.pte"]["digest"] = digest
        new["report"]["files"]["demo.pte"] = digest
    return find_changes("demo", make_side(old), make_side(new))


def lose_an_operator(records):
    delegation = records["manifest"]["methods"]["encode"]["delegation"]
    delegation["delegated_nodes"] = 8
    delegation["undelegated"]["aten.mm.default"] = 1


def plan_more_memory(records):
    records["contents"]["methods"]["encode"]["planned_memory"][0]["size"] = 8192


def grow(records):
    records["manifest"]["files"]["demo.pte"]["size"] = 1500
    records["contents"]["segments"][0]["digest"] = "q"


def lose_precision(records):
    records["report"]["methods"][0]["runs"][0]["outputs"][0]["sqnr_db"] = 60.0


def become_slow(records):
    steady = {"median": 4.0, "low": 3.8, "high": 4.2, "runs": 9}
    records["report"]["methods"][0]["latency"] = {"steady_ms": steady, "ratio": 2.0}


def measure_on_a_busy_machine(records):
    become_slow(records)
    records["report"]["methods"][0]["latency"]["ratio"] = 1.1


def warn(records):
    records["report"]["warnings"]["encode"][0]["what"] = "new warning"


def take_more_to_lower(records):
    records["cost"] = (3.0, 1500)


def fail(records):
    records["report"]["ok"] = False
    records["report"]["failures"] = ["encode: 3 times its limit"]


def lose_the_method(records):
    records["manifest"]["methods"] = {}


def delegate_all(records):
    delegation = records["manifest"]["methods"]["encode"]["delegation"]
    delegation["delegated_nodes"] = 10
    delegation["undelegated"] = {}


@pytest.mark.parametrize(
    ("change", "rank", "sentence"),
    [
        (lose_an_operator, DELEGATION, "encode: 1 more call of aten.mm.default left undelegated"),
        (plan_more_memory, MEMORY, "encode: planned memory 8,192 bytes, was 4,096 (+4,096, +100"),
        (grow, SIZE, "size 1,500 bytes, was 1,000 (+500, +50.0 %)"),
        (lose_precision, NUMERICS, "encode: output 0: SQNR 60 dB, was 80 dB"),
        (become_slow, LATENCY, "encode: slower: 4 ms, was 2 ms"),
        (warn, WARNINGS, "new warning: encode: new warning"),
        (fail, BROKEN, "failed, was passed: encode: 3 times its limit"),
        (lose_the_method, BROKEN, "encode: the method no longer exists"),
        (delegate_all, TOLD, "encode: 1 more call of aten.sum.dim_IntList delegated"),
    ],
)
def test_a_change_has_its_rank(change, rank, sentence):
    changes = compare(change)
    assert changes.rank == rank
    assert changes.lines[0][1].startswith(sentence)
    assert not changes.is_equal


def test_what_is_equal_has_no_lines():
    changes = compare()
    assert changes.is_equal
    assert changes.bytes == "equal"


def test_a_busy_machine_is_no_change_of_latency():
    assert not compare(measure_on_a_busy_machine).lines


def test_a_package_that_takes_more_to_lower_has_a_line():
    changes = [compare(take_more_to_lower), compare(), compare()]
    assert compare_peaks(changes) == ""
    sentence = "peak memory of lowering 1,500 bytes, was 500 (+1,000, +200.0 %)"
    assert changes[0].lines == [(MEMORY, sentence)]
    assert changes[1].is_equal


def test_a_toolchain_that_takes_more_to_lower_is_one_line():
    changes = [compare(take_more_to_lower), compare(take_more_to_lower), compare()]
    sentence = compare_peaks(changes)
    assert sentence == (
        "peak memory of lowering: +200 % to +200 % in 2 of 3 packages; at most 1,500 bytes, was 500"
    )
    assert not changes[0].lines
    assert sentence in "\n".join(write_text("et15", VERSIONS, changes, everywhere=sentence))
    page = "\n".join(write_markdown("et15", VERSIONS, changes, everywhere=sentence))
    assert "3 packages: 0 worse, 2 otherwise changed, 1 identical.\n\nPeak memory" in page


def test_the_sections_that_differ_are_named():
    assert compare(grow).bytes == "differ in program"
    assert compare(warn).bytes == "differ"


def test_a_package_that_no_longer_builds_says_why():
    new = make_side(None)
    error = {
        "kind": "compile",
        "package": "demo",
        "model": "demo",
        "method": "encode",
        "error": "lower: no such operator",
    }
    new["errors"] = [error]
    changes = find_changes("demo", make_side(make_records()), new)
    assert changes.rank == BROKEN
    assert changes.lines[0][1] == ("no longer builds: compile demo/encode: lower: no such operator")
    both = find_changes("demo", new, new)
    assert both.rank == TOLD
    assert both.lines[0][1].startswith("builds with neither")
    assert find_changes("demo", new, make_side(make_records())).rank == TOLD


def test_the_worst_package_is_on_top_and_equal_ones_are_one_line():
    packages = {"equal-a": None, "equal-b": None, "memory": plan_more_memory}
    packages |= {"better": delegate_all, "operator": lose_an_operator, "broken": fail}
    changes = []
    for name, change in packages.items():
        compared = compare(change)
        compared.package = name
        changes.append(compared)
    text = "\n".join(write_text("et15", VERSIONS, changes))
    names = ["broken", "operator", "memory", "other changes", "better", "identical: 2 packages"]
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert "upgrade to et15: executorch 1.4.1 to 1.5.1" in text
    page = "\n".join(write_markdown("et15", VERSIONS, changes))
    assert "6 packages: 3 worse, 1 otherwise changed, 2 identical." in page
    assert page.index("`broken`") < page.index("`operator`") < page.index("`memory`")
    assert "2 packages (equal-a, equal-b)" in page
