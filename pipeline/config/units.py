"""Compile units: which methods of a package ExecuTorch's joint call passes to a backend together.

This module knows partitioners and their options, but no programs. Whether a partitioner will take
anything is not known yet, so methods that may need each other form one unit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.backends import PartitionerSpec

Units = list[tuple[str, ...]]


def group_methods(methods: Mapping[str, Sequence[PartitionerSpec]]) -> Units:
    """Return methods by unit: those that a backend sees together, then each other method alone.

    ExecuTorch lowers in turns, one partitioner of each method per turn. A backend that sees all
    methods at once therefore sees those that name it at the same index, unless all of them say that
    each is preprocessed separately.
    """
    calls: dict[tuple[int, str], list[str]] = {}
    joined: set[tuple[int, str]] = set()
    for name, specs in methods.items():
        for turn, spec in enumerate(specs):
            preprocessing = spec.backend.preprocessing
            if not preprocessing.joint:
                continue
            call = (turn, spec.backend.backend_id)
            calls.setdefault(call, []).append(name)
            if not preprocessing.options_apart(spec.options):
                joined.add(call)
    groups = [names for call, names in calls.items() if call in joined]
    return merge_groups(methods, groups)


def merge_groups(names: Iterable[str], groups: Iterable[Collection[str]]) -> Units:
    """Return names by unit, merging groups that have a name in common.

    Units of several names come first, then each other name alone, both in the order of `names`.
    """
    names = list(names)
    units = list[set[str]]()
    for group in groups:
        joined = set(group)
        apart = []
        for unit in units:
            if unit & joined:
                joined |= unit
            else:
                apart.append(unit)
        units = [*apart, joined]
    together = []
    grouped: set[str] = set()
    for unit in units:
        if len(unit) > 1:
            grouped |= unit
            together.append(tuple(name for name in names if name in unit))
    together.sort(key=lambda unit: names.index(unit[0]))
    alone = [(name,) for name in names if name not in grouped]
    return [*together, *alone]
