"""Finds, in few trials, the groups of modules that make a difference when moved.

All modules are tried together first. Then each is tried if they are few; otherwise the group with
the greatest effect is halved again and again, down to a module and the modules inside it. Doesn't
use torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

Modules = tuple[str, ...]


def find_groups(
    modules: Sequence[str],
    measure: Callable[[Modules], float],
    most: int,
    least_effect: float,
) -> tuple[dict[Modules, float], bool]:
    """Return the effect of each group that was tried, and whether the search is complete.

    It is complete if no part of a group with an effect was left out.

    Args:
        modules: the modules with operators of their own, in the order of the program.
        measure: returns the effect of a group; groups with larger effects are split first.
        most: maximum number of trials.
        least_effect: a group whose effect is below this is not split.
    """
    effects: dict[Modules, float] = {}
    waiting = [_find_inner("", modules)]
    while waiting and len(effects) < most:
        for group in waiting:
            if len(effects) < most:
                effects[group] = measure(group)
        is_first = len(effects) == 1
        # If the whole has an effect and there are enough builds, try each module instead of halves.
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
    """Return the halves of a group or, for a group of one module, of the modules inside it."""
    if len(group) == 1:
        (name,) = group
        group = _find_inner(name, modules)
        if len(group) == 1:
            return [group]
    middle = len(group) // 2
    return [part for part in (group[:middle], group[middle:]) if part]


def _find_inner(name: str, modules: Sequence[str]) -> Modules:
    """Return the modules directly inside another; "" stands for the method.

    A lone inner module that computes nothing itself is replaced by the modules inside it.
    """
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
    """Return groups that have no module in common, the greatest gains first."""
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
