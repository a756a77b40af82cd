"""Cases: further inputs for validation, which random ones don't cover.

maker       zeros, large values, the limits of dynamic sizes
runs        calls of a method on the cases
layouts     tensors in a different memory layout than at export
table_rows  integers that index all rows of a table
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "cases",
    "validate on zeros, large values, smallest and largest sizes, and other memory layouts",
    run_cases="pipeline.features.cases.runs:run_cases",
    widen_integers="pipeline.features.cases.table_rows:widen_integers",
)
