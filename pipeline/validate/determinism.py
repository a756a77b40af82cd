"""Checks that the source is deterministic, before anything else, by running it twice.

A source whose runs differ can't serve to measure a package: the limits derived from rounding would
grow with the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.moments import call_all
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.program.random_operators import (
    describe_random_operators,
    find_random_operators,
)
from pipeline.validate.metrics import compare

# Runs of a program; more if it draws random numbers, since few runs may miss a rare draw.
RUNS, RUNS_OF_RANDOM = 2, 6
# Calls of a package or a reference that is declared random; its source runs twice as often.
REPEATS = 64


def describe_nondeterminism(
    source: Source, inputs: InputSet, root: Path | None = None
) -> str:
    """Describe how the source's runs on the same inputs differ, or return "" if they agree.

    The description names the responsible operators and a remedy. The source's state is restored.
    Raises whatever an operator raises.
    """
    random = find_random_operators(source.program, root)
    training = [operator for operator in random if operator.changes_buffers]
    difference = find_difference(source, inputs, RUNS_OF_RANDOM if random else RUNS)
    if not difference and training:
        operators = describe_random_operators(training)
        return f"the source is in training mode, and changes its buffers as it runs: {operators}"
    if difference and random:
        operators = describe_random_operators(random)
        return f"the source is random: {difference} on the same inputs; it holds {operators}"
    for unwritten in call_all("describe_unwritten", source, inputs, difference, root):
        if unwritten:
            return str(unwritten)
    if not difference:
        return ""
    return (
        f"the source is random: {difference} on the same inputs, but torch lists none of its "
        "operators as random; look at custom operators"
    )


def find_difference(source: Source, inputs: InputSet, runs: int) -> str:
    """Describe the output that differs most between runs, or return "" if all runs agree."""
    outputs = [run_with_seed(source, inputs, seed) for seed in range(runs)]
    worst, words = 0.0, ""
    for later_outputs in outputs[1:]:
        for (name, _), value, first in zip(
            source.outputs, later_outputs, outputs[0], strict=True
        ):
            if _same(value, first):
                continue
            error = compare(value, first)
            by = "" if error.mismatch else f" by up to {error.max_abs:.3g}"
            if error.max_abs > worst or not words:
                worst = error.max_abs
                words = f"{name} differs{by} between two runs"
    return words


def run_with_seed(source: Source, inputs: InputSet, seed: int) -> list[Any]:
    """Run the source from its initial state with a given seed."""
    source.reset()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        source.reseed(seed)
        outputs = source.run(inputs)
    source.reset()
    return outputs


def _same(value: Any, other_value: Any) -> bool:
    """Return whether two values are the same; NaN equals NaN."""
    if not isinstance(value, Tensor) or not isinstance(other_value, Tensor):
        return bool(type(value) is type(other_value) and value == other_value)
    if value.shape != other_value.shape or value.dtype != other_value.dtype:
        return False
    return torch.allclose(value, other_value, 0, 0, equal_nan=True)


def outputs_of_runs(
    source: Source, inputs: InputSet, seeds: Sequence[int]
) -> list[list[Any]]:
    """Return the outputs of a random source on the same inputs, once for each seed."""
    return [run_with_seed(source, inputs, seed) for seed in seeds]
