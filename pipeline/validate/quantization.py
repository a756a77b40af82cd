"""Checks a quantized method against its quantized program too, not only against the float one.

What a config allows between a float program and its int8 package is wide enough to hide a wrong
scale, or another operator. The program that quantization made says what the package must compute,
up to a rounding here and there. So a package may depart from it by no more noise than quantization
itself has put between it and the float program, with a margin: backends round in their own ways,
and some compute more precisely than they are asked to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch.export import ExportedProgram

from pipeline.config.validation import Limits
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.validate.method import MethodValidator
from pipeline.validate.metrics import compare
from pipeline.validate.results import MethodValidation

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


def check_quantized(validator: MethodValidator, quantized: ExportedProgram) -> None:
    """Add to the results of a method that ran its failures against the program that quantization
    made."""
    result = validator.result
    try:
        floor = least_sqnr_allowed(validator.program, quantized, validator.sets)
    except Exception as error:
        validator.fail_for(error)
        return
    if floor is None:
        return
    # The noise alone is bounded.
    limits = Limits.model_construct(atol=math.inf, rtol=0.0, min_sqnr=floor)
    again = MethodValidation(result.method)
    MethodValidator(again, quantized, validator.files, validator.settings, limits).run(
        validator.examples
    )
    about = "against the quantized program that it was made of"
    result.failures += [replace(each, what=f"{each.what}, {about}") for each in again.failures]
    result.failing = result.failing or again.failing
