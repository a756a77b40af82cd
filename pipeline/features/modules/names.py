"""The values of `runs_on` for operator calls that no delegate took."""

from __future__ import annotations

KERNELS = "kernels"  # run by kernels: no delegate took the call
FOLDED = "folded"  # computed by lowering, or merged into another call
