"""The table of packages by device: how a report shows in it, and that no package is missing."""

import pytest

from benchmarks.devices import (
    BEGIN,
    DEVICES,
    END,
    PAGE,
    REPOSITORY,
    find_packages,
    find_problems,
    make_record,
    make_table,
)

RAN = {"verdict": "passed", "reason": "", "calls": 3, "of_limit": 0.25, "seconds": 1.5}


def make_report(**changes):
    """Return a report of `vision`, with changed facts on `native` in one of its methods."""
    methods = []
    for facts in (RAN, {**RAN, **changes}):
        devices = {**dict.fromkeys(DEVICES, RAN), "native": facts}
        methods.append({"devices": devices})
    return {"verdict": "passed", "methods": [*methods, {"method": "get_length"}]}


def test_a_package_is_as_bad_as_its_worst_method():
    record = make_record(make_report(of_limit=0.5))
    native = record["devices"]["native"]
    assert (native["of_limit"], native["calls"], native["seconds"]) == (0.5, 6, 1.5)
    assert find_problems("vision", record) == []
    assert "| passed, 0.5, 6 calls in 1.5 s | passed, 0.25, 6 calls in 1.5 s |" in make_table(
        {"vision": record}
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"verdict": "failed", "reason": "NaN"}, "vision on native: NaN"),
        ({"seconds": 2.5}, "vision on native: took 2.5 s, at most 2 s"),
    ],
)
def test_what_a_device_gets_wrong_is_a_problem(changes, problem):
    assert find_problems("vision", make_record(make_report(**changes))) == [problem]


def test_what_did_not_run_has_no_figures():
    absent = {"verdict": "not run", "reason": "its runner has no backend AddSubBackend"}
    methods = [{"devices": dict.fromkeys(DEVICES, absent)}]
    record = make_record({"verdict": "not run", "methods": methods})
    assert make_table({"add_sub": record}).count("| not run") == 1 + len(DEVICES)


def test_the_page_has_a_row_of_every_package_of_this_repository():
    table = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [line.split("`")[1] for line in table.splitlines()[2:]]
    assert set(find_packages(REPOSITORY)) <= set(rows)
