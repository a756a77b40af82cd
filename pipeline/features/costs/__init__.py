"""Costs: what actions took, by which later runs choose what starts next.

costs         seconds and peak bytes of the latest run of each action, in the store
expectations  what an action will take, and what follows it
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "costs",
    "start the longest actions first, and those that memory is left for, by what they took before",
    expect_costs="pipeline.features.costs.expectations:Expectations",
    record_run="pipeline.features.costs.expectations:remember_run",
)
