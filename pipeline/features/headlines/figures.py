"""Picks the figure and the limit that decide a method's verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pipeline.report.formatting import decibel, error, percent, ratio, short
from pipeline.report.verdicts import PASSED, VERDICTS, Verdict, method_verdict

Json = Mapping[str, Any]
# A verdict, the deciding figure and its limit as text, and the ratio of the error to the limit.
Headline = tuple[Verdict, str, str, float]
NO_LIMIT = "none"

# By limit: the field of the figure that it applies to, and the function that formats both.
_JUDGED: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "min_sqnr": ("sqnr_db", decibel),
    "min_agreement": ("agreement", percent),
    "min_cosine": ("cosine", ratio),
    "max_relative": ("relative", error),
    "max_mean_abs": ("mean_abs", error),
    "max_p999_abs": ("p999_abs", error),
    "atol": ("max_abs", error),
}


def find_headline(methods: Iterable[Json]) -> Headline:
    """Return the headline of the method with the worst verdict.

    Among several such methods, the one closest to its limit, or farthest beyond it, wins. Without
    methods, the headline is a pass with empty strings.
    """
    headlines: list[Headline] = []
    for method in methods:
        verdict = method_verdict(method)
        headlines.append((verdict, *_find_decisive(method, verdict)))

    def badness(headline: Headline) -> tuple[int, float]:
        verdict, _, _, distance = headline
        return VERDICTS.index(verdict), -distance

    return min(headlines, key=badness, default=(PASSED, "", "", 0.0))


def _find_decisive(method: Json, verdict: Verdict) -> tuple[str, str, float]:
    """Return the deciding figure and limit of a method, as text, and the ratio of error to limit.

    They come from another device if the method fails and that device exceeds its limit by more
    than this machine does.
    """
    here = _find_here(method, verdict)
    elsewhere = _find_elsewhere(method)
    if verdict == method["verdict"] == "failed" and elsewhere[2] > max(here[2], 1):
        return elsewhere
    return here


def _find_elsewhere(method: Json) -> tuple[str, str, float]:
    """Return the worst error on another device, as a multiple of its limit."""
    worst = "", "", 0.0
    for name, facts in (method.get("devices") or {}).items():
        of_limit = facts.get("of_limit")
        distance = float(of_limit or 0)  # "inf" if unbounded
        if distance > worst[2]:
            worst = f"{error(of_limit)} × limit", f"1 on {name}", distance
    return worst


def _find_here(method: Json, verdict: Verdict) -> tuple[str, str, float]:
    """Return the deciding figure, limit and ratio from the runs on this machine."""
    quantization = method.get("quantization")
    reference = method.get("reference")
    if reference and reference["verdict"] == verdict not in (PASSED, method["verdict"]):
        return _reference_figures(reference)
    if quantization and quantization["verdict"] == verdict:
        return _quantization_figures(method, quantization)
    if method.get("quantized"):
        return _held_figures(method["quantized"])
    if not method["runs"] or method["kind"] != "program":
        return "", "", 0.0
    return _lowering_figures(method)


def _quantization_figures(method: Json, quantization: Json) -> tuple[str, str, float]:
    """Return the figure, limit and ratio of the first broken quantization limit.

    If none is broken, they are those of the first limit. Without limits, they come from the SQNR,
    or else from the absolute error.
    """
    limits = quantization["limits"]
    pools = quantization["examples"] or quantization["generated"]
    figures = quantization.get("figures", method) | _pooled_agreement(pools)
    judged = [name for name in _JUDGED if limits.get(name) is not None]

    def is_kept(name: str) -> bool:
        field, _ = _JUDGED[name]
        return not _breaks(name, figures.get(field), limits[name])

    judged.sort(key=is_kept)
    for name in judged:
        field, style = _JUDGED[name]
        value = figures.get(field)
        limit = limits[name]
        if value is not None:
            sign = "≤"
            if name.startswith("min_"):
                sign = "≥"
            return style(value), f"{sign} {style(limit)}", _distance(name, value, limit)
    sqnr = figures.get("sqnr_db")
    if sqnr is None:
        return error(figures.get("max_abs")), NO_LIMIT, 0.0
    words = NO_LIMIT
    if quantization["verdict"] == "failed":
        words = f"≥ {decibel(quantization['floor'])}"
    # Without a limit, the noisier method counts as the worse one.
    return decibel(sqnr), words, _distance("min_sqnr", sqnr, 0.0)


def _reference_figures(reference: Json) -> tuple[str, str, float]:
    """Return the error of the exported program against its reference, with its limit and ratio."""
    ratio = reference["of_limit"]
    if ratio == "inf":
        distance = float("inf")
    else:
        distance = ratio or 0.0
    atol = reference.get("limits", {}).get("atol")
    if atol is None:
        limit = "reference"
    else:
        limit = f"{short(atol)} reference"
    return error(reference["max_abs"]), limit, distance


def _pooled_agreement(pools: Iterable[Json]) -> dict[str, Any]:
    """Return the worst agreement of any output, since its limit applies to all calls together."""
    shares = [pool["agreement"] for pool in pools if pool["agreement"] is not None]
    if shares:
        return {"agreement": min(shares)}
    return {}


def _distance(limit: str, figure: Any, value: float) -> float:
    """Return the ratio of an error to its limit: above 1 if the limit is exceeded."""
    if not isinstance(figure, int | float):
        if figure == "inf":
            return 0.0
        return float("inf")
    if limit == "min_sqnr":
        return float(10 ** (min(value - figure, 6000.0) / 20))
    if limit.startswith("min_"):
        figure = 1 - figure
        value = 1 - value
    if value:
        return float(figure / value)
    if figure:
        return float("inf")
    return 0.0


def _breaks(limit: str, figure: Any, value: float) -> bool:
    if not isinstance(figure, int | float):
        return figure == "-inf"
    if limit.startswith("min_"):
        return figure < value
    return figure > value


def _held_figures(comparison: Json) -> tuple[str, str, float]:
    """Return the error against the quantized program, with its limit and ratio."""
    atol = comparison["limits"].get("atol")
    if atol is None:
        return error(comparison["max_abs"]), NO_LIMIT, 0.0
    return (
        error(comparison["max_abs"]),
        f"{short(atol)} quantized",
        _distance("atol", comparison["max_abs"], atol),
    )


def _lowering_figures(method: Json) -> tuple[str, str, float]:
    """Return the error closest to its limit, or farthest beyond it, with the limit and ratio."""
    origin = method.get("limits_from", "")
    worst, figures, limits = _find_worst_output(method)
    atol = limits.get("atol")
    least_sqnr = limits.get("min_sqnr")
    if atol is not None and not _broken_ratio(figures, limits):
        return error(figures["max_abs"]), f"{short(atol)} {origin}".strip(), worst
    sqnr = figures.get("sqnr_db")
    if least_sqnr is not None and sqnr is not None:
        return decibel(sqnr), f"≥ {decibel(least_sqnr)}", worst
    return error(figures["max_abs"]), origin or NO_LIMIT, worst


def _find_worst_output(method: Json) -> tuple[float, Json, Json]:
    """Return the ratio, figures and limits of the output that comes closest to its limit.

    If no output has a ratio, return -1 with the method's own figures and limits.
    """
    worst = -1.0
    figures = method
    limits = method["limits"]
    for run, errors, output_limits in _outputs(method):
        distance = errors.get("of_limit")
        if distance == "inf":
            distance = float("inf")
        if run.get("case") == "large" or not isinstance(distance, float):
            continue
        if distance > worst:
            worst = distance
            figures = errors
            limits = output_limits
    return worst, figures, limits


def _broken_ratio(figures: Json, limits: Json) -> bool:
    """Return whether the SQNR breaks its limit while the absolute error stays within its own."""
    largest = figures["max_abs"]
    least_sqnr = limits.get("min_sqnr")
    if isinstance(largest, int | float) and largest > limits["atol"]:
        return False
    return least_sqnr is not None and _breaks(
        "min_sqnr", figures.get("sqnr_db"), least_sqnr
    )


def _outputs(method: Json) -> Iterator[tuple[Json, Json, Json]]:
    for run in method["runs"]:
        limits = run.get("limits") or [method["limits"]] * len(run["outputs"])
        for errors, output_limits in zip(run["outputs"], limits, strict=False):
            yield run, errors, output_limits
