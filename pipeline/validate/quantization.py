"""Proves a quantized method against its quantized program too, not only against the float one.

What a config allows between a float program and its int8 package is wide enough to hide a wrong
scale, or another operator. The program that quantization made says what the package must compute,
up to a rounding here and there. So a package may depart from it by no more noise than quantization
itself has put between it and the float program, with a margin: backends round in their own ways,
and some compute more precisely than they are asked to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch.export import ExportedProgram

from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import generate_inputs
from pipeline.validate.metrics import compare
from pipeline.validate.results import Failure, MethodValidation, Validation

MARGIN_DB = 3.0  # twice the noise
# Where quantization loses next to nothing, roundings of ranges that are computed as they come leave
# 40.3 dB between XNNPACK and the quantized program, measured on two linear layers.
MOST_DB = 38.0


@dataclass(frozen=True)
class NoiseLimits:
    """As `Limits` (pipeline/validate/limits.py), of which only the noise counts."""

    min_sqnr: float | None
    atol: float = math.inf
    rtol: float = 0.0
    max_mean_abs: float | None = None
    max_p999_abs: float | None = None
    max_relative: float | None = None
    min_cosine: float | None = None
    min_agreement: float | None = None


@dataclass(frozen=True)
class NoiseSettings(NoiseLimits):
    """As `Settings` (pipeline/validate/method.py): amounts, and a limit for each method."""

    inputs: int = 0
    seed: int = 0
    steps: int = 1
    floors: tuple[tuple[str, float], ...] = ()

    def of(self, method: str) -> NoiseLimits:
        return NoiseLimits(dict(self.floors).get(method))


def noise_floor(
    program: ExportedProgram, quantized: ExportedProgram, sets: Sequence[InputSet]
) -> float | None:
    """The least SQNR that a package of `quantized` must have against it, in dB: that of `quantized`
    against `program` on these inputs, the worst of all outputs, less the margin. None where nothing
    can be compared."""
    source, made = Source(program), Source(quantized)
    found = []
    for inputs in sets:
        source.reset()
        made.reset()
        try:
            pairs = list(zip(made.run(inputs), source.run(inputs), strict=True))
        except Exception:  # whatever an operator raises; validation tells it
            continue
        figures = (compare(actual, expected).sqnr_db for actual, expected in pairs)
        found += [figure for figure in figures if figure is not None]
    return min(*found, MOST_DB + MARGIN_DB) - MARGIN_DB if found else None


def checked(
    validation: Validation,
    validate: Callable[[Mapping[str, ExportedProgram], NoiseSettings], Validation],
    programs: Mapping[str, ExportedProgram],
    quantized: Mapping[str, ExportedProgram],
    examples: Mapping[str, Sequence[InputSet]],
    amounts: tuple[int, int, int],
) -> Validation:
    """A validation with what its quantized methods fail in against their quantized programs.

    Args:
        validate: proves the package against some programs, which are those of all that it is given.
        quantized: the programs that quantization made, of methods that ran.
        amounts: how many input sets are generated, their seed, and the calls in a sequence.
    """
    count, seed, steps = amounts
    floors = {}
    for method in validation.methods:
        name = method.method
        if name not in quantized or not method.runs:
            continue
        given = list(examples.get(name, ()))
        try:
            sets = [*given, *generate_inputs(programs[name], count, seed, given)]
            floor = noise_floor(programs[name], quantized[name], sets)
        except Exception:  # an example that does not fit, which has failed already
            continue
        if floor is not None:
            floors[name] = floor
    if not floors:
        return validation
    settings = NoiseSettings(None, inputs=count, seed=seed, steps=steps, floors=(*floors.items(),))
    again = validate({name: quantized[name] for name in floors}, settings)
    methods = []
    sentences = list(validation.failures)
    for method in validation.methods:
        proved = _of(again, method.method) if method.method in floors else None
        if proved is None:
            methods.append(method)
            continue
        more = tuple(_told(failure) for failure in proved.failures)
        failing = method.failing or proved.failing
        methods.append(replace(method, failures=(*method.failures, *more), failing=failing))
        sentences += [failure.sentence for failure in more]
    return replace(validation, methods=tuple(methods), failures=tuple(sentences))


def _of(validation: Validation, name: str) -> MethodValidation | None:
    return next((m for m in validation.methods if m.method == name), None)


def _told(failure: Failure) -> Failure:
    what = f"{failure.what}, against the quantized program that it was made of"
    return replace(failure, what=what)
