"""Runs kept calls on a device, and judges each by the limits that applied on this machine."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from pipeline.devices.interface import Device, DeviceError, PackageFiles
from pipeline.features.native.calls import CallLog, KeptCall
from pipeline.features.native.device import LoadedMethods, NativeDevice
from pipeline.features.native.kernel_libraries import explain_missing
from pipeline.features.native.timing import DeviceTiming, find_median, find_p95
from pipeline.validate.budget import Budget
from pipeline.validate.limits import judge_output
from pipeline.validate.metrics import compare, json_number

Json = dict[str, Any]
# The call, the output, the fault, and the ratio of the error to its limit.
Fault = tuple[str, str, str, float | None]
_LACKS_BACKEND = re.compile(r"Backend (\w+) is not registered")


class MethodOnDevice:
    """The results of one method's calls on one device: faults, errors, times, memory.

    Attributes:
        faults: for each fault, the call, the output, a description, and the ratio of the error to
            its limit (None if it has no limit).
        of_limit: the largest such ratio of all outputs; `worst` is the call that has it.
        differing: how many of `repeats` calls returned other bytes than the first on the same
            inputs.
        lacks: why the device can't run the method, or "" if it can: the runtime lacks a delegate's
            backend, or a kernel. A kernel missing from a runner that the user named is a fault
            instead.
        lacks_operators: whether the runtime lacks a kernel for an operator, so that nothing was
            run.
        timed_ms: the milliseconds of each call after the warm-up; `run_ms` has all other calls.
        failing: the calls of a sequence up to the one that exceeds its limits most; empty if none
            does.
        attempts: how often to repeat these calls, at most, until the failure occurs again.
        growth: the comparison with the baseline's package, or None if they were not compared.
        memory: bytes by kind (`process.MEMORY`).
    """

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.calls = 0
        self.of_limit: float | None = None
        self.worst = ""
        self.load_ms: list[float] = []
        self.run_ms: list[float] = []
        self.timed_ms: list[float] = []
        self.lacks = ""
        self.lacks_operators = False
        self.repeats = 0
        self.differing = 0
        self.memory: dict[str, int] = {}
        self.growth: Json | None = None
        self.failing: Sequence[KeptCall] = ()
        self.attempts = 1
        self._worst_fault = 0.0

    def judge(self, call: KeptCall, outputs: Sequence[Any]) -> None:
        """Judge the outputs of a call by its limits."""
        self.calls += 1
        faults, ratio = find_faults(call, outputs)
        self.faults += faults
        if ratio is not None and (self.of_limit is None or ratio > self.of_limit):
            self.of_limit = ratio
            self.worst = call.where

    def note_failing(self, calls: Sequence[KeptCall], first_fault: int) -> None:
        """Keep `calls` as the failing ones if the faults of the last call are the worst so far.

        These are the faults from index `first_fault` on.
        """
        ratios = [ratio for *_, ratio in self.faults[first_fault:]]
        worst = max((math.inf if r is None else r for r in ratios), default=0.0)
        if worst > self._worst_fault:
            self._worst_fault = worst
            self.failing = calls

    def to_json(self, verdict: str) -> Json:
        """Return the record of the method; its verdict is `verdict` unless there are faults."""
        times = self.timed_ms or self.run_ms
        facts = {
            "verdict": "failed" if self.faults else verdict,
            "calls": self.calls,
            "of_limit": json_number(self.of_limit),
            "worst": self.worst,
            "load_ms": find_median(self.load_ms),
            "run_ms": find_median(times),
            "p95_ms": find_p95(times),
            "timed": len(times),
            "repeats": self.repeats,
            "differing": self.differing,
            "memory": self.memory,
            "reason": self.faults[0][2] if self.faults else "",
        }
        if self.growth is not None:
            facts["growth"] = self.growth
        return facts


def find_faults(
    call: KeptCall, outputs: Sequence[Any]
) -> tuple[list[Fault], float | None]:
    """Return the faults of a call's outputs, and the largest ratio of an error to its limit.

    The ratio is None if no output has a limit.
    """
    if len(outputs) != len(call.expected):
        fault = f"returns {len(outputs)} outputs, must return {len(call.expected)}"
        return [(call.where, "", fault, None)], None
    faults: list[Fault] = []
    worst = None
    values = zip(call.outputs, outputs, call.expected, call.judged.limits, strict=True)
    for name, actual, expected, limits in values:
        error = compare(actual, expected)
        sentences, ratio = judge_output(error, actual, expected, limits)
        faults += [(call.where, name, sentence, ratio) for sentence in sentences]
        if ratio is not None and (worst is None or ratio > worst):
            worst = ratio
    return faults, worst


def run_calls(
    device: Device,
    files: PackageFiles,
    log: CallLog,
    budget: Budget,
    timing: DeviceTiming | None = None,
) -> tuple[dict[str, MethodOnDevice], dict[str, list[str]]]:
    """Run kept calls on a device: the first ones of each method always, others within the budget.

    Returns:
        The outcome of each method that was called on this machine; and by method, the sequences
        that begin with it and that the budget left no time for.
    """
    timing = timing or DeviceTiming()
    methods = {name: MethodOnDevice() for name in log.methods()}
    stateless: dict[str, Any] = {}
    left_out: dict[str, list[str]] = {}
    _find_missing_operators(device, files, methods)
    for sequence in _take_turns(log.sequences):
        if any(methods[call.method].lacks_operators for call in sequence):
            continue
        was_called = all(methods[call.method].calls for call in sequence)
        if budget.spent and was_called:
            left_out.setdefault(sequence[0].method, []).append(sequence[0].where)
            continue
        # Calls that only measure time are the first to be dropped when the budget is short.
        fitting = None if budget.spent else timing
        _run_sequence(device, files, sequence, methods, stateless, fitting)
    return methods, left_out


def _find_missing_operators(
    device: Device, files: PackageFiles, methods: dict[str, MethodOnDevice]
) -> None:
    """Record which methods call operators that the device's runtime hasn't registered.

    This happens before any call.

    Such a method fails if the user named the runner, since that runner represents the runtime of
    the app.
    """
    if not isinstance(device, NativeDevice):
        return
    for name, method in methods.items():
        try:
            operators = find_missing_operators(device, files, name)
        except DeviceError:  # the calls then fail for the same reason
            return
        method.lacks_operators = bool(operators)
        if operators and not device.setup.runner:
            problem = device.kernel_problem
            method.lacks = explain_missing(device.setup, operators, problem)
            continue
        for operator in operators:
            fault = f"its runtime has no kernel for {operator}"
            method.faults.append(("", "", fault, None))


def find_missing_operators(
    device: NativeDevice, files: PackageFiles, method: str
) -> list[str]:
    """Return the operators of a method that the device's runtime hasn't registered.

    Raises DeviceError if the runner fails.
    """
    registered = set(device.list_operators(files))
    plan = files.plans.get(method)
    operators = dict.fromkeys(plan.operators if plan else ())
    return [operator for operator in operators if operator not in registered]


def _take_turns(sequences: Sequence[list[KeptCall]]) -> list[list[KeptCall]]:
    """Return the sequences reordered so that methods take turns and share a short budget evenly."""
    counts: Counter[str] = Counter()
    turns = []
    for sequence in sequences:
        method = sequence[0].method
        turns.append((counts[method], sequence))
        counts[method] += 1
    turns.sort(key=itemgetter(0))
    return [sequence for _, sequence in turns]


def _run_sequence(
    device: Device,
    files: PackageFiles,
    sequence: Sequence[KeptCall],
    methods: dict[str, MethodOnDevice],
    stateless: dict[str, Any],
    timing: DeviceTiming | None,
) -> None:
    """Run the calls of a sequence; the first call that raises an error ends it."""
    names = list(dict.fromkeys(call.method for call in sequence))
    has_state = bool(sequence[0].judged.step)
    current = sequence[0]
    try:
        loaded = _load(device, files, names, methods, None if has_state else stateless)
        for number, call in enumerate(sequence, 1):
            current = call
            method = methods[call.method]
            faults = len(method.faults)
            _make_call(device, loaded[call.method], call, method)
            method.note_failing(sequence[:number], faults)
        if not has_state:
            _time_calls(loaded[names[0]], sequence[0], methods[names[0]], timing)
    except DeviceError as error:
        stateless.pop(current.method, None)
        backend = _LACKS_BACKEND.search(error.reason)
        if backend:
            for name in names:
                methods[name].lacks = f"its runner has no backend {backend[1]}"
        else:
            methods[current.method].faults.append(
                (current.where, "", error.reason, None)
            )


def _load(
    device: Device,
    files: PackageFiles,
    names: Sequence[str],
    methods: dict[str, MethodOnDevice],
    stateless: dict[str, Any] | None,
) -> dict[str, Any]:
    """Load the methods of a sequence; a stateless method is loaded once for all its calls."""
    if stateless is not None and names[0] in stateless:
        return stateless
    started = time.perf_counter()
    if len(names) > 1:
        loaded = device.load_together(files, names)
    else:
        loaded = {names[0]: device.load(files, names[0])}
    milliseconds = (time.perf_counter() - started) * 1e3
    if _is_ours(loaded[names[0]]):
        milliseconds = loaded[names[0]][0].load_ms
    for name in names:
        methods[name].load_ms.append(milliseconds)
    if stateless is not None:
        stateless.update(loaded)
    return loaded


def _make_call(
    device: Device, loaded: Any, call: KeptCall, method: MethodOnDevice
) -> None:
    started = time.perf_counter()
    if _is_ours(loaded):
        methods, name = loaded
        outputs, times, _ = methods.call(name, call.values)
        method.run_ms += times
        if not method.memory or call.judged.step:
            method.memory = methods.measure_memory()
    else:
        outputs = device.call(loaded, call.values)
        method.run_ms.append((time.perf_counter() - started) * 1e3)
    method.judge(call, outputs)


def _time_calls(
    loaded: Any, call: KeptCall, method: MethodOnDevice, timing: DeviceTiming | None
) -> None:
    """Repeat a call on the same inputs, to time it and to find outputs that differ."""
    if timing is None or method.repeats or not _is_ours(loaded) or not method.run_ms:
        return
    methods, name = loaded
    calls = timing.count_calls(method.run_ms[-1])
    warm_up = min(timing.warm_up, calls)
    _, times, differing = methods.call(name, call.values, calls, warm_up, timing.pause)
    method.timed_ms = times
    method.repeats = calls
    method.differing = differing
    method.memory = methods.measure_memory()


def _is_ours(loaded: Any) -> bool:
    """Return whether a native device loaded the method.

    If so, it times calls and measures memory.
    """
    return isinstance(loaded, tuple) and isinstance(loaded[0], LoadedMethods)
