"""Walks a method of a package, instruction by instruction, beside the program that it came from.

The interpreter runs the very bytes of the package; the source program runs node by node. An
instruction that gives the value of a node (`store.compiled.Instructions`) is compared with it. The
first one that diverges, and whose divergence goes on to an output that fails, is the culprit: all
that it was given still agreed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from pipeline.backends.delegate_runtime import DelegateError
from pipeline.config.validation import Limits
from pipeline.features.locating.interpreter.execute import (
    read_value,
    result_indices,
    steps,
)
from pipeline.features.locating.interpreter.load import InterpretedMethod
from pipeline.program.operators import base_name
from pipeline.store.compiled import Instructions
from pipeline.validate.metrics import OutputError, compare, greatest_magnitude
from pipeline.validate.node_values import MOST_VISITS, NodeValues
from pipeline.validate.worst_place import find_worst_place

ROUNDING = (
    16  # units in the last place of the greatest value, that may come of rounding alone
)
# Shares of the limits to which intermediate values are held, one by one, until one diverges.
CLOSER = (1.0, 0.1, 0.01, 1e-3)


@dataclass(frozen=True)
class Compared:
    """An instruction's value beside its node's.

    `visit` counts from 0 how often it ran; `output` is the number of a delegate's result.
    """

    index: int
    place: int
    visit: int
    output: int
    error: OutputError
    actual: Any = field(repr=False, default=None)
    expected: Any = field(repr=False, default=None)


@dataclass
class Walk:
    """One call; `stopped` is why the package's own run ended early, at instruction `stopped_at`."""

    compared: list[Compared]
    outputs: list[Any]
    expected: list[Any]
    stopped: str = ""
    stopped_at: int | None = None


def _values_of_nodes(instructions: Instructions) -> dict[int, list[tuple[int, int]]]:
    """Return by instruction the results that are values of nodes: (number, place of the node).

    A node's value is given by the last instruction that it became; one that ends inside a delegate
    can't be seen.
    """
    results: dict[tuple[int, int], int | None] = {
        (index, place): 0 for _, index, place in instructions.nodes
    }
    for call in instructions.delegates:
        for place in call.places:
            results[call.index, place] = None
        for number, output_place in enumerate(call.outputs):
            if output_place is not None:
                results[call.index, output_place] = number
    last: dict[int, tuple[int, int | None]] = {}
    for (index, place), output in sorted(results.items()):
        last[place] = (index, output)
    values_by_instruction: dict[int, list[tuple[int, int]]] = {}
    for place, (index, output) in last.items():
        if output is not None:
            values_by_instruction.setdefault(index, []).append((output, place))
    return {index: sorted(pairs) for index, pairs in values_by_instruction.items()}


def walk(
    method: InterpretedMethod,
    source: NodeValues,
    instructions: Instructions,
    inputs: Sequence[Any],
) -> Walk:
    """Make one call of both, and compare the values of nodes. Raises OutOfTimeError."""
    node_values = _values_of_nodes(instructions)
    expected = source.call(
        inputs, {place for pairs in node_values.values() for _, place in pairs}
    )
    walked = Walk([], [], expected)
    visits: Counter[int] = Counter()
    index = -1
    try:
        for index in steps(method, inputs):
            source.budget.check()
            if visits[index] < MOST_VISITS:
                for output, place in node_values.get(index, ()):
                    walked.compared += _compare(
                        method, index, output, place, visits[index], source
                    )
            visits[index] += 1
        walked.outputs = [read_value(method, index) for index in method.plan.outputs]
    except DelegateError as error:
        walked.stopped = error.reason
        # An error of the interpreter names its instruction.
        word = walked.stopped.removeprefix("instruction ").partition(",")[0]
        walked.stopped_at = int(word) if word.isdecimal() else index + 1
    return walked


def _compare(
    method: InterpretedMethod,
    index: int,
    output: int,
    place: int,
    visit: int,
    source: NodeValues,
) -> Iterator[Compared]:
    visits = source.values.get(place, ())
    indices = result_indices(method, index)
    if visit >= len(visits) or output >= len(indices):
        return
    expected = visits[visit]
    if isinstance(expected, (tuple, list)):
        parts = list(expected)
    else:
        parts = [expected]
        indices = indices[output : output + 1]
    for value_index, part in zip(indices, parts, strict=False):
        actual = read_value(method, value_index)
        if comparable(actual, part):
            actual = actual.reshape(part.shape)
            yield Compared(
                index, place, visit, output, compare(actual, part), actual, part
            )


def comparable(actual: Any, expected: Any) -> bool:
    """Return whether two values are tensors of one dtype and shape, sizes of 1 aside.

    Lowering may have made something else of a node: another layout of batches, say.
    """
    return (
        isinstance(actual, torch.Tensor)
        and isinstance(expected, torch.Tensor)
        and actual.dtype == expected.dtype
        and actual.numel() > 0
        and actual.squeeze().shape == expected.squeeze().shape
    )


