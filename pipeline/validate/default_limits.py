"""Derives the limits on an output from its program's dtypes if the config sets none.

They are a small multiple of the effect that rounding alone has on this output
(`features/rounding`), and never tighter than a share of it that depends on its dtype. This holds
float16, bfloat16 and quantized programs to the accuracy they can reach, whatever their depth, and
keeps the limits of float32 programs as tight as ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from pipeline.program.quantized_values import float_dtypes, is_quantized
from pipeline.validate.limits import OutputLimits
from pipeline.validate.metrics import compare
from pipeline.validate.worst_place import find_worst_place

RUNS = 2  # of the program with every value rounded again
# Factors on the effect of rounding, on the worst value and on all values as noise. They leave a
# margin, since kernels round in different ways.
TIMES, TIMES_NOISE = 2.0, 1.5
# The least tolerance, relative to the greatest value and to each value, or in units of the dtype's
# eps. XNNPACK's exp in float16 is off by up to 6 units, according to its test in ExecuTorch
# (test_exp.py).
LEAST_ATOL, LEAST_RTOL = 1e-4, 1e-3
_UNITS, _UNITS_OF_FLOAT16 = 4, 6
# Smaller float32 numbers are subnormal; many kernels treat them as zero or flush them to zero.
_SUBNORMAL = torch.finfo(torch.float32).tiny
# Below this, noise exceeds half the signal and a quantized program no longer resembles its float
# program. It applies to all values of all examples together, as few values can be near zero by
# chance.
LEAST_SQNR = 3.0  # dB
# The largest limit derived from rounding, as a share of the signal. Beyond it, a fault that people
# would notice (a wrong activation, a missing layer) passes for rounding: damaging packages
# (tests/mutations) produces few faults between 1e-4 and 1e-2 of the signal, and many above. Two
# correct float32 kernels of the models here differ by 1e-5. A program with coarser numbers gets the
# share that its dtype needs: 8 units in the last place, which is 6 % of bfloat16, and a tenth for
# quantized values, some of which move by a whole step.
MOST_SHARE, MOST_SHARE_QUANTIZED, _MOST_UNITS = 1e-2, 1e-1, 8


def margin(samples: int) -> float:
    """Return a factor on the effect of rounding, larger if it was measured on few values."""
    return 1 + 4 / samples


def limits_of_rounding(
    expected: Any, rounded: Sequence[Any], usual: float, least_units: int | None = None
) -> OutputLimits:
    """Return the limits on an output.

    Args:
        rounded: the same output with every value of the program rounded again, once for each run.
        usual: the greatest magnitude of this output on any inputs so far.
        least_units: the least tolerance in units in the last place, if both sides run the same
            kernels; by default the tolerance for different kernels.
    """
    if not isinstance(expected, Tensor) or not expected.numel():
        return OutputLimits(atol=0.0, rtol=0.0)
    comparable = [
        value
        for value in rounded
        if isinstance(value, Tensor) and value.shape == expected.shape
    ]
    # A run that isn't needed for the verdict is left out, and must not widen the limits.
    samples = expected.numel() * max(len(comparable), RUNS)
    if not (expected.dtype.is_floating_point or expected.is_complex()):
        return _limits_of_integers(expected, comparable, TIMES * margin(samples))
    return _limits_of_floats(expected, comparable, usual, margin(samples), least_units)


def _limits_of_floats(
    expected: Tensor,
    rounded: Sequence[Tensor],
    usual: float,
    more: float,
    least_units: int | None,
) -> OutputLimits:
    times = TIMES * more
    eps = torch.finfo(expected.dtype).eps
    if least_units is None:
        units = _least_units(expected.dtype)
        least = max(LEAST_ATOL, units * eps)
        rtol = max(LEAST_RTOL, units * eps)
    else:
        least = rtol = least_units * eps
    # Near the limits of a dtype's range, rounding alone makes values infinite or NaN.
    nonfinite = False
    beyond = 0.0
    least_sqnr = math.inf
    is_known = expected.isfinite()
    for value in rounded:
        is_finite = value.isfinite()
        nonfinite = nonfinite or not is_finite.equal(is_known)
        finite = torch.where(is_finite & is_known, value, expected)
        error = compare(finite, expected)
        worst = find_worst_place(error, finite, expected, 0.0, rtol / times)
        beyond = max(beyond, times * worst.excess)
        if error.sqnr_db is not None:
            least_sqnr = min(least_sqnr, error.sqnr_db)
    floor = _SUBNORMAL if usual else 0.0
    atol = max(beyond, least * min(1.0, usual), floor)
    noisiest = least_sqnr - decibels(TIMES_NOISE * more)
    return OutputLimits(
        atol=_round_up(atol),
        rtol=rtol,
        min_sqnr=_round_down(min(noisiest, -decibels(least))),
        nonfinite=nonfinite,
    )


def _limits_of_integers(
    expected: Tensor, rounded: Sequence[Tensor], times: float
) -> OutputLimits:
    """Return the limits on integers and bools: exact unless rounding changes some.

    If it does (an argmax or a quantized output, for example), as many may differ by as much, with a
    margin.
    """
    errors = [compare(value, expected) for value in rounded]
    worst = max((error.max_abs for error in errors), default=0.0)
    mean = max((error.mean_abs for error in errors), default=0.0)
    if not worst:
        return OutputLimits(atol=0.0, rtol=0.0)
    return OutputLimits(
        atol=times * worst,
        rtol=0.0,
        max_mean_abs=_round_up(times * mean),
        integers=True,
    )


def most_share(program: ExportedProgram) -> float:
    """Return the largest derived limit for a program, as a share of the signal."""
    if is_quantized(program):
        return MOST_SHARE_QUANTIZED
    shares = [MOST_SHARE]
    for name in float_dtypes(program):
        eps = torch.finfo(getattr(torch, name)).eps
        shares.append(_MOST_UNITS * eps)
    return max(shares)


def cap_limits(
    limits: OutputLimits, expected: Any, usual: float, share: float
) -> OutputLimits:
    """Return limits that are at most a share of the signal.

    Integers that rounding changes, such as the index of the greatest value, must be exact; steps of
    quantized values may be off by one.

    Args:
        usual: the greatest magnitude of this output on any inputs so far.
    """
    if limits.integers:
        takes_step = (
            share >= MOST_SHARE_QUANTIZED and expected.dtype in _QUANTIZED_DTYPES
        )
        most = 1.0 if takes_step else 0.0
        return limits.model_copy(update={"atol": min(limits.atol or 0.0, most)})
    update: dict[str, float | bool] = {"nonfinite": False}
    if limits.atol:
        most = max(_round_up(share * usual), _SUBNORMAL)
        update["atol"] = min(limits.atol, most)
        if limits.rtol is not None:
            update["rtol"] = min(limits.rtol, share)
        if limits.min_sqnr is not None:
            update["min_sqnr"] = max(limits.min_sqnr, -decibels(share))
    return limits.model_copy(update=update)


_QUANTIZED_DTYPES = (torch.int8, torch.uint8, torch.int16)


def what_it_computes_in(program: ExportedProgram) -> str:
    """Return "quantized", else a program's coarsest float dtype, else "integers"."""
    if is_quantized(program):
        return "quantized"
    return next(iter(float_dtypes(program)), "integers")


