"""Cases: further inputs for validation, which random ones don't cover.

maker    zeros, large values, the limits of dynamic sizes
runs     calls of a method on the cases
layouts  tensors in a different memory layout than at export
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "cases",
    "validate on zeros, large values, smallest and largest sizes, and other memory layouts",
    run_cases="pipeline.features.cases.runs:run_cases",
)
