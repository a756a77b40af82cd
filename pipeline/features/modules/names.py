"""Names for where operator calls run that no delegate took."""

from __future__ import annotations

KERNELS = "kernels"  # run by kernels: no delegate took the call
FOLDED = "folded"  # computed by lowering, or merged into another call
