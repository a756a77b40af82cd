"""Repeats calls on a device with the same inputs, to find outputs that differ between calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.devices.interface import Device, DeviceError, PackageFiles
from pipeline.features.native.calls import CallLog, KeptCall
from pipeline.features.native.verdicts import Fault, MethodOnDevice, find_faults
from pipeline.validate.budget import Budget


def find_repeats(repeats: int | Mapping[str, int] | None, device: str) -> int:
    """Return how many calls `validate.device_repeats` asks for on a device, or 0 for none."""
    if isinstance(repeats, Mapping):
        return repeats.get(device, 0)
    return repeats or 0


def repeat_calls(
    device: Device,
    files: PackageFiles,
    log: CallLog,
    outcomes: Mapping[str, MethodOnDevice],
    count: int,
    budget: Budget,
) -> dict[str, int]:
    """Call each stateless method `count` times on its first inputs.

    Add to its outcome how many calls return other bytes than the first, and a fault if such outputs
    exceed their limits.


    Returns:
        By method, the number of calls that didn't fit into the budget.
    """
    left_out: dict[str, int] = {}
    for sequence in log.first_sequences():
        call = sequence[0]
        outcome = outcomes[call.method]
        if call.judged.step or outcome.lacks or outcome.lacks_operators:
            continue
        calls = _repeat(device, files, call, outcome, count, budget)
        if calls < count:
            left_out[call.method] = count - calls
    return left_out


def _repeat(
    device: Device,
    files: PackageFiles,
    call: KeptCall,
    outcome: MethodOnDevice,
    count: int,
    budget: Budget,
) -> int:
    """Repeat one call until the budget is spent, and return how many calls were made."""
    first: list[Any] = []
    first_faults: list[Fault] = []
    shown_faults: list[Fault] = []
    wrong = 0
    number = 0
    try:
        loaded = device.load(files, call.method)
        while number < count and not budget.spent:
            number += 1
            outputs = device.call(loaded, call.values)
            if number == 1:
                first = outputs
                first_faults, _ = find_faults(call, first)
            faults = first_faults
            if not _are_same(outputs, first):
                outcome.differing += 1
                faults, _ = find_faults(call, outputs)
            wrong += bool(faults)
            shown_faults = shown_faults or faults
    except DeviceError as error:
        reason = f"call {number} of {count} on the same inputs: {error.reason}"
        outcome.faults.append((call.where, "", reason, None))
        return count
    outcome.repeats += number
    if wrong and (wrong < number or not outcome.faults):
        _, output, fault, ratio = shown_faults[0]
        sentence = f"wrong in {wrong} of {number} calls on the same inputs: {fault}"
        outcome.faults.append((call.where, output, sentence, ratio))
        if not outcome.failing:
            outcome.failing = [call]
            outcome.attempts = number
    return number


def _are_same(outputs: Sequence[Any], first: Sequence[Any]) -> bool:
    """Return whether outputs have the same bytes."""
    if len(outputs) != len(first):
        return False
    for output, reference in zip(outputs, first, strict=True):
        if isinstance(output, torch.Tensor) and isinstance(reference, torch.Tensor):
            same_kind = (output.dtype, output.shape) == (
                reference.dtype,
                reference.shape,
            )
            if not same_kind or not torch.equal(
                _bytes_of(output), _bytes_of(reference)
            ):
                return False
        elif output != reference:
            return False
    return True


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
