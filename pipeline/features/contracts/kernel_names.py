"""Finds the ExecuTorch kernel library that contains an operator, for other features."""

from __future__ import annotations

from collections.abc import Collection

from pipeline.features.contracts.linking import find_kernels, known_operators


def find_kernel_library(operator: str) -> str | None:
    """Return the name of the kernel library that contains an operator, or None if none does."""
    kernels = find_kernels(operator)
    return None if kernels is None else kernels.name


def kernel_namespaces() -> Collection[str]:
    """Return the namespaces whose operators are all known."""
    return known_operators().keys()
