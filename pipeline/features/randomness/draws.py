"""Finds out whether rare draws of a source's random operators change its outputs.

Runs agree by chance if few draws matter: if a layer is dropped in one of ten calls, say. Here, the
operators draw many times, and two runs get the most different of these values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from pipeline.program.eager import Source, functionalized
from pipeline.program.inputs import InputSet
from pipeline.program.operators import base_name
from pipeline.program.random_operators import (
    describe_random_operators,
    find_random_operators,
    random_cause,
)
from pipeline.validate.determinism import RUNS, find_difference
from pipeline.validate.node_values import Walker

# Each value of these operators' results is drawn on its own, so the least values of several draws
# may occur together, and so may the greatest ones.
_ELEMENTWISE = frozenset(
    {"bernoulli", "cauchy", "dropout", "exponential", "geometric", "log_normal"}
    | {"normal", "poisson", "rand", "rand_like", "randint", "randint_like", "randn"}
    | {"randn_like", "random", "rrelu", "uniform"}
)
# Such an operator draws until it has drawn this number of values, within these numbers of draws;
# any other operator draws this often.
_VALUES, _FEWEST, _MOST, _OTHER = 1 << 20, 8, 4096, 64


def describe_rare_draws(
    source: Source, inputs: InputSet, difference: str, root: Path | None
) -> str:
    """Describe how rare draws change a source's outputs, and what to do; return "" if none do.

    Args:
        difference: how runs of the source differ on the same inputs, in words, if they do.

    Raises whatever an operator raises.
    """
    random = find_random_operators(source.program, root)
    if difference or not random:
        return ""
    # An operator that changes its argument in place can't draw again.
    extreme = ExtremeSource(functionalized(source.program))
    difference = find_difference(extreme, inputs, RUNS)
    if not difference:
        return ""
    return (
        f"the source is random: on rare draws, {difference} on the same inputs; it holds "
        f"{describe_random_operators(random)}"
    )


class ExtremeSource(Source):
    """A functional program whose operators draw the least values with seed 0, else the greatest."""

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__(program)
        self._draws_greatest = False
        self._arguments: dict[Node, Any] = {}

    def reseed(self, seed: int) -> None:
        """Choose between the least and the greatest values."""
        self._draws_greatest = seed > 0

    def _call_module(self, leaves: list[Any]) -> list[Any]:
        self._arguments = {}
        walker = Walker(self.module, self._draw)
        return pytree.tree_leaves(walker.run(*leaves, enable_io_processing=False))

    def _draw(self, node: Node, value: Any) -> None:
        """Replace the value of a node that draws; keep the arguments of such nodes."""
        if any(map(_draws, node.users)):
            self._arguments[node] = value
        if not _draws(node):
            return

        def draw() -> Any:
            args, kwargs = map_arg(
                (node.args, node.kwargs), self._arguments.__getitem__
            )
            return node.target(*args, **kwargs)  # type: ignore[operator]

        drawn = _tensors(value)
        if len(drawn) == 1 and base_name(node) in _ELEMENTWISE:
            extremes: Sequence[Tensor] = [self._draw_elements(draw, drawn[0])]
        else:
            extremes = self._draw_whole(draw, drawn)
        for tensor, extreme in zip(drawn, extremes, strict=True):
            tensor.copy_(extreme)

    def _draw_elements(self, draw: Callable[[], Tensor], first: Tensor) -> Tensor:
        """Return the least or the greatest of each value in several draws."""
        pick = torch.maximum if self._draws_greatest else torch.minimum
        extreme = first
        count = _VALUES // max(first.numel(), 1)
        for _ in range(min(max(count, _FEWEST), _MOST)):
            extreme = pick(extreme, draw())
        return extreme

    def _draw_whole(
        self, draw: Callable[[], Any], first: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Return the draw whose weighted sum is the least or the greatest of several draws."""
        draws = [first, *(_tensors(draw()) for _ in range(_OTHER))]
        pick = max if self._draws_greatest else min
        return pick(draws, key=_weighted_sum)


def _draws(node: Node) -> bool:
    """Return whether a node draws random numbers."""
    target = node.target
    if not isinstance(target, OpOverload) or random_cause(node) is None:
        return False
    return torch.Tag.nondeterministic_seeded in target.tags


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _weighted_sum(tensors: Sequence[Tensor]) -> float:
    """Return a sum that depends on the order of the values: of a permutation, say."""
    total = 0.0
    for tensor in tensors:
        values = tensor.detach().flatten().double()
        total += float(values.dot(torch.linspace(1, 2, values.numel()).double()))
    return total
