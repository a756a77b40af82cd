"""Locates results of `torch.cond` that are lost before the package reads them.

The interpreter shares memory in the same way as the runtime. It therefore shows whether a result
that a plan may overwrite (`moments.Feature.find_lost_results`) is overwritten in the failed calls.
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
from pipeline.features.locating.records import CulpritRecord as Culprit
from pipeline.moments import call_all

# Each loss with the place of its `torch.cond` and a sentence, as a feature's `find_lost_results`
# returns them.
Losses = list[tuple[Any, int | None, str]]


def locate_lost_results(case: FailureCase) -> Iterator[Culprit]:
    """Yield a culprit for each result that is lost in the calls of a case."""
    losses = find_losses(case)
    if not losses:
        return
    loaded = load_methods(case.data, case.methods)
    lost: set[int] = set()
    for name, inputs in case.sequence:
        watched = losses if name == case.method else []
        lost |= _run_watched(case, loaded[name], inputs, watched)
    yield from name_conds(case, [loss for loss in losses if loss[0].value in lost])


def find_losses(case: FailureCase) -> Losses:
    """Return the results that the method's plan may lose."""
    plan = case.data.plans[case.method]
    places = case.lowered.instructions.places
    program = case.lowered.program
    return next(call_all("find_lost_results", plan, places, program), [])


def name_conds(case: FailureCase, losses: Losses) -> Iterator[Culprit]:
    """Yield a culprit for each `torch.cond` with lost results."""
    conds = {place: (loss, sentence) for loss, place, sentence in losses[::-1]}
    for place, (loss, lost) in reversed(conds.items()):
        spot = case.find_runner(place) if place is not None else case.find(loss.move)
        where = case.describe(spot, "torch.cond")
        sentence = f"first divergence: {where}: {lost}"
        yield case.culprit(spot, "operator", sentence)


def _run_watched(
    case: FailureCase,
    method: InterpretedMethod,
    inputs: Sequence[Any],
    losses: Losses,
) -> set[int]:
    """Make a call; return the values of losses that changed before they were read."""
    instructions = get_instructions(method.plan)
    handed: dict[int, Any] = {}
    results = [loss for loss, _, _ in losses]
    lost = {loss.value for loss in results if loss.lost_at is None}
    for number in steps(method, inputs):
        case.budget.check()
        call = instructions[number].instr_args
        for loss in results:
            if isinstance(call, schema.MoveCall) and call.move_to == loss.value:
                handed[loss.value] = read_value(method, loss.value)
            elif loss.value in handed and number <= _last_overwriting(loss):
                now = read_value(method, loss.value)
                lost |= set() if _same(handed[loss.value], now) else {loss.value}
    return lost


def _last_overwriting(loss: Any) -> int:
    """Return the last instruction that may overwrite a result before it is read.

    In a loop, which reads the result again, this instruction may come after the reader.
    """
    return max(loss.read_at - 1, loss.lost_at or 0)


def _same(earlier: Any, later: Any) -> bool:
    if isinstance(earlier, torch.Tensor) and isinstance(later, torch.Tensor):
        return earlier.shape == later.shape and torch.equal(
            earlier.nan_to_num(), later.nan_to_num()
        )
    return bool(earlier == later)
