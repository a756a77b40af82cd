"""Gates on devices: one record per device, each with a separate limit."""

import pytest

from pipeline.features.gates.figures import make_figures
from pipeline.features.gates.gates import check_gates, failed_gates
from tests.support.builds import manifest

MEMORY = {"at_start": 5, "peak": 900, "planned": 100, "method": 20, "temporary": 3}
NATIVE = {"verdict": "passed", "reason": "", "calls": 3, "load_ms": 2.0, "run_ms": 5.0}
NATIVE |= {"p95_ms": 8.0, "memory": MEMORY}
EMULATED = {**NATIVE, "run_ms": 50.0, "memory": {"planned": 100, "method": 20, "temporary": 3}}
GROWTH = {"latency": 0.2, "latency_then": 4.0, "latency_now": 5.0, "latency_unit": "ms"}


def check(gates, devices, baseline=None):
    """Check gates on the method `encode`, which ran on these devices."""
    run = {"method": "encode", "kind": "program", "devices": devices}
    settings = {"gates": {}, "methods": {"encode": {"gates": gates}}}
    records = check_gates(settings, manifest(), None, {"methods": [run]}, baseline)
    return [record for record in records if record["method"] == "encode"]


def test_one_limit_holds_for_all_devices():
    fast, slow = check({"max_latency": 10}, {"native": NATIVE, "qemu:max": EMULATED})
    assert (fast["device"], fast["figure"], fast["ok"]) == ("native", 5.0, True)
    assert (slow["device"], slow["figure"], slow["ok"]) == ("qemu:max", 50.0, False)
    assert failed_gates([fast, slow]) == [
        "encode: median latency on qemu:max is 50 ms, at most 10 ms allowed"
    ]


def test_a_device_has_its_own_limit():
    [record] = check({"max_latency_p95": {"native": 7}}, {"native": NATIVE, "qemu:max": EMULATED})
    assert (record["figure"], record["limit"], record["ok"]) == (8.0, 7, False)


@pytest.mark.parametrize(("device", "figure"), [("native", 900), ("qemu:max", 123)])
def test_memory_of_an_emulator_is_what_the_runtime_allocated(device, figure):
    devices = {"native": NATIVE, "qemu:max": EMULATED}
    [record] = check({"max_peak_memory": {device: 1000}}, devices)
    assert record["figure"] == figure and record["ok"]


def test_a_device_that_the_package_is_not_run_on_is_a_failure():
    [record] = check({"max_load_time": {"pi5": 9}}, {"native": NATIVE})
    assert not record["ok"]
    assert record["sentence"] == "encode: max_load_time: validate.devices does not name pi5"
    [record] = check({"max_load_time": 9}, {})
    assert not record["ok"] and "name some in validate.devices" in record["sentence"]


def test_what_did_not_run_there_is_left_alone():
    absent = {"verdict": "not run", "reason": "cmake is not installed"}
    [record] = check({"max_latency": 9}, {"native": absent})
    assert record["ok"] and record["left_alone"] == "not run" and record["figure"] is None


@pytest.mark.parametrize(
    ("growth", "ok", "figure"),
    [(GROWTH, False, 0.2), (None, True, 0.0), ({"reason": "the store lost it"}, True, None)],
)
def test_growth_is_that_of_runs_in_turns(growth, ok, figure):
    """Without a growth record, both packages have the same bytes."""
    facts = NATIVE if growth is None else {**NATIVE, "growth": growth}
    baseline = make_figures(manifest())
    [record] = check({"max_latency_growth": 0.1}, {"native": facts}, baseline)
    assert (record["ok"], record["figure"]) == (ok, figure)
    [record] = check({"max_latency_growth": 0.1}, {"native": facts})
    assert record.get("left_alone") == ("not run" if figure is None else "no baseline")
