"""Selection by module: what `modules` of a config keeps from partitioners.

names            names of modules as a config writes them, and what is wrong with them
selection        the nodes that may be delegated, and partitions cut down to them
split_partition  parts of a partition that can be delegates
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
