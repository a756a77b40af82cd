"""Lost results: results of `torch.cond` that a package overwrites before it reads them.

lost_results  finds these results in an execution plan
conds         finds the `torch.cond` in the program that each of them comes from
warnings      reports them when a method is compiled, and to the feature that locates wrong results
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "lost_results",
    "warn about results of torch.cond that a package overwrites before it reads them",
    warn_of_emitted="pipeline.features.lost_results.warnings:warn_of_lost_conds",
    find_lost_results="pipeline.features.lost_results.warnings:find_placed_losses",
)
