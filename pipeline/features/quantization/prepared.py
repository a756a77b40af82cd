"""Compares a prepared module, which observes but doesn't round yet, with its float program.

The changes that a quantizer makes before it rounds anything (batch norms folded, scalars made
tensors) must agree to the accuracy of floats. This tells a wrong transformation apart from the
noise of quantization, which a comparison with the quantized program can't do.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from pipeline.features.quantization.divergence import find_divergence
from pipeline.features.quantization.noise import (
    NO_NOISE,
    Noise,
    measure_noise,
    round_figure,
)
from pipeline.program.eager import Source
from pipeline.program.graphs import iter_nodes
from pipeline.program.inputs import InputSet
from pipeline.program.signature import flatten

_log = logging.getLogger(__name__)
# The noise-to-signal share that two correct float implementations may differ by: at least this, or
# 4 eps of the coarsest dtype, as in validation's automatic limits.
_LEAST, _UNITS = 1e-4, 4
# Beyond this share, rounding alone moves an output so far that the comparison says nothing.
_MOST = 1e-2
# Rounding is imitated by moving each value by this many units in the last place. Kernels that sum
# in another order may be ten times as far apart.
_JITTER, _MARGIN_DB, _RUNS = 4.0, 20.0, 2
_GREATEST_SQNR = 120.0  # dB; beyond it, only the processor's own rounding is measured


class _OutputTally:
    """The noise of one output over all calls, and the call in which it is greatest."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.total: Noise = NO_NOISE
        self.worst: Noise = NO_NOISE
        self.call: int = 0
        self.inputs: InputSet | None = None

    def add(self, noise: Noise, call: int, inputs: InputSet) -> None:
        self.total = self.total + noise
        if self.inputs is None or noise.noise > self.worst.noise:
            self.worst = noise
            self.call = call
            self.inputs = inputs

    @property
    def origin(self) -> str:
        """The origin of the worst call's inputs.

        It leaves out the path of a file, because results don't depend on it.
        """
        if self.inputs is None:
            return ""
        if self.inputs.generated:
            return self.inputs.origin
        return f"calibration input {self.call}"

    def to_json(self, agrees: bool | None, limit: float) -> dict[str, Any]:
        return {
            "output": self.name,
            "sqnr_db": round_figure(min(self.total.sqnr, _GREATEST_SQNR)),
            "max_abs": round_figure(self.total.max_abs),
            "limit_db": round_figure(limit),
            "agrees": agrees,
            "inputs": self.origin,
            "generated": bool(self.inputs and self.inputs.generated),
        }


