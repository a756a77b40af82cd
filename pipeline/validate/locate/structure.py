"""Recognizes what is right in itself but stands in the wrong place: methods under each other's
names, outputs in another order, state that is not kept or not given back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from pipeline.program.signature import signature
from pipeline.report.records import CulpritKind
from pipeline.validate.locate.node_values import NodeValues

Call = Sequence[Any]  # flat inputs
Agree = Callable[[Any, Any], bool]


@dataclass(frozen=True)
class Finding:
    """`kind` is `order` or `state`; `what` the predicate of a sentence about the method."""

    kind: CulpritKind
    what: str


def findings(
    method: str,
    programs: Mapping[str, ExportedProgram],
    calls: Sequence[Call],
    given: Sequence[Sequence[Any]],
    agree: Agree,
) -> list[Finding]:
    """What explains all that a method gave.

    Args:
        programs: of all methods.
        calls: flat inputs, of one sequence from the initial state on.
        given: what the package gave for each.
        agree: whether two outputs are as near as the method's limits ask.
    """
    own = programs[method]
    expected = _outputs(own, calls)
    if _same(given, expected, agree):
        return []
    if found := _other_method(method, programs, calls, given, expected, agree):
        return [found]
    if found := _other_order(given, expected, agree):
        return [found]
    found = _other_state(own, calls, given, expected, agree)
    return [found] if found else []


def _outputs(program: ExportedProgram, calls: Sequence[Call]) -> list[list[Any]]:
    source = NodeValues(program)
    return [source.call(inputs, ()) for inputs in calls]


def _same(given: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]], agree: Agree) -> bool:
    return all(_one(a, e, agree) for a, e in zip(given, expected, strict=True))


def _one(actual: Sequence[Any], expected: Sequence[Any], agree: Agree) -> bool:
    return len(actual) == len(expected) and all(
        agree(a, e) for a, e in zip(actual, expected, strict=True)
    )


def _other_method(
    method: str,
    programs: Mapping[str, ExportedProgram],
    calls: Sequence[Call],
    given: Sequence[Sequence[Any]],
    expected: Sequence[Sequence[Any]],
    agree: Agree,
) -> Finding | None:
    for name, program in programs.items():
        if name == method or not takes(program, calls[0]):
            continue
        try:
            others = _outputs(program, calls)
        except Exception:  # another method need not take these values
            continue
        if _same(given, others, agree) and not _same(others, expected, agree):
            return Finding("order", f"gives what '{name}' of the source gives")
    return None


def takes(program: ExportedProgram, inputs: Call) -> bool:
    """Whether a program's signature has room for flat inputs, dynamic sizes aside."""
    wanted = [argument.value for argument in signature(program)]
    return len(wanted) == len(inputs) and all(map(_fits, inputs, wanted))


def _fits(value: Any, wanted: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return isinstance(value, torch.Tensor) is isinstance(wanted, torch.Tensor)
    return (
        value.dtype == wanted.dtype
        and value.ndim == wanted.ndim
        and all(
            size == other
            for size, other in zip(value.shape, wanted.shape, strict=True)
            if isinstance(other, int)
        )
    )


def _other_order(
    given: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]], agree: Agree
) -> Finding | None:
    """Outputs that are another one's, or are not there."""
    count, wanted = len(given[0]), len(expected[0])
    order: list[int] = []
    for n in range(count):
        fits = [
            m
            for m in range(wanted)
            if m not in order
            and all(agree(a[n], e[m]) for a, e in zip(given, expected, strict=True))
        ]
        if not fits:
            return None
        order.append(n if n in fits else fits[0])
    if count < wanted:
        lost = ", ".join(str(m) for m in range(wanted) if m not in order)
        return Finding("order", f"lacks output {lost} of {wanted}; the others are right")
    if count == wanted and order != list(range(wanted)):
        told = ", ".join(map(str, order))
        return Finding("order", f"has its outputs in another order: {told}")
    return None


def _other_state(
    program: ExportedProgram,
    calls: Sequence[Call],
    given: Sequence[Sequence[Any]],
    expected: Sequence[Sequence[Any]],
    agree: Agree,
) -> Finding | None:
    source = NodeValues(program)
    if not source.state():
        return None
    if len(calls) > 1 and _same(given, [_outputs(program, [c])[0] for c in calls], agree):
        return Finding("state", "does not carry its state from call to call")
    for buffer in source.state().values():
        buffer.zero_()
    zeros = [source.call(inputs, ()) for inputs in calls]
    if _same(given, zeros, agree) and not _same(zeros, expected, agree):
        nonzero = [n for n, t in NodeValues(program).state().items() if bool(t.any())]
        told = ", ".join(f"'{name}'" for name in nonzero)
        return Finding("state", f"begins with {told} zero, where the source begins with values")
    begun = NodeValues(program)
    for before in range(1, len(calls) + 1):
        begun.call(calls[(before - 1) % len(calls)], ())
        late = NodeValues(program)
        for name, tensor in late.state().items():
            tensor.copy_(begun.state()[name])
        if _same(given, [late.call(inputs, ()) for inputs in calls], agree):
            return Finding("state", f"begins with the state of {before} calls before")
    return None
