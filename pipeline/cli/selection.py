"""The packages that a command line asks for: tasks are made, and configs and models read, for these
alone.

Of the command line it takes what doit gives a loader of tasks. Where it isn't sure, it takes all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_TASK = re.compile(r"(?:quantize|compile|lower|validate):([^/:*?\[]+)(?:/[^*?\[]*)?")
_WHOLE = re.compile(r"lower(?::[^/:*?\[]+)?|validate(?::[^/:*?\[]+(?:/[^:*?\[]*)?)?")
_PART = re.compile(r"validate:([^/:*?\[]+)/([^:*?\[]+)")


@dataclass(frozen=True)
class Selection:
    """The tasks that are asked for.

    Attributes:
        packages: their names, as tasks have them, or None for all.
        whole: whether packages run as a whole, so that the tasks of methods need only be made where
            a package is stale.
        parts: the methods that are validated without the rest of their package, by its name.
    """

    packages: frozenset[str] | None = None
    whole: bool = False
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def choose(self, names: Mapping[str, str]) -> list[str]:
        """Return the selected packages of all, which are given by the names that tasks have."""
        if self.packages is None or not self.packages <= names.keys():
            return list(names.values())  # doit says which name is wrong
        return [package for name, package in names.items() if name in self.packages]


ALL = Selection()


def find_selection(namespace: Mapping[str, Any], executes: bool, words: Sequence[str]) -> Selection:
    """Return what a command line selects.

    Args:
        namespace: that of the dodo file, whose own tasks may depend on any of ours.
        executes: whether doit's command executes tasks, and doesn't list them, say.
        words: the command's, without its options.
    """
    words = words or namespace.get("DOIT_CONFIG", {}).get("default_tasks", ())
    parts = {found[1]: tuple(found[2].split("+")) for found in map(_PART.fullmatch, words) if found}
    if not executes or not words or own_tasks(namespace):
        return Selection(parts=parts)
    whole = all(map(_WHOLE.fullmatch, words))
    found = [_TASK.fullmatch(word) for word in words]
    if not all(found):
        return Selection(whole=whole, parts=parts)
    return Selection(frozenset(match[1] for match in found if match), whole, parts)


def own_tasks(namespace: Mapping[str, Any]) -> list[str]:
    """Return the names of the tasks that a dodo file makes beside ours, as far as they are known
    before they are made."""
    return [
        name.removeprefix("task_")
        for name, value in namespace.items()
        if (name.startswith("task_") or hasattr(value, "create_doit_tasks"))
        and getattr(value, "__module__", "") != "pipeline.cli.tasks"
    ]