class PreparedComparison:
    """Runs the float program on the inputs that a prepared module observes, and compares outputs.

    Both start from the same state and draw the same random numbers. Only the inputs of each
    output's worst call are kept.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._source = Source(program)
        returned = [
            name for name, _ in self._source.outputs if name.startswith("output")
        ]
        self._first = len(self._source.outputs) - len(returned)
        self._tallies = [_OutputTally(name) for name in returned]
        self._calls = 0

    def expect(self, inputs: InputSet) -> list[Any]:
        """Return the outputs of the float program for the next inputs."""
        with seeded(self._calls):
            return self._source.run(inputs)[self._first :]

    def add(self, inputs: InputSet, expected: Sequence[Any], returned: Any) -> None:
        """Compare the outputs of a prepared module with the expected ones."""
        actual = pytree.tree_leaves(returned)
        for tally, value, expected_value in zip(
            self._tallies, actual, expected, strict=True
        ):
            tally.add(measure_noise(value, expected_value), self._calls, inputs)
        self._calls += 1

    def judge(self, prepared: GraphModule) -> dict[str, Any]:
        """Return the figures of each output, the worst first, and whether all agree, as JSON.

        `agrees` is None if rounding alone moves an output too far to judge it. Runs `prepared`
        again if an output diverges; the caller restores its state.
        """
        base = -_decibels(max(_LEAST, _UNITS * _coarsest_eps(self._program)))
        outputs = []
        verdicts = []
        diverging = []
        for tally in sorted(self._tallies, key=lambda tally: tally.total.sqnr):
            agrees, limit = self._judge_output(tally, base)
            outputs.append(tally.to_json(agrees, limit))
            verdicts.append(agrees)
            if agrees is False:
                diverging.append((tally, limit))
        divergence = None
        if diverging and diverging[0][0].inputs is not None:
            divergence = self._find_divergence(prepared, *diverging[0])
        return {
            "agrees": _join_verdicts(verdicts),
            "calls": self._calls,
            "outputs": outputs,
            "divergence": divergence,
        }

    def _judge_output(
        self, tally: _OutputTally, base: float
    ) -> tuple[bool | None, float]:
        """Return whether an output agrees, and the SQNR in dB that it must have."""
        if tally.inputs is None or tally.total.sqnr >= base:
            return True, base
        jitter = self._measure_jitter(tally)
        limit = min(base, jitter - _MARGIN_DB)
        if tally.worst.sqnr >= limit:
            usable = limit >= min(base, -_decibels(_MOST))
            return (True if usable else None), limit
        return False, limit

    def _measure_jitter(self, tally: _OutputTally) -> float:
        """Return the SQNR of an output, in its worst call, between runs that round differently."""
        assert tally.inputs is not None
        index = self._tallies.index(tally)
        worst = math.inf
        for seed in range(_RUNS):
            values = []
            for units in (0.0, _JITTER):
                self._source.reset()
                jitter = _Jitter(self._source.module, units, seed)
                leaves = flatten(self._program, tally.inputs)
                with torch.no_grad(), seeded(tally.call):
                    returned = jitter.run(*leaves, enable_io_processing=False)
                values.append(pytree.tree_leaves(returned)[index])
            worst = min(worst, measure_noise(values[1], values[0]).sqnr)
        return worst

    def _find_divergence(
        self, prepared: GraphModule, tally: _OutputTally, limit: float
    ) -> dict[str, Any] | None:
        assert tally.inputs is not None
        self._source.reset()
        leaves, same_leaves = (flatten(self._program, tally.inputs) for _ in range(2))
        source = self._source.module
        try:
            with torch.no_grad(), seeded(tally.call):
                return find_divergence(
                    self._program, source, prepared, leaves, same_leaves, limit
                )
        except Exception:  # the figures show the divergence, if not its place
            _log.warning("the operator that diverges can't be found", exc_info=True)
            return None


class _Jitter(Interpreter):
    """Runs a graph, and moves each computed value by a few units in the last place."""

    def __init__(self, module: GraphModule, units: float, seed: int) -> None:
        super().__init__(module)
        self._units = units
        self._generator = torch.Generator().manual_seed(seed)

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.op != "call_function" or not self._units:
            return result
        arguments = pytree.tree_leaves(self.fetch_args_kwargs_from_env(n))
        memories = {_memory(argument) for argument in arguments}

        def move(value: Any) -> Any:
            # A view, or the result of writing in place, shares its memory with an argument.
            if _memory(value) in memories:
                return value
            return self._move(value)

        return pytree.tree_map(move, result)

    def _move(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dtype.is_floating_point:
            return value
        if torch.equal(value, value.trunc()):  # whole numbers are computed exactly
            return value
        step = self._units * torch.finfo(value.dtype).eps
        wide = torch.promote_types(value.dtype, torch.float32)
        factors = torch.empty(value.shape, dtype=wide)
        return (
            factors.uniform_(1 - step, 1 + step, generator=self._generator)
            .mul_(value)
            .to(value.dtype)
        )


def _join_verdicts(verdicts: Sequence[bool | None]) -> bool | None:
    """Return whether all outputs agree, or None if one can't be judged."""
    if False in verdicts:
        return False
    if None in verdicts:
        return None
    return True


def _memory(value: Any) -> int | None:
    if isinstance(value, Tensor):
        return value.untyped_storage().data_ptr()
    return None


@contextmanager
def seeded(number: int) -> Iterator[None]:
    """Seed torch's random numbers with a call's number, and restore the generator afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        yield


def _coarsest_eps(program: ExportedProgram) -> float:
    coarsest = 0.0
    for node in iter_nodes(program):
        for value in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, Tensor) and value.dtype.is_floating_point:
                coarsest = max(coarsest, torch.finfo(value.dtype).eps)
    return coarsest


def _decibels(share: float) -> float:
    return 20 * math.log10(share)


class ComparisonAttempt:
    """A `PreparedComparison` that gives up if it fails.

    A method that can be quantized without the comparison must be quantized with it too.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._comparison: PreparedComparison | None = None
        self._expected: Sequence[Any] = ()
        with self._giving_up():
            self._comparison = PreparedComparison(program)

    def expect(self, inputs: InputSet) -> None:
        """Run the float program on inputs, as `PreparedComparison.expect` does."""
        with self._giving_up():
            if self._comparison:
                self._expected = self._comparison.expect(inputs)

    def add(self, inputs: InputSet, returned: Any) -> None:
        """Compare the outputs of the prepared module with those last expected."""
        with self._giving_up():
            if self._comparison:
                self._comparison.add(inputs, self._expected, returned)

    def judge(self, prepared: GraphModule) -> dict[str, Any] | None:
        """Return the record of the comparison, or None if it was given up."""
        record = None
        with self._giving_up():
            if self._comparison:
                record = self._comparison.judge(prepared)
        return record

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._comparison = None
            _log.warning(
                "the prepared program can't be compared with the float one",
                exc_info=True,
            )
