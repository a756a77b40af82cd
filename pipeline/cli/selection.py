"""The packages that a command line asks for: tasks are made, and configs and models read, for these
alone.

Of the command line it takes what doit gives a loader of tasks. Where it isn't sure, it takes all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

_TASK = re.compile(r"(?:quantize|compile|lower|validate):([^/:*?\[]+)(?:/[^*?\[]*)?")
_WHOLE = re.compile(r"lower(?::[^/:*?\[]+)?|validate(?::[^/:*?\[]+(?:/[^:*?\[]*)?)?")
_PART = re.compile(r"validate:([^/:*?\[]+)/([^:*?\[]+)")


class Selection(NamedTuple):
    """The tasks that are asked for.

    Attributes:
        packages: their names, as tasks have them, or None for all.
        whole: whether packages run as a whole, so that the tasks of methods need only be made where
            a package is stale.
        parts: the methods that are validated without the rest of their package, by its name.
    """

    packages: frozenset[str] | None = None
    whole: bool = False
    parts: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def choose(self, names: Mapping[str, str]) -> list[str]:
        """Return the selected packages of all, which are given by the names that tasks have."""
        if self.packages is None or not self.packages <= names.keys():
            return list(names.values())  # doit says which name is wrong
        return [package for name, package in names.items() if name in self.packages]


ALL = Selection()


def find_selection(
    namespace: Mapping[str, Any], executes: bool, words: Sequence[str]
) -> Selection:
    """Return what a command line selects.

    Args:
        namespace: that of the dodo file, whose own tasks may depend on any of ours.
        executes: whether doit's command executes tasks, and doesn't list them, say.
        words: the command's, without its options, or the default tasks.
    """
    parts: dict[str, tuple[str, ...]] = {}
    packages: set[str] = set()
    names_packages = True
    for word in words:
        part = _PART.fullmatch(word)
        if part:
            parts[part[1]] = tuple(part[2].split("+"))
        task = _TASK.fullmatch(word)
        if task:
            packages.add(task[1])
        else:
            names_packages = False
    if not executes or not words or find_foreign_tasks(namespace):
        return Selection(parts=parts)
    whole = all(map(_WHOLE.fullmatch, words))
    return Selection(frozenset(packages) if names_packages else None, whole, parts)


def find_foreign_tasks(namespace: Mapping[str, Any]) -> list[str]:
    """Return the names of the tasks that a dodo file makes beside ours, as far as they are known
    before they are made."""
    return [
        name.removeprefix("task_")
        for name, value in namespace.items()
        if (name.startswith("task_") or hasattr(value, "create_doit_tasks"))
        and getattr(value, "__module__", "") != "pipeline.cli.tasks"
    ]
