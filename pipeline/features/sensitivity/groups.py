"""Finds the groups of modules whose move matters, in few trials: all of them, then each if they are
few, else the halves of the group with the greatest effect, down to a module and to those inside of
it. Knows no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

Modules = tuple[str, ...]


def find_groups(
    modules: Sequence[str],
    measure: Callable[[Modules], float],
    most: int,
    least_effect: float,
) -> tuple[dict[Modules, float], bool]:
    """Return the effect of each group that was tried, and whether none was left out that is part of
    one with an effect.

    Args:
        modules: those that compute something of their own, in the order of the program.
        measure: gives the effect of a group; a larger one is split first.
        most: how many trials at most.
        least_effect: below it a group is not split.
    """
    effects: dict[Modules, float] = {}
    waiting = [_find_inner("", modules)]
    while waiting and len(effects) < most:
        for group in waiting:
            if len(effects) < most:
                effects[group] = measure(group)
        is_first = len(effects) == 1
        # If the whole has an effect and there are enough builds, try each module, not halves.
        if is_first and len(modules) < most and max(effects.values()) >= least_effect:
            waiting = [(module,) for module in modules if (module,) not in effects]
            continue
        waiting = []
        for group in sorted(effects, key=lambda group: -effects[group]):
            parts = split(group, modules)
            if effects[group] >= least_effect and not {*parts} <= {*effects}:
                waiting = [part for part in parts if part not in effects]
                break
    return effects, not waiting


def split(group: Modules, modules: Sequence[str]) -> list[Modules]:
    """Return the halves of a group, or of the modules inside of its only one."""
    if len(group) == 1:
        (name,) = group
        group = _find_inner(name, modules)
        if len(group) == 1:
            return [group]
    middle = len(group) // 2
    return [part for part in (group[:middle], group[middle:]) if part]


def _find_inner(name: str, modules: Sequence[str]) -> Modules:
    """Return the modules right inside of another, "" for the method's own; those inside of a lone
    one that computes nothing itself."""
    prefix = f"{name}." if name else ""
    inner: dict[str, None] = {}
    for module in modules:
        if module.startswith(prefix):
            part = module[len(prefix) :].partition(".")[0]
            inner[f"{prefix}{part}"] = None
    if len(inner) == 1 and name not in modules:
        (only,) = inner
        if only not in modules:
            return _find_inner(only, modules)
    return tuple(inner)


def find_disjoint(
    gains: Mapping[Modules, float], modules: Sequence[str]
) -> list[Modules]:
    """Return groups that have no module in common, those that gain most first."""
    chosen: list[Modules] = []
    taken: set[str] = set()
    for group in sorted(gains, key=lambda group: (-gains[group], group)):
        covered = {name for name in modules if _holds(group, name)}
        if not covered & taken:
            chosen.append(group)
            taken |= covered
    return chosen


def _holds(group: Modules, module: str) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in group)
