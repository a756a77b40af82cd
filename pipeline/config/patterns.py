"""Patterns in a config, and which names of constants and buffers they match."""

from __future__ import annotations

from fnmatch import fnmatchcase


def fits_name(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a constant's qualified name."""
    return fnmatchcase(name, pattern)


def fits_weight(name: str, pattern: str) -> bool:
    """Return whether a pattern matches the qualified name of a weight or of a module around it."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def fits_buffer(name: str, part: str) -> bool:
    """Return whether a string is part of a buffer's name as ExecuTorch writes it in a graph.

    See exir/passes/init_mutable_pass.py.
    """
    return part in f"b_{name.replace('.', '_')}"


# How the patterns of each `emit` option match.
WEIGHT_PATTERNS = {"external_weights": fits_weight, "external_files": fits_name}
