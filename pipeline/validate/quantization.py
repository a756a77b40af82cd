"""Checks a quantized method against its quantized program too, not only against the float one.

What a config allows between a float program and its int8 package is wide enough to hide a wrong
scale, or another operator. The program that quantization made says what the package must compute,
up to a rounding here and there. So a package may depart from it by no more noise than quantization
itself has put between it and the float program, with a margin: backends round in their own ways,
and some compute more precisely than they are asked to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch.export import ExportedProgram

from pipeline.config.validation import Limits, ValidateConfig
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import generate_inputs
from pipeline.validate.metrics import compare
from pipeline.validate.results import Validation

MARGIN_DB = 3.0  # twice the noise
# Where quantization loses next to nothing, roundings of ranges that are computed as they come leave
# 40.3 dB between XNNPACK and the quantized program, measured on two linear layers.
MOST_DB = 38.0


def least_sqnr_allowed(
    program: ExportedProgram, quantized: ExportedProgram, sets: Sequence[InputSet]
) -> float | None:
    """Return the least SQNR in dB that a package of `quantized` must have against it.

    It is that of `quantized` against `program` on these inputs, the worst of all outputs, less the
    margin. None where nothing can be compared.
    """
    source, made = Source(program), Source(quantized)
    found = []
    for inputs in sets:
        source.reset()
        made.reset()
        try:
            pairs = list(zip(made.run(inputs), source.run(inputs), strict=True))
        except Exception:  # whatever an operator raises; validation reports it
            continue
        figures = (compare(actual, expected).sqnr_db for actual, expected in pairs)
        found += [figure for figure in figures if figure is not None]
    return min(min(found) - MARGIN_DB, MOST_DB) if found else None


def check_quantized(
    validation: Validation,
    validate: Callable[[Mapping[str, ExportedProgram], Mapping[str, Limits]], Validation],
    programs: Mapping[str, ExportedProgram],
    quantized: Mapping[str, ExportedProgram],
    examples: Mapping[str, Sequence[InputSet]],
    settings: ValidateConfig,
) -> Validation:
    """Add to a validation the failures of quantized methods against their quantized programs.

    Args:
        validate: validates the package against some programs, each within its limits.
        quantized: the programs that quantization made; methods that did not run are left out.
        settings: says how many input sets are generated, and their seed.
    """
    ran = [each.method for each in validation.methods if each.runs]
    limits = {}
    for name in (name for name in ran if name in quantized):
        given = list(examples.get(name, ()))
        try:
            generated = generate_inputs(programs[name], settings.inputs, settings.seed, given)
            floor = least_sqnr_allowed(programs[name], quantized[name], [*given, *generated])
        except Exception:  # an example that does not fit, which has failed already
            continue
        if floor is not None:
            # The noise alone is bounded.
            limits[name] = Limits.model_construct(atol=math.inf, rtol=0.0, min_sqnr=floor)
    if not limits:
        return validation
    about = "against the quantized program that it was made of"
    again = validate({name: quantized[name] for name in limits}, limits)
    by_name = {each.method: each for each in again.methods if each.method in limits}
    methods = []
    for method in validation.methods:
        if other := by_name.get(method.method):
            more = [replace(failure, what=f"{failure.what}, {about}") for failure in other.failures]
            failing = method.failing or other.failing
            method = replace(method, failures=[*method.failures, *more], failing=failing)
        methods.append(method)
    return replace(validation, methods=tuple(methods))
