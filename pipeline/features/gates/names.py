"""Finds the packages that a word of the command line names, here or in a reference."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.cli.grammar import fits_word


def fit_names(names: Iterable[str], word: str) -> list[str]:
    """Return the names that a word or pattern matches; empty if the word means something else."""
    return [name for name in names if fits_word(name, word)]
