"""Words for differences between keys, shared by the kinds of actions.

A describing function returns None for a difference that it is not responsible for, and "" for one
that is not worth a line.
"""

from __future__ import annotations

import os

from pipeline.plan.reads import is_inside
from pipeline.store.json_diff import ABSENT, Difference


def show_place(name: str) -> str:
    """Return the path of a place in a form that people recognize."""
    if is_inside(name):
        return name
    return f"{os.path.basename(name)} (outside the workspace, {name})"


def describe_setting(where: str, difference: Difference) -> str:
    """Describe a difference in a value that a config sets."""
    if difference.old is ABSENT or difference.new is ABSENT:
        return f"config {where} {difference.change()}"
    return f"config {where}: {difference.values}"


def describe_common(difference: Difference, file: str) -> str | None:
    """Describe a difference in a field that keys of several kinds have."""
    change = difference.change()
    match difference.path:
        case ("toolchain", name) if name.startswith("$"):
            return f"the variable {name[1:]} {change}"
        case ("toolchain", name) if name.endswith("customize"):
            return f"{name}.py, which Python runs at its start, {change}"
        case ("toolchain", library):
            return f"library {library}: {difference.values}"
        case ("code[0]" | "code[1]",):
            return "pte-pipeline's own code changed"
        case ("host", *path):
            return f"this machine, {'.'.join(path)}: {difference.values}"
        case ("methods", _, "names") if None in (difference.old, difference.new):
            return ""  # names started or stopped counting because the config changed
        case ("methods", method, "names"):
            return f"names of values or classes in {method} changed"
        case ("methods", method, "files", place):
            where = f"methods.{method}.{place.removesuffix('[0]')}"
            return f"the file of config {where} {change}"
        case ("content", _) | ("methods", _, "content"):
            return f"{file}, whose lines the object or the ETRecord holds, {change}"
    return None
