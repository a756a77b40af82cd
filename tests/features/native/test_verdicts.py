"""A device must meet the limits that each call met on this machine, call by call."""

import pytest
import torch

from pipeline.config.validation import Limits
from pipeline.devices.interface import Device, DeviceError, PackageFiles
from pipeline.features.native.calls import CallLog, KeptCall
from pipeline.features.native.measuring import _fail
from pipeline.features.native.verdicts import run_calls
from pipeline.validate.budget import Budget
from pipeline.validate.method_result import MethodValidation, describe_failure
from pipeline.validate.runs import JudgedCall

X = torch.tensor([1.0, 2.0])
FILES = PackageFiles("some.pte", b"")


class Doubler(Device):
    """Doubles its input, accumulates earlier inputs, and is off by `error`."""

    def __init__(self, error=0.0, reason=""):
        self.error = error
        self.reason = reason
        self.loads = 0

    def load(self, files, method):
        self.loads += 1
        if self.reason:
            raise DeviceError(f"{files.name}: ", self.reason)
        return [torch.zeros(2)]

    def call(self, loaded, values):
        loaded[0] = loaded[0] + values[0] * 2
        return [loaded[0] + self.error]


class Drifter(Doubler):
    """Is off by a different error in each call."""

    def __init__(self, *errors):
        super().__init__()
        self.errors = list(errors)

    def call(self, loaded, values):
        self.error = self.errors.pop(0)
        return super().call(loaded, values)


def keep(*steps, method="double"):
    """Keep calls of one sequence; with step 0, of a method that starts afresh at each call."""
    log = CallLog()
    for step in steps:
        judged = JudgedCall("example 0", (), step, "example 0", limits=(Limits(atol=0.01),))
        expected = [X * 2 * max(step, 1)]
        log.add(KeptCall(method, [X], expected, judged, ["[0]"]))
    return log


def run(device, log):
    outcomes, left_out = run_calls(device, FILES, log, Budget())
    assert not left_out
    return outcomes["double"]


def test_what_is_within_its_limits_passes():
    outcome = run(Doubler(0.005), keep(0))
    record = outcome.to_json("passed")
    assert record["verdict"] == "passed" and record["calls"] == 1
    assert record["of_limit"] == pytest.approx(0.5, rel=0.01)
    assert record["worst"] == "example 0"
    assert record["load_ms"] >= 0 and record["run_ms"] > 0


def test_what_is_not_judged_here_is_not_judged_there():
    assert run(Doubler(), keep(0)).to_json("not judged")["verdict"] == "not judged"


def test_what_one_device_alone_gets_wrong_names_it():
    outcome = run(Doubler(0.02), keep(0))
    assert outcome.to_json("passed")["verdict"] == "failed"
    result = MethodValidation("double")
    _fail(result, "qemu:max", outcome)
    [failure] = result.failures
    assert describe_failure(failure).startswith(
        "double: example 0, [0]: on qemu:max, but not on this machine: absolute error 0.02"
    )
    assert failure["of_limit"] == pytest.approx(2, rel=0.01)
    _fail(result, "native", outcome)
    assert ": on native: absolute error" in describe_failure(result.failures[-1])


def test_state_goes_on_within_a_sequence():
    device = Doubler()
    outcome = run(device, keep(1, 2, 3))
    assert not outcome.faults and outcome.calls == 3 and device.loads == 1
    again = keep(1, 2)
    again.sequences += keep(1).sequences
    assert not run(device, again).faults and device.loads == 3


def test_what_a_device_refuses_is_a_fault_of_the_method():
    outcome = run(Doubler(reason="does not load: out of memory (0x21)"), keep(0))
    assert outcome.faults == [("example 0", "", "does not load: out of memory (0x21)", None)]


def test_a_device_that_lacks_a_backend_is_no_fault():
    reason = "does not load: missing backend (0x20); Backend AcmeBackend is not registered"
    outcome = run(Doubler(reason=reason), keep(0))
    assert not outcome.faults and outcome.lacks == "its runner has no backend AcmeBackend"


def test_a_spent_budget_leaves_sequences_out():
    """Each method's first sequence stays, since the method would otherwise have no verdict."""
    log = keep(0, 0, 0)
    log.sequences += keep(0, 0, method="other").sequences
    outcomes, left_out = run_calls(Doubler(), FILES, log, Budget(1e-9))
    assert left_out == {"double": ["example 0", "example 0"], "other": ["example 0"]}
    assert outcomes["double"].calls == outcomes["other"].calls == 1


def test_the_worst_calls_are_those_that_are_looked_into():
    """They end with the call that exceeds its limits most, and start from its state."""
    log = keep(1, 2)
    log.sequences += keep(1).sequences
    for errors, steps in (((0.02, 0.06, 0.04), [1, 2]), ((0, 0.02, 0.04), [1])):
        outcome = run(Drifter(*errors), log)
        assert [call.judged.step for call in outcome.failing] == steps
    assert not run(Doubler(), log).failing
