"""What runs a call of an operator, where no delegate does."""

from __future__ import annotations

KERNELS = "kernels"  # calls that no delegate took
FOLDED = "folded"  # calls that lowering computed, or made part of others
