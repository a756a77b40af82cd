"""The packages that a command line asks for: tasks are made, and configs and models read, for these
alone.

Of the command line it takes what doit gives a loader of tasks. Where it isn't sure, it takes all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TASK = re.compile(r"(?:quantize|compile|lower|validate):([^/:*?\[]+)(?:/[^*?\[]*)?")


@dataclass(frozen=True)
class Selection:
    """The `packages` by the names that tasks have, or None for all."""

    packages: frozenset[str] | None = None

    def choose(self, names: Mapping[str, str]) -> list[str]:
        """Return the selected packages of all, which are given by the names that tasks have."""
        if self.packages is None or not self.packages <= names.keys():
            return list(names.values())  # doit says which name is wrong
        return [package for name, package in names.items() if name in self.packages]


ALL = Selection()

# The verbs: what each does, and the help of its flags (`--name`), which may stand anywhere.
VERBS: dict[str, tuple[str, dict[str, str]]] = {
    "plan": (
        "what a run would do, and why: plan [--resolved] [package ...]",
        {"resolved": "print what each method finally gets instead, and where that was written"},
    ),
    "explain": ("why an action is current or not: explain <package>[/<method>] ...", {}),
    "backends": ("the backends that methods can be lowered to: backends [name ...]", {}),
    "baseline": ("accept the present figures of packages: baseline [package ...]", {}),
    "diff": (
        "what tells builds apart: diff [--markdown] [<revision or manifest>] [package ...]",
        {"markdown": "write Markdown, for a pull request"},
    ),
    "rebuild": ("compile again without any cache, and compare bytes: rebuild [package ...]", {}),
    "report": ("render the reports of the last validation again: report [package ...]", {}),
    "cache": ("the store: cache stats | verify | gc", {}),
}


def find_selection(namespace: Mapping[str, Any], executes: bool, words: Sequence[str]) -> Selection:
    """Return what a command line selects.

    Args:
        namespace: that of the dodo file, whose own tasks may depend on any of ours.
        executes: whether doit's command executes tasks, and doesn't list them, say.
        words: the command's, without its options.
    """
    if not executes or not words or _makes_more(namespace):
        return ALL
    if words[0] in VERBS:
        return Selection(frozenset())
    found = [_TASK.fullmatch(word) for word in words]
    return Selection(frozenset(match[1] for match in found if match)) if all(found) else ALL


def _makes_more(namespace: Mapping[str, Any]) -> bool:
    """Tell whether a dodo file makes tasks beside ours."""
    return any(
        (name.startswith("task_") or hasattr(value, "create_doit_tasks"))
        and getattr(value, "__module__", "") != "pipeline.cli.tasks"
        for name, value in namespace.items()
    )
