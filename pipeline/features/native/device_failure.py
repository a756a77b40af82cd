"""Calls with wrong outputs on a device: repeats them to record outputs and intermediate values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.devices.interface import Device, PackageFiles
from pipeline.features.native.calls import KeptCall
from pipeline.features.native.device import NativeDevice
from pipeline.features.native.process import VALUES
from pipeline.features.native.recorded_values import (
    ExecutedInstruction,
    read_executions,
)
from pipeline.features.native.verdicts import MethodOnDevice, find_faults
from pipeline.moments import call_all
from pipeline.run.prove.measuring import Measurement
from pipeline.run.stages import Stages
from pipeline.validate.budget import OF_LOCATING, Budget


class DeviceFailure:
    """A sequence of calls on a device, the last of which has wrong outputs.

    Attributes:
        device: the name of the device.
        method: the method of the last call.
        calls: the method and the flat inputs of each call.

    Args:
        attempts: how often to repeat the sequence, at most, until its last call is wrong again.
    """

    def __init__(
        self,
        device: NativeDevice,
        files: PackageFiles,
        calls: Sequence[KeptCall],
        attempts: int = 1,
    ) -> None:
        self._device = device
        self._files = files
        self._last = calls[-1]
        self._attempts = attempts
        self.device = device.name
        self.method = calls[-1].method
        self.calls = [(call.method, call.values) for call in calls]

    def record(
        self, budget: Budget
    ) -> tuple[list[Any], list[list[ExecutedInstruction]]] | None:
        """Repeat the calls on the device until the last one is wrong again.

        Returns:
            The outputs of the last call and the instructions of each call, or None if the last call
            was right in all attempts.

        Raises:
            DeviceError: the device refuses a call.
            OutOfTimeError: the budget ran out before the last call was wrong again.
            PipelineError: the device's recording can't be read.
        """
        names = list(dict.fromkeys(method for method, _ in self.calls))
        for _ in range(self._attempts):
            budget.check()
            loaded = self._device.load_traced(self._files, names, VALUES)
            outputs: list[Any] = []
            for method, values in self.calls:
                outputs, _, _ = loaded.call(method, values)
            faults, _ = find_faults(self._last, outputs)
            if faults:
                return outputs, read_executions(*loaded.take_trace())
            loaded.close()
        return None

    def run_package(
        self, files: PackageFiles, method: str, inputs: Sequence[Any]
    ) -> list[Any]:
        """Run a method of another package once on the device. Raises DeviceError if it fails."""
        try:
            return self._device.call(self._device.load(files, method), inputs)
        finally:
            self._device.close(files)


class DeviceLocator:
    """Asks other features where a package goes wrong on devices.

    All devices share one time limit: the share of `validate.budget` that is reserved for locating
    failures, or the remaining budget if it is longer.
    """

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._budget: Budget | None = None

    def locate(
        self, device: Device, outcome: MethodOnDevice, measurement: Measurement
    ) -> str:
        """Return briefly where a method goes wrong on a device, or "" if unknown.

        Adds the details to the method's record.
        """
        if not outcome.failing:  # the device refused a call, and the error says why
            return ""
        method = outcome.failing[-1].method
        facts = measurement.method_facts.setdefault(method, {})
        if not isinstance(device, NativeDevice):
            reason = "the diverging operator can't be found on a plugin's device"
            facts.setdefault("culprit_notes", []).append(f"{method}: {reason}")
            return ""
        failure = DeviceFailure(
            device, measurement.files, outcome.failing, outcome.attempts
        )
        place = ""
        with self._stages.stage("locate"):
            budget = self._open_budget(measurement)
            arguments = (measurement, failure, budget)
            for culprits, notes in call_all("locate_on_device", *arguments):
                facts.setdefault("culprits", []).extend(culprits)
                facts.setdefault("culprit_notes", []).extend(notes)
                if culprits:
                    place = _describe_place(culprits[0])
        return place

    def _open_budget(self, measurement: Measurement) -> Budget:
        if self._budget is None:
            share = measurement.subject.settings.budget * OF_LOCATING
            self._budget = Budget(max(measurement.budget.left, share))
        return self._budget


def _describe_place(culprit: Mapping[str, Any]) -> str:
    place = " in ".join(filter(None, (culprit["operator"], culprit["module"])))
    if not place and culprit["backend"]:
        place = f"{culprit['backend']}'s delegate {culprit['partition']}"
    return place or culprit["kernel"]
