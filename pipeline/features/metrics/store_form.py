"""The stored form of the scores of a package, or of its source, on a metric's data."""

from __future__ import annotations

from pipeline.store.digest import Digest

METRIC = {"scores": Digest}
