"""The features of this package, and the moments that each one hooks into."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.moments import Feature, find_features
from tools.reference.markdown import row

_NO_MOMENTS = ("name", "summary", "link_files", "page_files", "distribution")


def features() -> Iterator[str]:
    """Yield the table of the features."""
    yield "| feature | what a build can do with it | moments |"
    yield "|---|---|---|"
    for feature in find_features():
        moments = ", ".join(f"`{name}`" for name in _moments(feature))
        yield row(f"`{feature.name}`", feature.summary, moments or "none")


def _moments(feature: Feature) -> Iterator[str]:
    for moment in Feature.__annotations__:
        if moment not in _NO_MOMENTS and getattr(feature, moment):
            yield moment
