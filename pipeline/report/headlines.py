"""The one figure and limit by which a method stands or falls, for tables with a row for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pipeline.report.formatting import decibel, error, percent, ratio, short
from pipeline.report.verdicts import PASSED, VERDICTS, Verdict, method_verdict

Json = Mapping[str, Any]
NO_LIMIT = "none"


class Headline(NamedTuple):
    """A figure and its limit, as text; `distance` is the ratio of the error to the limit where it
    is known, by which methods of one verdict are ordered."""

    verdict: Verdict
    figure: str
    limit: str
    distance: float = 0.0


# By limit: its figure, and how both are formatted.
_JUDGED: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "min_sqnr": ("sqnr_db", decibel),
    "min_agreement": ("agreement", percent),
    "min_cosine": ("cosine", ratio),
    "max_relative": ("relative", error),
    "max_mean_abs": ("mean_abs", error),
    "max_p999_abs": ("p999_abs", error),
    "atol": ("max_abs", error),
}


def headline(method: Json) -> Headline:
    """Return the figure and limit of a method's worst verdict."""
    verdict = method_verdict(method)
    quantization, reference = method.get("quantization"), method.get("reference")
    if reference and reference["verdict"] == verdict not in (PASSED, method["verdict"]):
        return Headline(verdict, *_reference_figures(reference))
    if quantization and quantization["verdict"] == verdict:
        return Headline(verdict, *_quantization_figures(method, quantization))
    if method.get("quantized"):
        return Headline(verdict, *_held_figures(method["quantized"]))
    if not method["runs"] or method["kind"] != "program":
        return Headline(verdict, "", "")
    return Headline(verdict, *_lowering_figures(method))


def worst_headline(methods: Iterable[Json]) -> Headline | None:
    """Return the headline of the method whose verdict is the worst; of several, the one that comes
    nearest to its limit. None without methods."""
    found = [headline(method) for method in methods]
    return min(found, key=lambda h: (VERDICTS.index(h.verdict), -h.distance), default=None)


def _quantization_figures(method: Json, quantization: Json) -> tuple[str, str, float]:
    """Return the figure that the first limit is about that it breaks, or else the first one."""
    limits = quantization["limits"]
    figures = {**method, **_pooled_agreement(quantization["examples"] or quantization["generated"])}
    judged = [(name, *_JUDGED[name]) for name in _JUDGED if limits.get(name) is not None]
    judged.sort(key=lambda row: not _breaks(row[0], figures.get(row[1]), limits[row[0]]))
    for name, figure, style in judged:
        if figures.get(figure) is not None:
            sign = "≥" if name.startswith("min_") else "≤"
            distance = _distance(name, figures[figure], limits[name])
            return style(figures[figure]), f"{sign} {style(limits[name])}", distance
    if figures.get("sqnr_db") is None:
        return error(figures.get("max_abs")), NO_LIMIT, 0.0
    # Without a limit, the noisier method is the worse one.
    distance = _distance("min_sqnr", figures["sqnr_db"], 0.0)
    failed = quantization["verdict"] == "failed"
    limit = f"≥ {decibel(quantization['floor'])}" if failed else NO_LIMIT
    return decibel(figures["sqnr_db"]), limit, distance


def _reference_figures(reference: Json) -> tuple[str, str, float]:
    """Return the error of the exported program against its reference."""
    ratio = reference["of_limit"]
    distance = float("inf") if ratio == "inf" else ratio or 0.0
    atol = reference.get("limits", {}).get("atol")
    limit = "reference" if atol is None else f"{short(atol)} reference"
    return error(reference["max_abs"]), limit, distance


def _pooled_agreement(pools: Iterable[Json]) -> dict[str, Any]:
    """Return the worst agreement of outputs, which limits hold over all calls together."""
    shares = [pool["agreement"] for pool in pools if pool["agreement"] is not None]
    return {"agreement": min(shares)} if shares else {}


def _distance(limit: str, figure: Any, value: float) -> float:
    """Return the ratio of an error to its limit: above 1 where the limit is exceeded."""
    if not isinstance(figure, int | float):
        return 0.0 if figure == "inf" else float("inf")
    if limit == "min_sqnr":
        return float(10 ** (min(value - figure, 6000.0) / 20))
    if limit.startswith("min_"):
        figure, value = 1 - figure, 1 - value
    return float(figure / value) if value else float("inf") if figure else 0.0


def _breaks(limit: str, figure: Any, value: float) -> bool:
    if not isinstance(figure, int | float):
        return figure == "-inf"
    return figure < value if limit.startswith("min_") else figure > value


def _held_figures(held: Json) -> tuple[str, str, float]:
    """Return the error against the quantized program."""
    atol = held["limits"].get("atol")
    if atol is None:
        return error(held["max_abs"]), NO_LIMIT, 0.0
    return (
        error(held["max_abs"]),
        f"{short(atol)} quantized",
        _distance("atol", held["max_abs"], atol),
    )


def _lowering_figures(method: Json) -> tuple[str, str, float]:
    """Return the error that comes nearest to its limit, or goes farthest beyond it."""
    follows = method.get("limits_from", "")
    worst, figures, limits = -1.0, method, method["limits"]
    for run, errors, own in _outputs(method):
        of_limit = errors.get("of_limit")
        distance = float("inf") if of_limit == "inf" else of_limit
        if run.get("case") != "large" and isinstance(distance, float) and distance > worst:
            worst, figures, limits = distance, errors, own
    if limits.get("atol") is not None and not _broken_ratio(figures, limits):
        return error(figures["max_abs"]), f"{short(limits['atol'])} {follows}".strip(), worst
    least = limits.get("min_sqnr")
    if least is not None and figures.get("sqnr_db") is not None:
        return decibel(figures["sqnr_db"]), f"≥ {decibel(least)}", worst
    return error(figures["max_abs"]), follows or NO_LIMIT, worst


def _broken_ratio(figures: Json, limits: Json) -> bool:
    """Return whether the SQNR breaks its limit, and the absolute error does not break its own."""
    far = isinstance(figures["max_abs"], int | float) and figures["max_abs"] > limits["atol"]
    least = limits.get("min_sqnr")
    return not far and least is not None and _breaks("min_sqnr", figures.get("sqnr_db"), least)


def _outputs(method: Json) -> Iterator[tuple[Json, Json, Json]]:
    for run in method["runs"]:
        limits = run.get("limits") or [method["limits"]] * len(run["outputs"])
        for errors, own in zip(run["outputs"], limits, strict=False):
            yield run, errors, own
