"""Repeats the calls of a validation on the devices that the config and its target name."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.devices.interface import Device, PackageFiles
from pipeline.devices.registry import devices
from pipeline.features.native.calls import CallLog, KeptCall
from pipeline.features.native.device import NativeDevice
from pipeline.features.native.device_failure import DeviceLocator
from pipeline.features.native.growth import measure_growth, open_accepted
from pipeline.features.native.repeats import find_repeats, repeat_calls
from pipeline.features.native.setups import EMULATED, find_setup, is_native
from pipeline.features.native.timing import DeviceTiming
from pipeline.features.native.verdicts import Json, MethodOnDevice, run_calls
from pipeline.program.inputs import InputSet
from pipeline.program.signature import flatten
from pipeline.report.verdicts import Verdict
from pipeline.run.prove.measuring import Measurement, Measuring
from pipeline.run.prove.subject import Subject
from pipeline.run.stages import Stages
from pipeline.store.errors import PipelineError, plural
from pipeline.validate.budget import Budget
from pipeline.validate.method_result import MethodValidation

FIELD = "devices"  # in the record of a method
# An emulator takes a hundred times as long as this machine; calls on examples come first.
_EMULATED_SECONDS = 8.0


class NativeMeasuring(Measuring):
    """Keeps the calls made on this machine, and repeats them on each device afterwards."""

    def __init__(self, subject: Subject, stages: Stages) -> None:
        super().__init__(subject, stages)
        named = getattr(subject.action.inputs.config.validation, FIELD)
        self._devices = tuple(dict.fromkeys([*named, *(subject.key[FIELD] or ())]))
        self._log = CallLog()
        self._verdicts: dict[str, Verdict] = {}
        self._locator = DeviceLocator(stages)
        settings = subject.settings
        self._timing = DeviceTiming(
            settings.device_calls, settings.device_warm_up, settings.device_pause
        )

    @property
    def watches_calls(self) -> bool:
        return bool(self._devices)

    def watch_call(
        self, result: MethodValidation, inputs: InputSet, expected: Sequence[Any]
    ) -> None:
        judged = (result.quantized_runs or result.runs)[-1]
        values = flatten(self.subject.programs[result.method], inputs)
        self._log.add(KeptCall(result.method, values, expected, judged, result.outputs))

    def after_run(self, measurement: Measurement) -> None:
        # Taken before any device fails a method: its failure must not affect the verdict of the
        # next device.
        for result in measurement.validation.methods:
            self._verdicts[result.method] = result.verdict
        for name in self._devices:
            with self.stages.stage("devices"):
                self._run_on(name, measurement)

    def _run_on(self, name: str, measurement: Measurement) -> None:
        """Run the package on a device, fail methods with wrong outputs, and record the results."""
        root = self.subject.workspace.root
        if is_native(name, root):
            setup = find_setup(name, root)
            if setup.problem:
                for result in measurement.validation.methods:
                    if _was_run(result):
                        self._record_not_run(result, name, setup.problem, measurement)
                return
        files = measurement.files
        results = measurement.validation.methods
        try:
            device = self._open(name)
        except PipelineError as error:
            # Unlike `setup.problem`, this isn't in the validation's key, so it can't be kept as
            # "not run".
            results[0].fail(f"can't run on {str(error).splitlines()[0]}")
            return
        started = time.perf_counter()
        budget = measurement.budget
        timing = self._timing
        if name.startswith(EMULATED):
            budget = Budget(min(_EMULATED_SECONDS, budget.left))
            # Emulated times don't predict those of a real processor, so a warm-up would be wasted.
            timing = DeviceTiming(timing.calls, 0, timing.pause)
        outcomes, left_out = run_calls(device, files, self._log, budget, timing)
        repeats = find_repeats(self.subject.settings.device_repeats, name)
        arguments = (device, files, self._log, outcomes, repeats, measurement.budget)
        unrepeated = repeat_calls(*arguments) if repeats else {}
        problem = device.problem if isinstance(device, NativeDevice) else ""
        self._close(device, files)
        if problem:
            # A lost board isn't the package's fault, and the next run tries again.
            results[0].fail(f"can't run on {name}: {problem}")
            return
        self._compare(name, device, measurement, outcomes)
        seconds = round(time.perf_counter() - started, 3)
        for result in results:
            outcome = outcomes.get(result.method)
            if outcome is not None and outcome.lacks:
                self._record_not_run(result, name, outcome.lacks, measurement)
            elif outcome is not None:
                facts = outcome.to_json(self._verdicts[result.method])
                _drop_emulator(name, facts["memory"])
                self._add(
                    measurement, result.method, name, facts | {"seconds": seconds}
                )
                place = ""
                if outcome.faults and self._verdicts[result.method] != "failed":
                    place = self._locator.locate(device, outcome, measurement)
                _fail(result, name, outcome, place)
                self._note_omissions(result, name)
            elif _was_run(result):
                reason = "calls of a method that samples are not repeated"
                if result.method in self._log.left_out:
                    reason = "its inputs and outputs are too large to keep"
                self._record_not_run(result, name, reason, measurement)
            if result.method in unrepeated:
                count = f"{unrepeated[result.method]} repeated calls"
                result.left_out.append(f"{count} on {name}")
            sequences = left_out.get(result.method, [])
            if measurement.budget.spent:
                result.left_out += [f"{where} on {name}" for where in sequences]
            elif sequences:
                count = plural(len(sequences), "sequence")
                reason = f"an emulated processor is given {_EMULATED_SECONDS:g} s"
                result.skipped.append((f"{count} on {name}", reason))

        self._close(device, files)

    def _compare(
        self,
        name: str,
        device: Device,
        measurement: Measurement,
        outcomes: Mapping[str, MethodOnDevice],
    ) -> None:
        """Run methods alternately with those of the baseline's package, if a gate limits growth."""
        accepted = (self.subject.key["devices"] or {}).get(name, {}).get("baseline")
        if accepted is None or not isinstance(device, NativeDevice):
            return
        files, reason = open_accepted(self.subject.workspace.store, accepted)
        timing = self._timing
        for sequence in self._log.first_sequences():
            method = sequence[0].method
            outcome = outcomes[method]
            if outcome.faults or outcome.lacks:
                continue
            outcome.growth = {"reason": reason}
            if files is not None:
                outcome.growth = measure_growth(
                    device, measurement.files, files, sequence, timing
                )
            if "reason" in outcome.growth:
                self._leave_unjudged(
                    method, name, outcome.growth["reason"], measurement
                )
        device.close(measurement.files)
        if files is not None:
            device.close(files)

    def _leave_unjudged(
        self, method: str, name: str, reason: str, measurement: Measurement
    ) -> None:
        facts = measurement.method_facts.setdefault(method, {})
        if facts.get("verdict", "passed") == "passed":
            words = f"growth since the baseline on {name}: {reason}"
            facts.update({"verdict": "not judged", "verdict_reason": words})

    def _note_omissions(self, result: MethodValidation, name: str) -> None:
        count = self._log.left_out.get(result.method)
        if count:
            reason = "their inputs and outputs are too large to keep"
            result.skipped.append((f"{count} calls on {name}", reason))

    def _open(self, name: str) -> Device:
        root = self.subject.workspace.root
        if is_native(name, root):
            return NativeDevice(name, root, self.subject.settings.timeout)
        return devices().get(name)

    def _close(self, device: Device, files: PackageFiles) -> None:
        if isinstance(device, NativeDevice):
            device.close(files)

    def _record_not_run(
        self, result: MethodValidation, name: str, reason: str, measurement: Measurement
    ) -> None:
        """Record that a method was not run on a device, which means that it has not passed."""
        facts = {"verdict": "not run", "reason": reason}
        self._add(measurement, result.method, name, facts)
        if result.ok:
            verdict = {
                "verdict": "not run",
                "verdict_reason": f"not run on {name}: {reason}",
            }
            measurement.method_facts[result.method].update(verdict)

    def _add(
        self, measurement: Measurement, method: str, name: str, facts: Json
    ) -> None:
        by_device = measurement.method_facts.setdefault(method, {}).setdefault(
            FIELD, {}
        )
        # The method's own verdict may become that of a device.
        by_device[name] = facts | {"verdict_here": self._verdicts[method]}


def _was_run(result: MethodValidation) -> bool:
    """Return whether this machine called a program's method, so that devices must call it too."""
    return result.kind == "program" and bool(result.runs or result.random)


def _drop_emulator(name: str, memory: dict[str, int]) -> None:
    """Drop an emulator's process figures, which are mostly the emulator's own memory."""
    if name.startswith(EMULATED):
        memory.pop("peak", None)
        memory.pop("at_start", None)


def _fail(
    result: MethodValidation, name: str, outcome: MethodOnDevice, where: str = ""
) -> None:
    """Fail a method for wrong outputs on a device.

    The message first says whether only this device is wrong and, if known, where in the method.
    """
    place = f"on {name}"
    if result.ok:
        place = f"on {name}, but not on this machine"
    if where:
        place += f", at {where}"
    for inputs, output, fault, ratio in outcome.faults:
        result.fail(f"{place}: {fault}", inputs, output, of_limit=ratio)
