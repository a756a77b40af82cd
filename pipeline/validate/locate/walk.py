"""Walks a method of a package, instruction by instruction, beside the program that it came from.

The interpreter runs the very bytes of the package; the source program runs node by node. An
instruction that gives the value of a node (`instructions.Instructions`) is compared with it. The
first one that departs, and whose departure goes on to an output that fails, is the culprit: all
that it was given still agreed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.fx import Node

from pipeline.backends.delegate_runtime import DelegateError
from pipeline.compile.emit_trace import Instructions
from pipeline.devices.interpreter.execute import given_by, steps, value_of
from pipeline.devices.interpreter.load import Method
from pipeline.devices.interpreter.slots import RefusalError
from pipeline.program.operators import operator_of
from pipeline.validate.locate.node_values import MOST_VISITS, NodeValues
from pipeline.validate.metrics import OutputError, compare, within

ROUNDING = 16  # units in the last place of the greatest value, that may come of rounding alone
# By how much an intermediate value is held closer, step by step, where none departs.
CLOSER = (1.0, 0.1, 0.01, 1e-3)


class Held(Protocol):
    """What of a method's limits intermediate values are held to (`validate.Limits`)."""

    @property
    def atol(self) -> float: ...
    @property
    def rtol(self) -> float: ...
    @property
    def min_sqnr(self) -> float | None: ...


@dataclass(frozen=True)
class Compared:
    """An instruction's value beside its node's. `visit` counts from 0 how often it ran; `output` is
    the number of a delegate's result."""

    index: int
    place: int
    visit: int
    output: int
    error: OutputError
    actual: Any = field(repr=False, default=None)
    expected: Any = field(repr=False, default=None)


@dataclass
class Walked:
    """One call. `stopped` is why the package's own run ended early, at instruction `stopped_at`."""

    compared: list[Compared]
    outputs: list[Any]
    expected: list[Any]
    stopped: str = ""
    stopped_at: int | None = None


@dataclass(frozen=True)
class Giver:
    """Which of an instruction's results is the value of a node."""

    index: int
    output: int
    place: int


def givers(instructions: Instructions) -> list[Giver]:
    """For each node whose value can be seen, the last instruction that it became; one that ends
    inside a delegate can't be."""
    last: dict[int, tuple[int, int | None]] = {}
    events: list[tuple[int, int, int | None]] = [(i, p, 0) for i, p in instructions.nodes]
    for call in instructions.delegates:
        events += [(call.index, place, None) for place in call.places]
        events += [(call.index, p, n) for n, p in enumerate(call.outputs) if p is not None]
    for index, place, output in sorted(events, key=lambda e: (e[0], e[2] is not None)):
        last[place] = index, output
    return sorted(
        (Giver(index, output, p) for p, (index, output) in last.items() if output is not None),
        key=lambda giver: (giver.index, giver.output),
    )


def walk(
    method: Method, source: NodeValues, instructions: Instructions, inputs: Sequence[Any]
) -> Walked:
    """One call of both."""
    wanted = givers(instructions)
    expected = source.call(inputs, {giver.place for giver in wanted})
    by_index: dict[int, list[Giver]] = {}
    for giver in wanted:
        by_index.setdefault(giver.index, []).append(giver)
    compared: list[Compared] = []
    visits: dict[int, int] = {}
    walked = Walked(compared, [], expected)
    index = -1
    try:
        for index in steps(method, inputs):
            visit = visits[index] = visits.get(index, -1) + 1
            if visit < MOST_VISITS:
                for giver in by_index.get(index, ()):
                    compared += _compared(method, giver, visit, source)
        walked.outputs = [value_of(method, index) for index in method.plan.outputs]
    except (RefusalError, DelegateError) as error:
        walked.stopped = error.what if isinstance(error, DelegateError) else str(error)
        walked.stopped_at = _number_in(walked.stopped, index + 1)
    return walked


def _number_in(message: str, otherwise: int) -> int:
    """Of the instruction that an error of the interpreter names."""
    word = message.removeprefix("instruction ").partition(",")[0]
    return int(word) if word.isdecimal() else otherwise