def _least_units(dtype: torch.dtype) -> int:
    return _UNITS_OF_FLOAT16 if dtype == torch.float16 else _UNITS


def explain_rounding(program: ExportedProgram) -> str:
    """Return the reason for a program's limits, in words."""
    dtypes = float_dtypes(program)
    units = max(
        (_least_units(getattr(torch, dtype)) for dtype in dtypes), default=_UNITS
    )
    description = f"computes in {', '.join(dtypes) or 'integers'}"
    if is_quantized(program):
        description += " and quantized values"
    return (
        f"{description}: {TIMES:g} times the largest error that rounding every value again causes, "
        f"and {TIMES_NOISE:g} times its noise; at least {LEAST_ATOL:g} of the largest value, or "
        f"{units} units in the last place"
    )


CONFIG_REASON = "set in the config"


def decibels(times: float) -> float:
    return 20 * math.log10(times)


def _round_up(value: float) -> float:
    """Round up to two significant digits, since further ones vary with the number of threads."""
    if not value or not math.isfinite(value):
        return value
    digits = 1 - math.floor(math.log10(value))
    scaled = math.ceil(value * 10**digits - 1e-9)
    return float(f"{scaled / 10**digits:.2g}")


def _round_down(value: float) -> float:
    return math.floor(value * 10) / 10
