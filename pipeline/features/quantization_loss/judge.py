"""The verdict on a quantization: is the quantized program good enough to replace the float one?

This is a different question from whether the package matches its quantized program, which limits
derived from rounding answer. Only a limit in the config says how much quantization may cost. It is
judged on the examples, since static ranges suit the data that they were observed on, not noise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from pipeline.config.validation import Limits
from pipeline.features.quantization_loss.parts import Part, name_part
from pipeline.report.verdicts import Verdict
from pipeline.store.errors import listed, plural
from pipeline.validate.default_limits import LEAST_SQNR
from pipeline.validate.limits import LIMITS
from pipeline.validate.metrics import (
    OutputError,
    compare,
    iter_chunks,
    json_number,
)

_MOST_NAMED = 3
# The limits that mean something for a class index or a mask, where distances don't.
OF_LABELS = ("atol", "rtol", "max_mean_abs", "max_p999_abs", "min_agreement")
_SUGGESTED = ("min_sqnr", "min_agreement")
_LEAST_OF_PART = 8  # values; all of fewer may be near zero by chance
_SEPARATE = (
    "the program concatenates it with other values, which may take up the quantized range; return "
    "it as a separate output"
)


class PooledOutput:
    """Sums over all values of an output in several calls, where both sides are finite.

    `signal` is the sum of e^2, `noise` of (a - e)^2, `power` of a^2 and `product` of a e;
    `least_sqnr` is the SQNR of the worst call, in dB. `is_label` says that the values are choices
    (`labels.find_labels`).
    """

    def __init__(self, is_label: bool = False) -> None:
        self.is_label = is_label
        self.calls: int = 0
        self.values: int = 0
        self.signal: float = 0.0
        self.noise: float = 0.0
        self.power: float = 0.0
        self.product: float = 0.0
        self.max_abs: float = 0.0
        self.agreeing: int = 0
        self.rows: int = 0
        self.least_sqnr: float = math.inf
        self.is_integer: bool = False
        self._first: Tensor | None = None  # expected in the first call, if integers
        self._still: int = 0  # later integers that equal those of the first call
        self._later: int = 0  # later integers in all

    def add(self, actual: Any, expected: Any, error: OutputError) -> None:
        """Add the values of a call, and their error.

        A mismatch of shapes or dtypes counts as infinite noise.
        """
        self.calls += 1
        self.max_abs = max(self.max_abs, error.max_abs)
        self.agreeing += error.agreeing
        self.rows += error.rows
        self._add_integers(actual, expected)
        if error.sqnr_db is not None and not self.is_label:
            self.least_sqnr = min(self.least_sqnr, error.sqnr_db)
        # Choices and text have no noise; `_add_integers` has counted choices.
        if not isinstance(expected, Tensor) or expected.is_complex() or self.is_label:
            return
        if error.mismatch is not None or error.disagreeing:
            self.noise = math.inf
            return
        for a, e, distance in iter_chunks(actual, expected):
            if not distance.sum().isfinite():
                finite = a.isfinite() & e.isfinite()
                a, e, distance = a[finite], e[finite], distance[finite]
            self._add_floats(a, e, distance)

    def _add_floats(self, actual: Tensor, expected: Tensor, distance: Tensor) -> None:
        """Add finite values in float64, and their distances."""
        self.values += actual.numel()
        self.signal += float(expected.dot(expected))
        self.noise += float(distance.dot(distance))
        self.power += float(actual.dot(actual))
        self.product += float(actual.dot(expected))

    def _add_integers(self, actual: Any, expected: Any) -> None:
        """Count equal integers and bools as agreement."""
        if not isinstance(expected, Tensor) or expected.dtype.is_floating_point:
            return
        self.is_integer = True
        self._follow(expected)
        if isinstance(actual, Tensor) and actual.shape == expected.shape:
            self.agreeing += int((actual == expected).sum())
            self.rows += expected.numel()

    def _follow(self, expected: Tensor) -> None:
        """Count how many integers stay as they were in the first call."""
        if self._first is None:
            self._first = expected.detach().clone()
        elif expected.shape == self._first.shape:
            self._still += int((expected == self._first).sum())
            self._later += expected.numel()

    def could_disagree(self, least: float) -> bool:
        """Return whether the first call's integers, in place of all later ones, agree too little.

        True if there is no later call of the same shape, which shows nothing.
        """
        return not self._later or self._still / self._later < least

    @property
    def is_exact(self) -> bool:
        return self.max_abs == 0 and not math.isinf(self.noise)

    def is_covered(self, limits: Sequence[str]) -> bool:
        """Return whether one of these limits applies to this output."""
        if self.rows and "min_agreement" in limits:
            return True
        if self.is_label:
            return any(name in OF_LABELS for name in limits if name != "min_agreement")
        return bool(self.signal) and any(name != "min_agreement" for name in limits)

    @property
    def sqnr_db(self) -> float | None:
        """Return 10 log10(signal / noise), or None without a signal."""
        if not self.signal:
            if math.isinf(self.noise):
                return -math.inf
            return None
        if not self.noise:
            return math.inf
        if self.noise < math.inf:
            return 10 * math.log10(self.signal / self.noise)
        return -math.inf

    @property
    def cosine(self) -> float | None:
        """Return the cosine between both sides, or None without a signal."""
        if not self.signal:
            return None
        if self.power:
            return self.product / math.sqrt(self.signal * self.power)
        return 0.0

    @property
    def agreement(self) -> float | None:
        """Return the share of rows whose greatest values share a place; None without rows."""
        if self.rows:
            return self.agreeing / self.rows
        return None

    def to_json(self, output: str) -> dict[str, Any]:
        return {
            "output": output,
            "calls": self.calls,
            "values": self.values,
            "max_abs": json_number(self.max_abs),
            "sqnr_db": json_number(self.sqnr_db),
            "cosine": json_number(self.cosine),
            "agreement": json_number(self.agreement),
            "agreeing": self.agreeing,
            "rows": self.rows,
        }


class QuantizationJudge:
    """Collects the effects of quantization on a method's outputs, and judges them.

    Attributes:
        outputs: the names of the outputs.
        limits: the limits of the config.
        diverges: how the program with observers, which rounds nothing yet, diverges from the float
            one; "" if it agrees to float accuracy, or if that isn't known.
        labels: the positions of outputs whose values are choices (`labels.find_labels`).
        parts: by output, the parts that the program concatenates (`parts.find_parts`).
        pooled_parts: by output and part, the sums over all calls on examples.
        inputs_vary: whether two calls on examples had different inputs.
        examples: by output, the sums over all calls on examples.
        generated: by output, the sums over all calls on other inputs.
    """

    def __init__(
        self,
        outputs: Sequence[str],
        limits: Limits,
        diverges: str = "",
        labels: Collection[int] = (),
        parts: Mapping[int, Sequence[Part]] | None = None,
    ) -> None:
        self.outputs = outputs
        self.limits = limits
        self.diverges = diverges
        self.labels = labels
        self.parts = parts or {}
        self.pooled_parts: dict[tuple[int, str], PooledOutput] = {}
        self.inputs_vary: bool = False
        self.examples: dict[int, PooledOutput] = {}
        self.generated: dict[int, PooledOutput] = {}

    def add(
        self,
        actual: Sequence[Any],
        expected: Sequence[Any],
        errors: Sequence[OutputError],
        generated: bool,
    ) -> None:
        """Add the outputs of a call.

        Args:
            actual: the outputs of the package or its quantized program.
            expected: the outputs of the float program.
            errors: of the actual outputs.
            generated: whether the inputs are anything but examples.
        """
        pools = self.generated if generated else self.examples
        outputs = zip(actual, expected, errors, strict=True)
        for place, output in enumerate(outputs):
            pool = pools.setdefault(place, PooledOutput(place in self.labels))
            pool.add(*output)
            if not generated:
                self._add_parts(place, *output)

    def _add_parts(
        self, place: int, actual: Any, expected: Any, error: OutputError
    ) -> None:
        for part in self.parts.get(place, ()):
            name = name_part(part)
            pool = self.pooled_parts.setdefault((place, name), PooledOutput())
            if error.mismatch is None:
                values, other_values = actual[part], expected[part]
                pool.add(values, other_values, compare(values, other_values))

    @property
    def was_called(self) -> bool:
        return bool(self.examples or self.generated)

    @property
    def limit_names(self) -> list[str]:
        """The limits on accuracy that the config sets."""
        return [name for name in LIMITS if getattr(self.limits, name) is not None]

    def find_divergences(self) -> list[tuple[str, str]]:
        """Return the outputs that diverge too far from the float ones, each with its fault.

        All examples are taken together. "" stands for all outputs.
        """
        divergences = []
        if self.diverges:
            divergences.append(("", self.diverges))
        for place, pool in self.examples.items():
            name = self.outputs[place]
            for fault in (
                _check_noise(pool),
                _check_agreement(pool, self.limits.min_agreement),
            ):
                if fault:
                    divergences.append((name, fault))
        named = {name for name, _ in divergences}
        for (place, part), pool in self.pooled_parts.items():
            name = self.outputs[place]
            if name in named or pool.values < _LEAST_OF_PART:
                continue
            if fault := _check_noise(pool):
                divergences.append((name, f"{part} alone, {fault}; {_SEPARATE}"))
        return divergences

    def judge(
        self, failed: bool, left_out: int = 0, random: bool = False
    ) -> dict[str, Any]:
        """Return the verdict with its reason and figures.

        Args:
            failed: whether a call, or a divergence from `find_divergences`, exceeds a limit.
            left_out: the number of examples that there was no time for.
            random: whether the method samples.
        """
        verdict, reason = self._judge(failed, left_out)
        if random and verdict != "failed":
            verdict = "not judged"
            reason = "it samples, so values can't be compared"
        return {
            "verdict": verdict,
            "reason": reason,
            "limits": {name: getattr(self.limits, name) for name in self.limit_names},
            "floor": LEAST_SQNR,
            "examples": _pooled_json(self.outputs, self.examples),
            "generated": _pooled_json(self.outputs, self.generated),
        }

    def _judge(self, failed: bool, left_out: int) -> tuple[Verdict, str]:
        if failed:
            return "failed", "the quantized program differs too much from the float one"
        if not self.was_called:
            return (
                "not run",
                "the quantized program was not run against the float program",
            )
        if not self.examples:
            return "not judged", (
                "no examples: generated inputs, and the arguments of an export, say nothing "
                "about accuracy; define `example_inputs(method)` in the exporter, or `validate: "
                "{methods: {...: "
                "{examples: [...]}}}`"
            )
        calls = max(pool.calls for pool in self.examples.values())
        same = "" if self.inputs_vary or calls == 1 else ", all on equal inputs"
        on = f"on examples ({plural(calls, 'call')}{same}): {self._figures()}"
        if left_out:
            return "not judged", (
                f"validate.budget was exhausted before {plural(left_out, 'example')} ran; raise it "
                f"({on})"
            )
        if not self.limit_names:
            suggested = " or ".join(f"`{name}`" for name in _SUGGESTED)
            return (
                "not judged",
                f"no limit on its accuracy ({on}); set {suggested} to judge it",
            )
        if uncovered := self._find_uncovered():
            return "not judged", (
                f"no limit applies to {listed(uncovered, _MOST_NAMED)}: {self._remedy} ({on})"
            )
        limits = ", ".join(
            f"{name} {getattr(self.limits, name):g}" for name in self.limit_names
        )
        return "passed", f"within {limits}, {on}"

    def find_indifferent_outputs(self) -> list[str]:
        """Return the inexact integer outputs that `min_agreement` alone judges, but could not fail.

        For example, 0.9 can't fail for a mask that is false at 95 % of all positions.
        """
        least = self.limits.min_agreement
        others = [name for name in self.limit_names if name != "min_agreement"]
        indifferent = []
        for place, pool in self.examples.items():
            if least is None or pool.is_exact or pool.is_covered(others):
                continue
            if not pool.could_disagree(least):
                indifferent.append(self.outputs[place])
        return indifferent

    @property
    def _remedy(self) -> str:
        """The limits that would apply to the outputs that no limit applies to."""
        uncovered = set(self._find_uncovered())
        labels = {self.outputs[place] for place in self.labels}
        if uncovered <= labels:
            return "set `min_agreement`, since distances between classes mean nothing"
        return (
            "`min_agreement` applies to rows and integers, the others to values that are not all "
            "zero"
        )

    def _find_uncovered(self) -> list[str]:
        """Return the outputs that no limit judges, except exact integers."""
        uncovered = []
        for place, pool in self.examples.items():
            is_exact_integer = pool.is_integer and pool.is_exact
            if not is_exact_integer and not pool.is_covered(self.limit_names):
                uncovered.append(self.outputs[place])
        return uncovered

    def _figures(self) -> str:
        """Return the worst figures over all examples, in words."""
        words = []
        noisy = [pool for pool in self.examples.values() if pool.sqnr_db is not None]
        if noisy:
            noisiest = min(noisy, key=lambda pool: pool.sqnr_db or 0.0)
            figure = f"SQNR {noisiest.sqnr_db:.1f} dB"
            if noisiest.calls > 1:
                figure += f" ({noisiest.least_sqnr:.1f} dB on the worst)"
            words.append(figure)
        with_rows = [pool for pool in self.examples.values() if pool.rows]
        if with_rows:
            worst = min(with_rows, key=lambda pool: pool.agreeing / pool.rows)
            words.append(
                f"agreement in {worst.agreeing} of {plural(worst.rows, 'row')}"
            )
        return listed(words, _MOST_NAMED) or "exact"


def _check_noise(pool: PooledOutput) -> str:
    """Return a sentence if noise comes too near the signal over all examples, or ""."""
    if pool.is_integer:  # perhaps choices that weren't recognized, such as token IDs
        return ""
    if pool.sqnr_db is not None and pool.sqnr_db < LEAST_SQNR:
        over = (
            f"over {pool.values:,} values of {plural(pool.calls, 'call')} on examples"
        )
        return (
            f"quantized, SQNR {pool.sqnr_db:.1f} dB {over} is below {LEAST_SQNR:g} dB: noise at "
            "half the level of the signal"
        )
    return ""


def _check_agreement(pool: PooledOutput, least: float | None) -> str:
    """Return a sentence if too few rows agree over all examples, or ""."""
    if least is None or pool.agreement is None or pool.agreement >= least:
        return ""
    share = f"in {pool.agreeing} of {plural(pool.rows, 'row')}"
    return (
        f"agreement of the greatest values {share} of the examples is below {least:g}"
    )


def _pooled_json(
    names: Sequence[str], pools: dict[int, PooledOutput]
) -> list[dict[str, Any]]:
    return [pool.to_json(names[place]) for place, pool in sorted(pools.items())]
