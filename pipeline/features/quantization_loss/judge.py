"""The verdict on a quantization: is the quantized program good enough to replace the float one?

This is a different question from whether the package matches its quantized program, which limits
derived from rounding answer. Only a limit in the config says how much quantization may cost. It is
judged on the examples, since static ranges suit the data that they were observed on, not noise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pipeline.config.validation import Limits
from pipeline.features.quantization_loss.parts import Part, name_part
from pipeline.features.quantization_loss.pooled_output import PooledOutput, pooled_json
from pipeline.report.verdicts import Verdict
from pipeline.store.errors import listed, plural
from pipeline.validate.default_limits import LEAST_SQNR
from pipeline.validate.limits import LIMITS
from pipeline.validate.metrics import OutputError, compare

_MOST_NAMED = 3
_SUGGESTED = ("min_sqnr", "min_agreement")
_LEAST_OF_PART = 8  # values; all of fewer may be near zero by chance
_SEPARATE = (
    "the program concatenates it with other values, which may take up the quantized range; return "
    "it as a separate output"
)


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
            "examples": pooled_json(self.outputs, self.examples),
            "generated": pooled_json(self.outputs, self.generated),
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
