"""The result of one call of a method, and the worst figures and widest limits of several calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config.validation import Limits
from pipeline.validate.limits import FIGURES, widest
from pipeline.validate.metrics import OutputError, json_number


@dataclass(frozen=True)
class JudgedCall:
    """One call on an input set, and how far its outputs are from the expected ones.

    Attributes:
        origin: names the input set.
        step: counts the calls of a sequence from 1; 0 for a method without state.
        sequence: names the sequence, which starts on a newly opened package.
        generated: whether the inputs were generated; else they are an example.
        case: the kind of a generated set that is not random.
        limits: the limits that each output was held to.
        of_limits: the ratio of each output's error to its limits, from `limits.judge_output`.
        unjudged: the indices of outputs that exceed the capped limits and whose wider limits are
            too wide to mean anything.
    """

    origin: str
    outputs: tuple[OutputError, ...]
    step: int = 0
    sequence: str = ""
    generated: bool = False
    case: str = ""
    limits: tuple[Limits, ...] = ()
    of_limits: tuple[float | None, ...] = ()
    unjudged: tuple[int, ...] = ()

    @property
    def is_example(self) -> bool:
        return not self.generated

    def to_json(self) -> dict[str, Any]:
        unlisted = {"limits", "of_limits", "unjudged"}
        record = {
            name: value for name, value in vars(self).items() if name not in unlisted
        }
        outputs = [error.to_json() for error in self.outputs]
        for output, ratio in zip(outputs, self.of_limits, strict=False):
            output["of_limit"] = json_number(ratio)
        for place in self.unjudged:
            outputs[place]["judged"] = False
        return {
            **record,
            "outputs": outputs,
            "limits": [
                output_limits.model_dump(exclude_defaults=True)
                for output_limits in self.limits
            ],
        }


def figures_to_json(figures: Mapping[str, float | None]) -> dict[str, Any]:
    return {name: json_number(value) for name, value in figures.items()}


def find_wide_limits(runs: Sequence[JudgedCall]) -> dict[str, float | None]:
    output_limits = [
        limits for run in runs if run.case != "large" for limits in run.limits
    ]
    return widest(output_limits) if output_limits else {}


def find_worst(runs: Sequence[JudgedCall]) -> dict[str, float | None]:
    """Return the worst value of each figure over all outputs (`MethodValidation.worst`)."""
    usual = [run for run in runs if not run.case] or runs
    errors = [error for run in usual for error in run.outputs]
    worst_figures: dict[str, float | None] = {
        "max_abs": max((e.max_abs for e in errors), default=None)
    }
    for name, (_, limit) in FIGURES.items():
        figures = [figure for e in errors if (figure := getattr(e, name)) is not None]
        worst = max if limit.startswith("max_") else min
        worst_figures[name] = worst(figures, default=None)
    return worst_figures
