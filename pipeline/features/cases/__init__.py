"""Cases: inputs for what random ones leave out, on which methods are validated too.

maker    zeros, large values, the limits of dynamic sizes
runs     calls of a method on them
layouts  tensors whose memory lies otherwise than at export
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "cases",
    "validate on zeros, large values, least and greatest sizes, and other memory layouts",
    run_cases="pipeline.features.cases.runs:run_cases",
)
