"""Patterns of names in a config: which constants and buffers they fit."""

from __future__ import annotations

from fnmatch import fnmatchcase


def fits_name(name: str, pattern: str) -> bool:
    """Tell whether a pattern fits a constant's qualified name."""
    return fnmatchcase(name, pattern)


def fits_weight(name: str, pattern: str) -> bool:
    """Tell whether a pattern fits a weight's qualified name or that of a module around it."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def fits_buffer(name: str, part: str) -> bool:
    """Tell whether a text is a part of a buffer's name, as ExecuTorch writes it in a graph
    (exir/passes/init_mutable_pass.py)."""
    return part in f"b_{name.replace('.', '_')}"


# How the patterns of an option of `emit` are read.
WEIGHT_PATTERNS = {"external_weights": fits_weight, "external_files": fits_name}
