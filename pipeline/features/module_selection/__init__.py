"""Module selection: `modules` in a config limits partitioners to sub-modules of a method.

names            module names as a config writes them, and their mistakes
selection        the nodes that may be delegated, and partitions cut down to them
split_partition  splits a partition into parts that can be delegates
planning         refuses names of modules that a method lacks, before it is built
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "module_selection",
    "limit partitioners to sub-modules of a method, by `modules`",
    summarize="pipeline.features.module_selection.planning:summarize",
    planning="pipeline.features.module_selection.planning:ModulePlanning",
    select_modules="pipeline.features.module_selection.selection:ModuleSelection",
)
