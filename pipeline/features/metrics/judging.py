"""Judges a package's measured metrics against the limits in `validate.metrics`.

A limit is met if the whole confidence interval is within it, and broken if the whole interval is
beyond it. In between, the samples can't tell, and the package is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pipeline.features.metrics.planning import LIMITS_FIELD, find_place
from pipeline.plan.actions import Action
from pipeline.plan.kinds.validate import ValidateInputs
from pipeline.report.formatting import short
from pipeline.report.verdicts import PASSED, worst_verdict
from pipeline.run.prove.judgement import Judgement
from pipeline.store.errors import listed
from pipeline.store.workspace import Workspace

Json = Mapping[str, Any]
_MOST_SAMPLES = 10_000_000  # messages suggest no more than this
_AGAINST_SOURCE = ("max_drop", "max_rise")
_COULD_NOT_FAIL = (
    "a package that always returns the first sample's output would meet this limit too; set a "
    "stricter one, or choose a metric or samples that depend on the output"
)


def prepare_judging(
    action: Action[ValidateInputs], workspace: Workspace
) -> Callable[[Json | None, Json], Judgement]:
    """Return a function that judges a package by its measured metrics."""
    limits = action.key["held_to"].get(LIMITS_FIELD, {})
    places = action.inputs.places

    def judge(manifest: Json | None, measured: Json) -> Judgement:
        if not limits:
            return Judgement({}, [], {})
        rows = list(_judge_all(measured, limits, places))
        failures = [row["sentence"] for row in rows if row["verdict"] == "failed"]
        methods = [_judge_method(method, rows) for method in measured["methods"]]
        record = {"metrics": rows, "methods": methods}
        return Judgement(record, failures, {})

    return judge


def _judge_all(measured: Json, limits: Json, places: Json) -> Iterator[dict[str, Any]]:
    """Yield a row for each limit on a value, and one for each value that is held to none."""
    for method in measured["methods"]:
        for name, facts in (method.get("metrics") or {}).items():
            row = {"metric": name, "method": method["method"], **facts}
            if "not_run" in facts:
                sentence = f"metric {name}: not run: {facts['not_run']}"
                yield {**row, "limit": None, "verdict": "not run", "sentence": sentence}
                continue
            set_limits = limits.get(facts["entry"], {})
            if name != facts["entry"] and set_limits:
                where = f"validate.metrics.{facts['entry']}"
                sentence = (
                    f"{where}: its metric returns named values; set the limit on {name}"
                )
                yield {**row, "limit": None, "verdict": "failed", "sentence": sentence}
                continue
            if not set_limits:
                yield {**row, "limit": None, "verdict": "", "sentence": ""}
            for kind, limit in set_limits.items():
                place = places.get(find_place(facts["entry"], kind), "")
                judged = judge_limit(name, facts, kind, limit)
                yield {**row, "kind": kind, "limit": limit, "place": place, **judged}


def judge_limit(name: str, facts: Json, kind: str, limit: float) -> dict[str, str]:
    """Return the `verdict` on one limit, and a `sentence` on why it hasn't passed, or "".

    Args:
        facts: the facts of the value, from `measuring.compare`.
        kind: `min`, `max`, `max_drop` or `max_rise`.
    """
    value, interval = _find_figure(facts, kind)
    least = kind == "min"
    # With its sign flipped, a minimum is a maximum, so one comparison serves both.
    sign = -1 if least else 1
    figure = _describe_figure(kind, value, interval, facts["samples"])
    bound = f"at most {short(limit)} allowed"
    if least:
        bound = f"at least {short(limit)} required"
    subject = f"metric {name}: {figure}, {bound}"
    if interval is None:
        needed = f"an interval needs at least {facts['least_samples']} samples"
        return {"verdict": "not judged", "sentence": f"{subject}; {needed}"}
    low, high = interval
    best, worst = (high, low) if least else (low, high)
    if sign * (worst - limit) <= 0:
        if _could_fail(facts, kind, limit):
            return {"verdict": PASSED, "sentence": ""}
        return {"verdict": "not judged", "sentence": f"{subject}; {_COULD_NOT_FAIL}"}
    if sign * (best - limit) > 0:
        return {"verdict": "failed", "sentence": subject}
    remedy = _describe_remedy(value, interval, limit, facts)
    return {"verdict": "not judged", "sentence": f"{subject}; {remedy}"}


def _could_fail(facts: Json, kind: str, limit: float) -> bool:
    """Return whether a package that ignores its inputs would break a limit on a drop or rise."""
    still = facts.get("still")
    if still is None or kind not in _AGAINST_SOURCE:
        return True
    drop = facts["source"] - still
    change = drop if kind == "max_drop" else -drop
    return not change <= limit  # NaN breaks it


def _find_figure(facts: Json, kind: str) -> tuple[float, tuple[float, float] | None]:
    """Return the figure that a limit applies to, and its interval."""
    if kind in ("min", "max"):
        return facts["value"], facts["interval"]
    drop, interval = facts["drop"], facts["drop_interval"]
    if kind == "max_drop" or interval is None:
        return (drop if kind == "max_drop" else 0.0 - drop), interval
    # A rise is a negative drop, so the ends of its interval swap.
    low, high = interval
    return 0.0 - drop, (0.0 - high, 0.0 - low)  # not -0


def _describe_figure(
    kind: str, value: float, interval: tuple[float, float] | None, samples: int
) -> str:
    words = {"max_drop": "drop of ", "max_rise": "rise of "}.get(kind, "")
    text = f"{words}{round_figure(value)}"
    if interval is not None:
        low, high = interval
        text += f" ({round_figure(low)} to {round_figure(high)})"
    return f"{text} on {samples:,} samples"


def round_figure(value: float) -> str:
    """Format a metric's value to three significant digits."""
    return f"{value:.3g}"


