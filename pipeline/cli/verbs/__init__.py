"""One module per verb, with `run(plan, words, **flags)`, which yields the lines to print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from doit import loader

from pipeline.cli.grammar import describe_no_packages, find_named
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError


def find_path(plan: Plan, word: str) -> Path:
    """Return the path that a word names, in the folder where doit started or in the workspace."""
    path = Path(loader.initial_workdir or plan.workspace.root) / word
    if path.exists():
        return path
    return plan.workspace.root / word


def known_packages(plan: Plan, words: Sequence[str]) -> list[str]:
    """Return the packages that words or patterns name; without words, all packages.

    Raises PipelineError for unknown names, and if there is no package at all.
    """
    if not plan.packages:
        raise PipelineError(describe_no_packages(plan.workspace))
    if not words:
        return list(plan.packages)
    packages: dict[str, None] = {}
    for word in words:
        packages |= dict.fromkeys(find_named(word, plan.packages, "package"))
    return list(packages)
