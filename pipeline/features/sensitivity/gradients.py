"""Estimates the noise of every module at once, to first order.

The float program runs with a leaf next to each value that quantizing rounds, so the gradient of its
outputs with respect to all of them is available. For a random vector v of independent normal
values, v·J·e has the variance |J·e|²: the noise that a rounding error e causes in an output whose
derivative is J. So a few gradients of a few calls rank all modules. Everything concluded from the
ranking is then measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from pipeline.features.sensitivity.switches import (
    QuantizationSwitches,
    is_rounding,
)
from pipeline.program.inputs import InputSet
from pipeline.program.signature import flatten

VECTORS = 4  # random vectors for each output of a call
CALLS = 4


class NoGradientError(Exception):
    """The program has no gradient: it keeps state, or an operator has no derivative."""


def estimate_noise(
    switches: QuantizationSwitches,
    units: Mapping[str, str],
    examples: Sequence[InputSet],
) -> tuple[dict[str, float], int]:
    """Return the noise that each unit causes alone, and the number of gradients computed.

    Noise is a share of the signal, in the worst output of the worst call.

    Args:
        units: the unit of each operator.

    Raises:
        NoGradientError: the program has no gradient.
    """
    if switches.keeps_state:
        raise NoGradientError
    calls = [
        examples[len(examples) * n // CALLS] for n in range(min(CALLS, len(examples)))
    ]
    # A fixed seed, so that a program always has the same ranking.
    generator = torch.Generator().manual_seed(0)
    worst = dict.fromkeys(units.values(), 0.0)
    count = 0
    for inputs in calls:
        try:
            for shares in _differentiate(switches, units, inputs, generator):
                count += VECTORS
                for unit, share in shares.items():
                    worst[unit] = max(worst[unit], share)
        except (RuntimeError, NotImplementedError) as error:
            raise NoGradientError from error
    if not count:
        raise NoGradientError
    return worst, count


def _differentiate(
    switches: QuantizationSwitches,
    units: Mapping[str, str],
    inputs: InputSet,
    generator: torch.Generator,
) -> Iterator[dict[str, float]]:
    """Yield the share of noise by unit in each output of a call."""
    run = _FloatRun(switches)
    with torch.enable_grad():
        returned = run.run(
            *flatten(switches.program, inputs), enable_io_processing=False
        )
    leaves = [leaf for leaf, _, _ in run.roundings]
    for output in pytree.tree_leaves(returned):
        if not isinstance(output, Tensor) or not output.requires_grad:
            continue
        signal = float(output.detach().double().square().sum())
        if not signal:
            continue
        totals = dict.fromkeys(units.values(), 0.0)
        for _ in range(VECTORS):
            vector = torch.randn(output.shape, generator=generator, dtype=output.dtype)
            gradients = torch.autograd.grad(
                # A rounding need not reach every output.
                output,
                leaves,
                vector,
                retain_graph=True,
                allow_unused=True,
            )
            for unit, value in _sum_products(run, gradients, units).items():
                totals[unit] += value**2 / (VECTORS * signal)
        yield totals


def _sum_products(
    run: _FloatRun, gradients: Sequence[Tensor | None], units: Mapping[str, str]
) -> dict[str, float]:
    """Return the product of gradients and rounding errors, summed by unit."""
    sums: dict[str, float] = {}
    for gradient, (_, error, operators) in zip(gradients, run.roundings, strict=True):
        if gradient is None:
            continue
        product = float((gradient * error).sum(dtype=torch.float64))
        # A set: a value that is rounded for two operators of a unit adds its noise once.
        for unit in {units[name] for name in operators}:
            sums[unit] = sums.get(unit, 0.0) + product
    return sums


class _FloatRun(Interpreter):
    """Runs a quantized program in float.

    Attributes:
        roundings: for each value that would be rounded: a zero leaf that is added to it, the error
            that rounding would add, and the operators that it is rounded for.
    """

    def __init__(self, switches: QuantizationSwitches) -> None:
        super().__init__(switches.module)
        self.roundings: list[tuple[Tensor, Tensor, frozenset[str]]] = []
        self._sources: dict[str, str] = {}
        self._operators: dict[str, frozenset[str]] = {}
        for name, _, replacement, _, operators in switches.edges:
            self._sources[name] = replacement
            self._operators[name] = self._operators.get(name, frozenset()) | operators
        self._needed = {*self._sources.values()}
        self._values: dict[str, Any] = {}

    def run_node(self, n: Node) -> Any:
        # Below, the exact value plus a leaf replaces the rounded value.
        with torch.set_grad_enabled(not is_rounding(n)):
            value = super().run_node(n)
        if n.name in self._sources:
            source = self._sources[n.name]
            exact = self._values.get(source)
            if exact is None:
                exact = getattr(self.module, source)
            leaf = torch.zeros_like(exact, requires_grad=True)
            error = value - exact.detach()
            self.roundings.append((leaf, error, self._operators[n.name]))
            value = exact + leaf
        if n.name in self._needed:
            self._values[n.name] = value
        return value
