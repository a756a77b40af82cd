"""Generates the inputs on which references run besides a method's examples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch.export import ExportedProgram

from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import (
    Fill,
    Generator,
    fill_large,
    fill_zeros,
    generate_inputs,
)

SEED = 0
# Generated input sets of each method: the least sizes, the greatest, and some in between.
_GENERATED = 3
# Cases that random values miss: an export that saturates or divides differently shows up there.
_EXTREMES: tuple[tuple[str, Fill], ...] = (
    ("zeros", fill_zeros),
    ("large, 1024 times", partial(fill_large, 10)),
)


def generate_sets(
    program: ExportedProgram, examples: Sequence[InputSet]
) -> list[InputSet]:
    """Return random input sets of several sizes, then zeros and large values."""
    sets = generate_inputs(program, _GENERATED, SEED, examples)
    generator = Generator(program, SEED, examples)
    for number, (note, fill) in enumerate(_EXTREMES, len(sets)):
        sets.append(generator.set(number, 2, fill, note))
    return sets
