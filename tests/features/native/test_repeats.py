"""Outputs that differ from run to run are counted, and fail if they exceed their limits."""

import pytest

from pipeline.features.native.repeats import find_repeats, repeat_calls
from pipeline.features.native.verdicts import run_calls
from pipeline.validate.budget import Budget
from tests.features.native.test_devices import plan_of  # noqa: F401 - a fixture
from tests.features.native.test_verdicts import FILES, Drifter, keep


def repeat(errors, count, budget=None, steps=(0,)):
    """Return the outcome of a judged call and its repetitions with these errors, and the omissions.

    The device accumulates its results, so each call is made on a freshly loaded method.
    """
    device = Drifter(0.0, *errors)
    device.call = lambda loaded, values: Drifter.call(device, device.load(FILES, ""), values)
    log = keep(*steps)
    outcomes, _ = run_calls(device, FILES, log, Budget())
    left_out = repeat_calls(device, FILES, log, outcomes, count, budget or Budget())
    return outcomes["double"], left_out


def test_what_differs_within_its_limits_is_counted():
    outcome, left_out = repeat([0, 0, 0.005, 0, 0.005], 5)
    assert (outcome.repeats, outcome.differing) == (5, 2)
    assert not outcome.faults and not outcome.failing and not left_out


def test_what_is_wrong_in_some_runs_fails():
    outcome, _ = repeat([0, 0.5, 0, 0.02], 4)
    assert (outcome.repeats, outcome.differing) == (4, 2)
    [(where, output, fault, ratio)] = outcome.faults
    assert (where, output) == ("example 0", "[0]")
    assert fault.startswith("wrong in 2 of 4 calls on the same inputs: absolute error 0.5 ")
    assert ratio == pytest.approx(50, rel=0.01)
    assert [call.where for call in outcome.failing] == ["example 0"] and outcome.attempts == 4


def test_nan_is_the_same_in_each_run():
    outcome, _ = repeat([float("nan")] * 3, 3)
    assert outcome.differing == 0
    assert "wrong in 3 of 3 calls" in outcome.faults[0][2]


def test_what_there_was_no_time_for_is_told():
    outcome, left_out = repeat([], 5, Budget(1e-9))
    assert left_out == {"double": 5} and outcome.repeats == 0


def test_methods_with_state_are_not_repeated():
    outcome, left_out = repeat([], 5, steps=(1,))
    assert outcome.repeats == 0 and not left_out


def test_how_many_by_device(plan_of):  # noqa: F811 - a fixture
    assert find_repeats(None, "native") == find_repeats({"pi5": 3}, "native") == 0
    assert find_repeats(3, "native") == find_repeats({"native": 3}, "native") == 3
    assert not plan_of("[native], device_repeats: {native: 9}").problems("one")
    [problem] = plan_of("[native], device_repeats: {nativ: 9}").problems("one")
    assert problem.path == "validate.device_repeats"
    assert "validate.devices does not name 'nativ'" in str(problem) and "'native'" in str(problem)
