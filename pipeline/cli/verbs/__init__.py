"""One module for each verb, with `run(plan, words, **flags)`, which yields the lines to print."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError, did_you_mean


def known_packages(plan: Plan, words: Sequence[str]) -> list[str]:
    """Return the packages that are named, by default all. Raises PipelineError for others."""
    for package in words:
        if package not in plan.packages:
            raise PipelineError(f"no package '{package}'; {did_you_mean(package, plan.packages)}")
    return list(words or plan.packages)
