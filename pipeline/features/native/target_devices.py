"""Finds the devices of targets: `devices` in `targets/<name>.yaml`.

A target names devices, but only settings have the addresses of boards: a person who proposes a
change to `targets/` must not choose what a build connects to. This module parses no config and
doesn't import pydantic.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.store.errors import ConfigErrors
from pipeline.store.files import inside, read_text_file

if TYPE_CHECKING:
    from pipeline.config.models import PackageConfig
    from pipeline.plan.plan import Plan

EMULATED = "qemu:"  # before the name of a processor: the name of an emulated device
DEVICE_PATTERN = r"^[\w:.,=+-]{1,100}$"  # matches the name of a device
ANY_TARGET = "*"  # in a summary: the target depends on the config's variables
_FOLDER = "targets"
_KEY = "devices"


def find_devices(config: PackageConfig, root: Path) -> tuple[str, ...]:
    """Return the devices of a package in the workspace at `root`.

    The devices that its config names come before those of its target.
    """
    named: tuple[str, ...] = getattr(config.validation, _KEY)
    return tuple(dict.fromkeys([*named, *read_target_devices(root, config.target)]))


def find_planned_devices(
    plan: Plan,
    package: str,
    read: Callable[[Path, str | None], tuple[str, ...]] | None = None,
) -> tuple[str, ...]:
    """Return the devices of a package from its summary in a plan.

    Empty if the config names neither devices nor a target. If the target depends on variables, the
    devices of all targets are included. `read` is `read_target_devices`, or a cache of it.
    """
    summary = plan.configs.summary(package)
    facts: Mapping[str, Any] = summary.features.get("native", {}) if summary else {}
    names = list(facts.get(_KEY, ()))
    root = plan.workspace.root
    target = facts.get("target")
    for name in _list_targets(root) if target == ANY_TARGET else [target]:
        names += (read or read_target_devices)(root, name)
    return tuple(dict.fromkeys(names))


def read_target_devices(root: Path, target: str | None) -> tuple[str, ...]:
    """Return the devices that a target's file names.

    Returns an empty tuple if the file is missing or invalid. The feature that reads the whole file
    reports mistakes.
    """
    if target is None or "/" in target or target.startswith("."):
        return ()
    path = Path(root, _FOLDER, f"{target}.yaml")
    if not os.path.lexists(path):  # usual, and checked for every package by no-op runs
        return ()
    try:
        content = read_text_file(inside(path, (root,)))
    except OSError:
        return ()
    if (
        _KEY.encode() not in content
    ):  # importing the YAML reader costs a no-op run 20 ms
        return ()
    from pipeline.config.yaml import load_nodes

    try:
        node = load_nodes(content, path.name)
    except ConfigErrors:
        return ()
    keys = node.value if node is not None and isinstance(node.value, dict) else {}
    devices = keys[_KEY].value if _KEY in keys else ()
    if not isinstance(devices, list):
        return ()
    names = [item.value for item in devices if isinstance(item.value, str)]
    return tuple(name for name in names if re.fullmatch(DEVICE_PATTERN, name))


def _list_targets(root: Path) -> list[str]:
    """Return the names of the targets that have a file."""
    return sorted(path.stem for path in (root / _FOLDER).glob("[!.]*.yaml"))