def _describe_remedy(
    value: float, interval: tuple[float, float], limit: float, facts: Json
) -> str:
    """Describe how many samples would settle the verdict if the value stays the same."""
    number = count_needed(value, interval, limit, facts["samples"])
    if number is None:
        return "the value is too close to the limit for more samples to settle it"
    need = f"about {number:,} samples would settle it"
    if facts["more"]:
        return f"{need}: set `samples: {number}` in validate.metrics.{facts['entry']}"
    return f"{need}, but the data has no more"


def count_needed(
    value: float, interval: tuple[float, float], limit: float, samples: int
) -> int | None:
    """Estimate the number of samples with which the interval would end at the limit.

    The width of an interval falls with the square root of the number of samples; if no sample shows
    any drop, the width of the drop's interval falls with the number itself. None if the estimate is
    above ten million, or the value is equal to the limit.
    """
    low, high = interval
    half = high - value if limit > value else value - low
    gap = abs(limit - value)
    if not gap:
        return None
    power = 1 if value == 0 and low == -high else 2
    number = samples * (half / gap) ** power
    if number > _MOST_SAMPLES:
        return None
    # Rounded up to two digits: the estimate is no more precise than that.
    digits = max(0, int(math.log10(max(number, 1))) - 1)
    step = 10**digits
    return math.ceil(number / step) * step


def _judge_method(method: Json, rows: list[dict[str, Any]]) -> Json:
    """Return the record of a method, with the verdict of its metrics if that is worse.

    Metrics that fail are failures of the package and don't change the method's verdict.
    """
    of_method = [row for row in rows if row["method"] == method["method"]]
    unjudged = [row for row in of_method if row["verdict"] in ("not judged", "not run")]
    if not unjudged:
        return _judge_quantization(method, of_method)
    # A failure outranks an open question.
    if method["verdict"] != PASSED:
        return method
    verdict = worst_verdict(row["verdict"] for row in unjudged)
    reasons = [row["sentence"] for row in unjudged if row["verdict"] == verdict]
    return {**method, "verdict": verdict, "verdict_reason": listed(reasons)}


def _judge_quantization(method: Json, rows: list[dict[str, Any]]) -> Json:
    """Return the record of a method, with its quantization passed if metrics vouch for it.

    They do if the config limits drops or rises from the float program's metrics, all of these
    limits passed, and nothing else in the config limits the accuracy of the quantization.
    """
    quantization = method.get("quantization")
    held = [row for row in rows if row.get("kind") in _AGAINST_SOURCE]
    if not held or any(row["verdict"] != PASSED for row in held):
        return method
    if not quantization or quantization["verdict"] != "not judged":
        return method
    if quantization["limits"] or method.get("random") or method.get("left_out"):
        return method
    words = []
    for row in held:
        figure, interval = _find_figure(row, row["kind"])
        text = _describe_figure(row["kind"], figure, interval, row["samples"])
        words.append(f"{row['metric']}, {text}")
    reason = f"within {listed(words)}"
    judged = {**quantization, "verdict": PASSED, "reason": reason}
    return {**method, "quantization": judged}
