"""Locates results of `torch.cond` that are gone when the package reads them.

The interpreter shares memory as the runtime does, so it shows whether a result that a plan may
overwrite (`program/lost_results.py`) is overwritten in the calls that failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from executorch.exir import schema

from pipeline.features.locating.case import FailureCase, load_methods
from pipeline.features.locating.interpreter.execute import read_value, steps
from pipeline.features.locating.interpreter.load import (
    InterpretedMethod,
    get_instructions,
)
from pipeline.program.lost_conds import find_cond
from pipeline.program.lost_results import LostResult, describe_loss, find_lost_results
from pipeline.report.method_records import CulpritRecord as Culprit


def locate_lost_results(case: FailureCase) -> Iterator[Culprit]:
    """Yield the results that are lost in the calls of a case."""
    losses = find_losses(case)
    if not losses:
        return
    loaded = load_methods(case.data, case.methods)
    lost: set[int] = set()
    for name, inputs in case.sequence:
        watched = losses if name == case.method else []
        lost |= _run_watched(case, loaded[name], inputs, watched)
    yield from name_conds(case, [loss for loss in losses if loss.value in lost])


def find_losses(case: FailureCase) -> list[LostResult]:
    """Return the results that the plan of the method may lose."""
    return find_lost_results(case.data.plans[case.method])


def name_conds(case: FailureCase, losses: Sequence[LostResult]) -> Iterator[Culprit]:
    """Yield a culprit for each `torch.cond` with lost results."""
    plan = case.data.plans[case.method]
    places = case.lowered.instructions.places
    conds = {
        find_cond(loss, plan, places, case.lowered.program): loss
        for loss in losses[::-1]
    }
    for place, loss in reversed(conds.items()):
        spot = case.find_runner(place) if place is not None else case.find(loss.move)
        where = case.describe(spot, "torch.cond")
        sentence = f"first departs: {where}: {describe_loss(loss)}"
        yield case.culprit(spot, "operator", sentence)


def _run_watched(
    case: FailureCase,
    method: InterpretedMethod,
    inputs: Sequence[Any],
    losses: Sequence[LostResult],
) -> set[int]:
    """Make a call; return the values of losses that changed before they were read."""
    instructions = get_instructions(method.plan)
    handed: dict[int, Any] = {}
    lost = {loss.value for loss in losses if loss.lost_at is None}
    for number in steps(method, inputs):
        case.budget.check()
        call = instructions[number].instr_args
        for loss in losses:
            if isinstance(call, schema.MoveCall) and call.move_to == loss.value:
                handed[loss.value] = read_value(method, loss.value)
            elif loss.value in handed and number <= _last_overwriting(loss):
                now = read_value(method, loss.value)
                lost |= set() if _same(handed[loss.value], now) else {loss.value}
    return lost


def _last_overwriting(loss: LostResult) -> int:
    """Return the last instruction that may overwrite a result before it is read; in a loop, which
    reads it again, that may stand behind the reader."""
    return max(loss.read_at - 1, loss.lost_at or 0)


def _same(earlier: Any, later: Any) -> bool:
    if isinstance(earlier, torch.Tensor) and isinstance(later, torch.Tensor):
        return earlier.shape == later.shape and torch.equal(
            earlier.nan_to_num(), later.nan_to_num()
        )
    return bool(earlier == later)
