"""A method fails on another device: this machine's figures are fine, and the device's decide."""

import pytest

from pipeline.features.pages.elsewhere import verdict_here
from pipeline.features.pages.fixes import fix_failure
from pipeline.features.pages.method_list import list_methods
from pipeline.features.pages.scores import list_answers
from pipeline.features.pages.sections.call_outputs import outputs
from pipeline.features.pages.sections.method_comparisons import method_rows
from pipeline.report.failures import group_failures
from tests.features.pages.test_method_list import many

KEPT = {"verdict": "passed", "calls": 10, "of_limit": 0.5, "reason": ""}
BROKEN = KEPT | {"verdict": "failed", "of_limit": 42.7, "reason": "is too large"}


def failing_on_a_device(devices):
    """Return a record with a method that fails only on `qemu:max`."""
    record = many(9)
    method = record["methods"][7]
    [failure] = method["failures"]
    failure |= {"what": "on qemu:max, but not on this machine: is too large", "of_limit": 42.7}
    method["devices"] = devices
    return record


@pytest.fixture
def record():
    return failing_on_a_device({"native": KEPT, "qemu:max": BROKEN})


def test_the_row_has_the_figure_of_the_device(record):
    first = list_methods(record)[0]
    assert (first["verdict"], first["figure"], first["limit"], first["ratio"]) == (
        "failed",
        "42.7 × limit",
        "1 on qemu:max",
        42.7,
    )


def test_comparisons_and_charts_of_this_machine_show_no_failure(record):
    method = record["methods"][7]
    verdicts = [row["verdict"].text for row in method_rows(method, {})]
    assert verdicts[0] == "passed" and "failed" not in verdicts
    assert all(output.ok for output in outputs(record))


def test_no_fix_is_a_script_that_only_this_machine_could_run(record):
    [group] = group_failures(record["methods"])
    assert fix_failure(record, group) == ""
    del record["methods"][7]["devices"]
    assert "reproduce.py" in fix_failure(record, group)


def test_the_head_says_once_where_several_limits_are_broken(record):
    failures = record["methods"][7]["failures"]
    what = "on qemu:max, but not on this machine: SQNR 2.8 dB is below 20 dB"
    failures.append(failures[0] | {"what": what})
    [failed] = [answer for answer in list_answers(record) if answer["title"] == "failed"]
    [line] = [line for line in failed["lines"] if "qemu:max" in line]
    assert line.endswith("on this machine: is too large; SQNR 2.8 dB is below 20 dB")


@pytest.mark.parametrize(
    ("devices", "changes", "verdict"),
    [
        ({"qemu:max": BROKEN}, {}, "passed"),
        ({"qemu:max": BROKEN}, {"of_limit": None}, ""),
        ({"native": KEPT | {"verdict": "not judged"}, "qemu:max": BROKEN}, {}, "not judged"),
        ({"native": KEPT, "qemu:max": BROKEN}, {"what": "is too large"}, "failed"),
        ({"native": KEPT, "qemu:ma": BROKEN}, {}, "failed"),
        ({"native": {"verdict": "not run", "verdict_here": "not judged"}}, {}, "not judged"),
    ],
)
def test_the_verdict_of_this_machine_is_read_from_the_failures(devices, changes, verdict):
    method = failing_on_a_device(devices)["methods"][7]
    method["failures"][0] |= changes
    assert verdict_here(method) == verdict
