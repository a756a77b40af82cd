"""The words for what runs calls of operators that no delegate took."""

from __future__ import annotations

KERNELS = "kernels"  # calls that no delegate took
FOLDED = "folded"  # calls that lowering computed, or made part of others