def _is_inexact(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return value.dtype.is_floating_point or value.dtype.is_complex


def find_scale(values: Sequence[Any]) -> float:
    """Return the greatest finite magnitude of floating-point values; 1 where there is none."""
    return max(map(greatest_magnitude, filter(_is_inexact, values)), default=0.0) or 1.0


class Tolerance:
    """The limits of a method, for a value anywhere in it.

    The absolute one is for outputs, whose scale is `scale`; an intermediate value may be off by as
    much in proportion to its own scale.

    Args:
        share: of the limits, that values are held to.
        rounds_otherwise: whether two processors are compared, which may round a quantized value to
            either of two steps.
    """

    def __init__(
        self,
        limits: Limits,
        scale: float,
        share: float = 1.0,
        rounds_otherwise: bool = False,
    ) -> None:
        self.limits = limits
        self.scale = scale
        self.share = share
        self._rounds_otherwise = rounds_otherwise

    def departs(
        self, error: OutputError, actual: Any, expected: Any, node: Node | None = None
    ) -> bool:
        """Return whether a value, of a node if it is one's, departs from the expected one."""
        if error.mismatch is not None or error.disagreeing:
            return True
        if not _is_inexact(expected):
            is_quantize = node is not None and base_name(node).startswith("quantize")
            if self._rounds_otherwise:
                is_quantize |= expected.dtype in (torch.int8, torch.uint8)
            # A value between two steps may go to either.
            return error.max_abs > (1 if is_quantize else 0)
        min_sqnr = self.limits.min_sqnr
        if (
            min_sqnr is not None
            and error.sqnr_db is not None
            and error.sqnr_db < min_sqnr
        ):
            return True
        scale = find_scale([expected])
        atol = (self.limits.atol or 0.0) / self.scale * scale * self.share
        least = ROUNDING * torch.finfo(expected.dtype).eps * scale
        rtol = (self.limits.rtol or 0.0) * self.share
        return not find_worst_place(error, actual, expected, max(atol, least), rtol).ok

    def departs_at(self, compared: Compared, node: Node) -> bool:
        """Return whether a value that was compared with a node's departs from it."""
        return self.departs(compared.error, compared.actual, compared.expected, node)

    def first_error(
        self, actual: Iterable[Any], expected: Iterable[Any]
    ) -> OutputError | None:
        """Return the error of the first of several values that departs; None where none does."""
        for value, reference in zip(actual, expected, strict=False):
            error = compare(value, reference)
            if self.departs(error, value, reference):
                return error
        return None


def first_divergence(
    walked: Walk, source: NodeValues, limits: Limits, closer: Sequence[float] = CLOSER
) -> tuple[Compared, Tolerance] | None:
    """Find the first value that diverges, and the tolerance that it exceeds; None if none does.

    Args:
        closer: to which shares of the limits values are held, one after the other.
    """
    scale = find_scale(walked.expected)
    for share in closer:
        tolerance = Tolerance(limits, scale, share)
        diverging = []
        for compared in walked.compared:
            if tolerance.departs_at(compared, source.nodes[compared.place]):
                diverging.append(compared)
        leading = _leading(diverging, walked, source)
        if leading is not None:
            return leading, tolerance
    return None


def inputs_agree(
    walked: Walk, source: NodeValues, compared: Compared, tolerance: Tolerance
) -> bool:
    """Return whether all that a diverging value's node is given was compared, and agrees.

    Inputs and constants of the method are given to both alike.
    """
    agreeing = set()
    for value in walked.compared:
        node = source.nodes[value.place]
        if value.visit == compared.visit and not tolerance.departs_at(value, node):
            agreeing.add(node)
    for argument in source.nodes[compared.place].all_input_nodes:
        is_given = argument.op in ("placeholder", "get_attr")
        if is_given and argument.graph is source.program.graph:
            continue
        if argument not in agreeing:
            return False
    return True


def _leading(
    diverging: Sequence[Compared], walked: Walk, source: NodeValues
) -> Compared | None:
    """Find the first from which diverging nodes, or such as were not compared, lead to an output.

    A node that diverges alone is one that lowering made something else of.
    """
    if not diverging:
        return None
    diverging_places = {compared.place for compared in diverging}
    agreeing = set()
    for compared in walked.compared:
        if compared.place not in diverging_places:
            agreeing.add(source.nodes[compared.place])
    reaching: set[Node] = set()
    for node in reversed(source.nodes):
        leads = any(user in reaching and user not in agreeing for user in node.users)
        if leads or node.op == "output" or returns_state(node):
            reaching.add(node)
    for compared in diverging:
        if source.nodes[compared.place] in reaching:
            return compared
    return None


def returns_state(node: Node) -> bool:
    """Return whether a node calls an operator that writes to one of its arguments, and returns it.

    One that returns something else returns it for form's sake: the value of `llama::update_cache`
    is memory that nobody has written.
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    aliases = (result.alias_info for result in schema.returns)
    return any(alias is not None and alias.is_write for alias in aliases)
