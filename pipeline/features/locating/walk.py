"""Walks a method of a package, instruction by instruction, in step with its source program.

The interpreter runs the package's own bytes, and the source program runs node by node. An
instruction that produces the value of a node (`store.compiled.Instructions`) is compared with that
node. The culprit is the first instruction that diverges and whose divergence reaches a failing
output: all of its inputs still agreed.
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

# Units in the last place of the greatest value: rounding alone may cause them.
ROUNDING = 16
# Shares of the limits that intermediate values are checked against, in turn, until one diverges.
CLOSER = (1.0, 0.1, 0.01, 1e-3)


@dataclass(frozen=True)
class Compared:
    """An instruction's value compared with its node's.

    `visit` counts the earlier runs of the instruction; `output` is the number of a delegate's
    result.
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
    """One call; `stopped` is why the package stopped early, at instruction `stopped_at`."""

    compared: list[Compared]
    outputs: list[Any]
    expected: list[Any]
    stopped: str = ""
    stopped_at: int | None = None


def _values_of_nodes(instructions: Instructions) -> dict[int, list[tuple[int, int]]]:
    """Return, by instruction, its results that are values of nodes: (number, place of the node).

    The last instruction that a node became produces the node's value. A value that stays inside a
    delegate isn't visible.
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
    """Make one call in both, and compare the values of nodes.

    Raises:
        OutOfTimeError: the budget is exhausted.
    """
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
        # An error of the interpreter names the instruction.
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
    """Return whether two values are tensors of the same dtype and shape, ignoring sizes of 1.

    Lowering may have changed a node's value, for example the layout of batches.
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
    """Return the greatest finite magnitude of floating-point values, or 1 if there is none."""
    return max(map(greatest_magnitude, filter(_is_inexact, values)), default=0.0) or 1.0


class Tolerance:
    """The limits of a method, applied to any value inside it.

    The absolute limit is meant for outputs, whose scale is `scale`. For an intermediate value it is
    scaled to that value's own magnitude.

    Args:
        share: the share of the limits that values must stay within.
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

    def diverges(
        self, error: OutputError, actual: Any, expected: Any, node: Node | None = None
    ) -> bool:
        """Return whether a value, which `node` gives, diverges from the expected one."""
        if error.mismatch is not None or error.disagreeing:
            return True
        if not _is_inexact(expected):
            is_quantize = node is not None and base_name(node).startswith("quantize")
            if self._rounds_otherwise:
                is_quantize |= expected.dtype in (torch.int8, torch.uint8)
            # A value between two steps may be rounded to either.
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

    def diverges_at(self, compared: Compared, node: Node) -> bool:
        """Return whether a compared value diverges from its node's."""
        return self.diverges(compared.error, compared.actual, compared.expected, node)

    def first_error(
        self, actual: Iterable[Any], expected: Iterable[Any]
    ) -> OutputError | None:
        """Return the error of the first value that diverges, or None if none does."""
        for value, reference in zip(actual, expected, strict=False):
            error = compare(value, reference)
            if self.diverges(error, value, reference):
                return error
        return None


def first_divergence(
    walked: Walk, source: NodeValues, limits: Limits, closer: Sequence[float] = CLOSER
) -> tuple[Compared, Tolerance] | None:
    """Return the first value that diverges and the tolerance that it exceeds, or None.

    Args:
        closer: the shares of the limits that values are checked against, in turn.
    """
    scale = find_scale(walked.expected)
    for share in closer:
        tolerance = Tolerance(limits, scale, share)
        diverging = []
        for compared in walked.compared:
            if tolerance.diverges_at(compared, source.nodes[compared.place]):
                diverging.append(compared)
        leading = _leading(diverging, walked, source)
        if leading is not None:
            return leading, tolerance
    return None


def inputs_agree(
    walked: Walk, source: NodeValues, compared: Compared, tolerance: Tolerance
) -> bool:
    """Return whether all inputs of a diverging value's node were compared and agree.

    The inputs and constants of the method are the same on both sides.
    """
    agreeing = set()
    for value in walked.compared:
        node = source.nodes[value.place]
        if value.visit == compared.visit and not tolerance.diverges_at(value, node):
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
    """Return the first diverging value that reaches an output, or None.

    It must do so through nodes that diverge too, or that were not compared. If a node diverges but
    none of its readers do, lowering has changed what it computes.
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
    """Return whether an operator writes to one of its arguments and returns that argument.

    If it returns something else, the value is a mere formality: the result of `llama::update_cache`
    is memory that nothing has written.
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    aliases = (result.alias_info for result in schema.returns)
    return any(alias is not None and alias.is_write for alias in aliases)
