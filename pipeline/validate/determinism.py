"""Is the source itself deterministic? It runs twice on the same inputs before anything else.

A source that differs from itself can't measure a package: the limits that rounding sets would grow
with the difference.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.utils.deterministic
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.program.random_operators import (
    RandomOperator,
    describe_random_operators,
    find_foreign_operators,
    find_random_operators,
    find_uninitialized,
    is_uninitialized,
)
from pipeline.validate.metrics import compare
from pipeline.validate.node_values import Walker

# Runs of a program that draws numbers: with few of them, a rare draw may go unseen.
RUNS, RUNS_OF_RANDOM = 2, 6
# Calls of a package, or a reference, that is declared random; its source runs twice as often.
REPEATS = 64
# Small blocks are used again, with what is in them: so many are overwritten, so often.
_SMALL, _BLOCKS, _TRIES = 1 << 17, 64, 3
_FILL = 1.0e3  # in place of uninitialized memory


class FilledSource(Source):
    """A source program whose uninitialized memory holds other numbers in each run."""

    def __init__(
        self, program: ExportedProgram, common: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__(program, common)
        self.generator = torch.Generator()

    def _call_module(self, leaves: list[Any]) -> list[Any]:
        walker = Walker(self.module, self._fill)
        return pytree.tree_leaves(walker.run(*leaves, enable_io_processing=False))

    def _fill(self, node: Node, value: Any) -> None:
        if is_uninitialized(node) and isinstance(value, Tensor):
            draw = torch.empty(value.shape).uniform_(
                -_FILL, _FILL, generator=self.generator
            )
            value.copy_(draw > 0 if value.dtype is torch.bool else draw)


def describe_nondeterminism(
    source: Source, inputs: InputSet, root: Path | None = None
) -> str:
    """Return how the source differs from itself on the same inputs, by which operators, and what to
    do; "" where it does not. Its state is restored.

    Raises whatever an operator raises.
    """
    random = find_random_operators(source.program, root)
    training = [operator for operator in random if operator.changes_buffers]
    difference = _find_difference(source, inputs, RUNS_OF_RANDOM if random else RUNS)
    if not difference and training:
        operators = describe_random_operators(training)
        return f"the source is in training mode, and changes its buffers as it runs: {operators}"
    if difference and random:
        operators = describe_random_operators(random)
        return f"the source is random: {difference} on the same inputs; it holds {operators}"
    memory = find_uninitialized(source.program, root)
    # Two runs in one process often get the same memory back, with the same content.
    if not difference and memory:
        difference = _find_difference(FilledSource(source.program), inputs, RUNS)
    if difference and memory:
        operators = describe_random_operators(memory)
        return (
            f"the source reads uninitialized memory: {difference} on the same inputs; "
            f"{operators}"
        )
    if unwritten := _describe_unwritten(source, inputs, memory, root):
        return unwritten
    if not difference:
        return ""
    return (
        f"the source is random: {difference} on the same inputs, and torch knows none of its "
        "operators as random; look at custom operators"
    )


def _find_difference(source: Source, inputs: InputSet, runs: int) -> str:
    """Describe the output that differs most between runs; "" where all are the same."""
    outputs = [_run(source, inputs, seed) for seed in range(runs)]
    worst, words = 0.0, ""
    for later_outputs in outputs[1:]:
        for (name, _), value, first in zip(
            source.outputs, later_outputs, outputs[0], strict=True
        ):
            if _same(value, first):
                continue
            error = compare(value, first)
            by = ""
            if not error.mismatch:
                by = f" by up to {error.max_abs:.3g}"
            if error.max_abs > worst or not words:
                worst = error.max_abs
                words = f"{name} differs{by} between two runs"
    return words


def _describe_unwritten(
    source: Source, inputs: InputSet, memory: list[RandomOperator], root: Path | None
) -> str:
    """Say which output changes where torch fills all memory that it allocates: what custom
    operators, and those that make a tensor larger, leave unwritten in it. "" for none."""
    operators = [*memory, *find_foreign_operators(source.program, root)]
    if not operators:
        return ""
    with _filled_memory():
        filled = _run(source, inputs, 0)
    for _ in range(_TRIES):
        _overwrite_freed_memory(filled)
        usual = _run(source, inputs, 0)
        names = [name for name, _ in source.outputs]
        pairs = zip(names, usual, filled, strict=True)
        name = next(
            (
                name
                for name, value, filled_value in pairs
                if _fills(value, filled_value)
            ),
            "",
        )
        if name:
            operator_names = ", ".join(map(str, operators))
            return (
                f"the source reads uninitialized memory: {name} holds what torch fills new memory "
                f"with; look at {operator_names}; write a tensor before it is read"
            )
    return ""


def _overwrite_freed_memory(outputs: Sequence[Any]) -> None:
    """Write numbers where tensors of these sizes have been: the next ones may lie there, and would
    hold what these were filled with. Larger ones get pages of their own from the system."""
    tensors = [value for value in outputs if isinstance(value, Tensor)]
    small = [value for value in tensors if value.nbytes < _SMALL]
    written = [torch.zeros_like(value) for value in small for _ in range(_BLOCKS)]
    for value in written:
        value.fill_(0)


@contextmanager
def _filled_memory() -> Iterator[None]:
    """Have torch fill the memory that it allocates with NaN, or the greatest integer."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warns = _warns_only()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of operators that have no such algorithm
            yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        torch.utils.deterministic.fill_uninitialized_memory = fills


def _warns_only() -> bool:
    return torch.is_deterministic_algorithms_warn_only_enabled()


def _fills(usual: Any, filled: Any) -> bool:
    """Return whether a value shows what memory was filled with. Deterministic algorithms round in
    other ways, so that no other difference counts."""
    if not isinstance(usual, Tensor) or usual.shape != filled.shape:
        return False
    if usual.dtype.is_floating_point or usual.is_complex():
        return bool((usual.isnan() != filled.isnan()).any())
    return not torch.equal(usual, filled)


def _run(source: Source, inputs: InputSet, seed: int) -> list[Any]:
    """Run the source from its initial state, with a seed of its own."""
    source.reset()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(source, FilledSource):
            source.generator.manual_seed(seed)
        outputs = source.run(inputs)
    source.reset()
    return outputs


def _same(value: Any, other_value: Any) -> bool:
    """Return whether two values are the same, NaN for NaN."""
    if not isinstance(value, Tensor) or not isinstance(other_value, Tensor):
        return bool(type(value) is type(other_value) and value == other_value)
    if value.shape != other_value.shape or value.dtype != other_value.dtype:
        return False
    equal_nan = value.dtype.is_floating_point or value.is_complex()
    return bool(
        torch.isclose(value, other_value, rtol=0, atol=0, equal_nan=equal_nan).all()
    )


def outputs_of_runs(
    source: Source, inputs: InputSet, seeds: Sequence[int]
) -> list[list[Any]]:
    """Return what a random source gives on the same inputs, once for each seed."""
    return [_run(source, inputs, seed) for seed in seeds]
