"""The verdict on a method with the one figure and limit by which it stands or falls, for tables
with a row for each. A feature picks these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pipeline.moments import call_all
from pipeline.report.verdicts import VERDICTS, Verdict, method_verdict


class Headline(NamedTuple):
    """A figure and its limit, as text; `distance` is the ratio of the error to the limit where it
    is known, by which methods of one verdict are ordered."""

    verdict: Verdict
    figure: str
    limit: str
    distance: float = 0.0


def headline(method: Mapping[str, Any]) -> Headline:
    """Return the figure and limit of a method's worst verdict; empty texts without the feature."""
    verdict = method_verdict(method)
    figures = next(call_all("decisive_figure", method, verdict), ("", "", 0.0))
    return Headline(verdict, *figures)


def worst_headline(methods: Iterable[Mapping[str, Any]]) -> Headline | None:
    """Return the headline of the method whose verdict is the worst; of several, the one that comes
    nearest to its limit. None without methods."""
    headlines = [headline(method) for method in methods]
    return min(
        headlines,
        key=lambda h: (VERDICTS.index(h.verdict), -h.distance),
        default=None,
    )