def _compared(method: Method, giver: Giver, visit: int, source: NodeValues) -> Iterator[Compared]:
    seen = source.values.get(giver.place, ())
    if visit >= len(seen):
        return
    values = given_by(method, giver.index)
    if giver.output >= len(values):
        return
    expected = seen[visit]
    many = isinstance(expected, (tuple, list))
    places = values if many else values[giver.output : giver.output + 1]
    for place, one in zip(places, expected if many else [expected], strict=False):
        actual = value_of(method, place)
        if comparable(actual, one):
            actual = actual.reshape(one.shape)
            error = compare(actual, one)
            yield Compared(giver.index, giver.place, visit, giver.output, error, actual, one)


def comparable(actual: Any, expected: Any) -> bool:
    """Lowering may have made something else of a node: another layout of batches, say."""
    return (
        isinstance(actual, torch.Tensor)
        and isinstance(expected, torch.Tensor)
        and actual.dtype == expected.dtype
        and actual.numel() == expected.numel()
        and actual.numel() > 0
        and squeezed(actual) == squeezed(expected)
    )


def squeezed(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(size for size in tensor.shape if size != 1)


def _is_inexact(value: torch.Tensor) -> bool:
    return value.dtype.is_floating_point or value.dtype.is_complex


def scale_of(values: Sequence[Any]) -> float:
    """The greatest finite magnitude of floating-point values; 1 where there is none."""
    greatest = 0.0
    for value in values:
        if isinstance(value, torch.Tensor) and _is_inexact(value) and value.numel():
            finite = value[value.isfinite()]
            greatest = max(greatest, float(finite.abs().max()) if finite.numel() else 0.0)
    return greatest or 1.0


@dataclass(frozen=True)
class Tolerance:
    """The limits of a method, for a value anywhere in it.

    The absolute one is of the outputs; an intermediate value may depart by as much of its own scale
    as an output may of that of the outputs.
    """

    limits: Held
    scale: float
    share: float = 1.0

    def departs(self, compared: Compared, is_quantize: bool = False) -> bool:
        error, expected = compared.error, compared.expected
        if error.mismatch is not None or error.disagreeing:
            return True
        if is_quantize and not _is_inexact(expected):
            return error.max_abs > 1  # a value between two steps may go to either
        if not _is_inexact(expected):
            return error.max_abs > 0
        own = scale_of([expected])
        atol = self.limits.atol / self.scale * own * self.share
        least = ROUNDING * torch.finfo(expected.dtype).eps * own
        allowed = within(
            error, compared.actual, expected, max(atol, least), self.limits.rtol * self.share
        )
        wanted = self.limits.min_sqnr
        noisy = wanted is not None and error.sqnr_db is not None and error.sqnr_db < wanted
        return not allowed.ok or noisy


@dataclass(frozen=True)
class Departure:
    """The culprit of a walk, and by what it departs."""

    compared: Compared
    tolerance: Tolerance


def first_departure(
    walked: Walked, source: NodeValues, limits: Held, closer: Sequence[float] = CLOSER
) -> Departure | None:
    """None where nothing that was compared departs.

    Args:
        closer: to which parts of the limits values are held, one after the other, until one
            departs.
    """
    scale = scale_of(walked.expected)
    for share in closer:
        tolerance = Tolerance(limits, scale, share)
        departing = [c for c in walked.compared if tolerance.departs(c, _rounds(c, source))]
        found = _leading(departing, walked, source)
        if found is not None:
            return Departure(found, tolerance)
    return None


def _rounds(compared: Compared, source: NodeValues) -> bool:
    return operator_of(source.nodes[compared.place]).startswith("quantize")


def _leading(departing: Sequence[Compared], walked: Walked, source: NodeValues) -> Compared | None:
    """The first of them from which departing nodes, or such as were not compared, lead to an
    output. What departs alone is a node that lowering made something else of."""
    if not departing:
        return None
    bad = {c.place for c in departing}
    good = {c.place for c in walked.compared} - bad
    places = {node: place for place, node in enumerate(source.nodes)}
    reaching: set[Node] = set()
    for node in reversed(source.nodes):
        ends = node.op == "output" or any(user.op == "output" for user in node.users)
        leads = any(user in reaching and places[user] not in good for user in node.users)
        if ends or leads or _changes_state(node):
            reaching.add(node)
    return next((c for c in departing if source.nodes[c.place] in reaching), None)


def _changes_state(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def state_values(method: Method, state: Mapping[str, int]) -> dict[str, Any]:
    """The buffers of a loaded method as they are now, by qualified name."""
    return {name: value_of(method, index) for name, index in state.items()}
