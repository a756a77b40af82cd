"""Finds out whether a source reads memory that nothing has written.

Its runs then depend on what the memory held before. Two runs in one process often get the same
memory back, with the same content. So the memory is filled here: with other numbers in each run, or
by torch with a value that shows in outputs.
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
    find_operators_by,
    find_uninitialized,
    is_foreign,
    is_uninitialized,
)
from pipeline.validate.determinism import RUNS, find_difference, run_with_seed
from pipeline.validate.node_values import Walker

# Small blocks are reused with their old content: the largest size of such a block in bytes, how
# many are overwritten per tensor, and how often.
_SMALL, _BLOCKS, _TRIES = 1 << 17, 64, 3
_FILL = 1.0e3  # the greatest magnitude of numbers that fill memory


def describe_unwritten(
    source: Source, inputs: InputSet, difference: str, root: Path | None
) -> str:
    """Describe how uninitialized memory shows in a source's outputs, and what to do.

    Returns "" if it doesn't show on the input set. The source's state is restored.

    Args:
        difference: how runs of the source differ on the same inputs, in words, if they do.

    Raises whatever an operator raises.
    """
    memory = find_uninitialized(source.program, root)
    if not difference and memory:
        difference = find_difference(FilledSource(source.program), inputs, RUNS)
    if difference and memory:
        operators = describe_random_operators(memory)
        return (
            f"the source reads uninitialized memory: {difference} on the same inputs; "
            f"{operators}"
        )
    return _describe_unwritten(source, inputs, memory, root)


class FilledSource(Source):
    """A source program whose uninitialized memory holds other numbers in each run."""

    def __init__(
        self, program: ExportedProgram, common: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__(program, common)
        self.generator = torch.Generator()

    def reseed(self, seed: int) -> None:
        """Set the seed of the numbers that memory holds."""
        self.generator.manual_seed(seed)

    def _call_module(self, leaves: list[Any]) -> list[Any]:
        walker = Walker(self.module, self._fill)
        return pytree.tree_leaves(walker.run(*leaves, enable_io_processing=False))

    def _fill(self, node: Node, value: Any) -> None:
        if is_uninitialized(node) and isinstance(value, Tensor):
            draw = torch.empty(value.shape).uniform_(
                -_FILL, _FILL, generator=self.generator
            )
            value.copy_(draw > 0 if value.dtype is torch.bool else draw)


def _describe_unwritten(
    source: Source, inputs: InputSet, memory: list[RandomOperator], root: Path | None
) -> str:
    """Return which output changes if torch fills all memory that it allocates, or "".

    This also shows memory that custom operators, and operators that enlarge a tensor, leave
    unwritten.
    """
    foreign = find_operators_by(
        source.program, root, lambda node: "memory" if is_foreign(node) else None
    )
    operators = [*memory, *foreign]
    if not operators:
        return ""
    with _filled_memory():
        filled = run_with_seed(source, inputs, 0)
    for _ in range(_TRIES):
        _overwrite_freed_memory(filled)
        usual = run_with_seed(source, inputs, 0)
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
                f"the source reads uninitialized memory: {name} contains torch's fill value for "
                f"new memory; look at {operator_names}; write a tensor before it is read"
            )
    return ""


def _overwrite_freed_memory(outputs: Sequence[Any]) -> None:
    """Overwrite freed memory with numbers, for tensors of the sizes of these outputs.

    New tensors may be placed there, and would hold the values with which these were filled. Larger
    tensors get pages of their own from the system.
    """
    tensors = [value for value in outputs if isinstance(value, Tensor)]
    small = [value for value in tensors if value.nbytes < _SMALL]
    written = [torch.zeros_like(value) for value in small for _ in range(_BLOCKS)]
    for value in written:
        value.fill_(0)


@contextmanager
def _filled_memory() -> Iterator[None]:
    """Make torch fill the memory that it allocates with NaN, or with the greatest integer."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warns = _warns_only()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from operators without such an algorithm
            yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        torch.utils.deterministic.fill_uninitialized_memory = fills


def _warns_only() -> bool:
    return torch.is_deterministic_algorithms_warn_only_enabled()


def _fills(usual: Any, filled: Any) -> bool:
    """Return whether a value shows the fill value of memory.

    Deterministic algorithms may round differently, so no other difference counts.
    """
    if not isinstance(usual, Tensor) or usual.shape != filled.shape:
        return False
    if usual.dtype.is_floating_point or usual.is_complex():
        return bool((usual.isnan() != filled.isnan()).any())
    return not torch.equal(usual, filled)
