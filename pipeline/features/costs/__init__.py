"""Costs: the time and memory that actions took, by which later runs choose what to start next.

costs         seconds and peak bytes of the latest run of each action, in the store
expectations  the expected cost of an action, and of the actions after it
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "costs",
    "schedule actions by the time and memory that they took in earlier runs",
    expect_costs="pipeline.features.costs.expectations:Expectations",
    record_run="pipeline.features.costs.expectations:remember_run",
)
