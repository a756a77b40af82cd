"""The packages that a command line selects.

Tasks are made, and configs and models read, only for these packages. The selection sees only the
part of the command line that doit gives a task loader. If in doubt, it selects all packages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

_TASK = r"(?:quantize|compile|lower|validate):([^/:*?\[]+)(?:/[^*?\[]*)?"
_WHOLE = re.compile(r"lower(?::[^/:*?\[]+)?|validate(?::[^/:*?\[]+(?:/[^:*?\[]*)?)?")
_PART = r"validate:([^/:*?\[]+)/([^:*?\[]+)"


class Selection(NamedTuple):
    """The tasks that a command line selects.

    Attributes:
        packages: their names, as in task names, or None for all.
        whole: whether packages run as a whole, so that method tasks are only made for stale
            packages.
        parts: by package, the methods that are validated without the rest of it.
    """

    packages: frozenset[str] | None = None
    whole: bool = False
    parts: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def choose(self, names: Mapping[str, str]) -> list[str]:
        """Return the selected packages; `names` has all packages, keyed by their names in tasks."""
        if self.packages is None or not self.packages <= names.keys():
            return list(names.values())  # doit reports the wrong name
        return [package for name, package in names.items() if name in self.packages]


ALL = Selection()


def find_selection(
    namespace: Mapping[str, Any], executes: bool, words: Sequence[str]
) -> Selection:
    """Return the packages and methods that a command line selects.

    Args:
        namespace: the dodo file's, whose other tasks may depend on any of ours.
        executes: whether doit's command executes tasks rather than listing them, for example.
        words: the command's words without options, or the default tasks.
    """
    parts: dict[str, tuple[str, ...]] = {}
    packages: set[str] = set()
    names_packages = True
    for word in words:
        part = re.fullmatch(_PART, word)
        if part:
            parts[part[1]] = tuple(part[2].split("+"))
        task = re.fullmatch(_TASK, word)
        if task:
            packages.add(task[1])
        else:
            names_packages = False
    if not executes or not words or find_foreign_tasks(namespace):
        return Selection(parts=parts)
    whole = all(map(_WHOLE.fullmatch, words))
    return Selection(frozenset(packages) if names_packages else None, whole, parts)


def find_foreign_tasks(namespace: Mapping[str, Any]) -> list[str]:
    """Return the names of a dodo file's other tasks that are known before they are made."""
    return [
        name.removeprefix("task_")
        for name, value in namespace.items()
        if (name.startswith("task_") or hasattr(value, "create_doit_tasks"))
        and getattr(value, "__module__", "") != "pipeline.cli.tasks"
    ]
