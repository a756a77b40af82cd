"""Find the devices of targets: `devices` of `targets/<name>.yaml`.

A target names devices, and only settings say where boards are, since whoever sends a change to
`targets/` must not choose what a build connects to. No config is parsed, and no pydantic imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.store.errors import ConfigErrors
from pipeline.store.files import inside, read_text_file

if TYPE_CHECKING:
    from pipeline.config.models import PackageConfig
    from pipeline.plan.plan import Plan

DEVICE_PATTERN = r"^[\w:.,=+-]{1,100}$"  # of the names of devices
ANY_TARGET = "*"  # in a summary: the config's variables say which
_FOLDER = "targets"
_KEY = "devices"


def find_devices(config: PackageConfig, root: Path) -> tuple[str, ...]:
    """Return the devices of a package: those that its config names, then those of its target in the
    workspace at `root`."""
    named: tuple[str, ...] = getattr(config.validation, _KEY)
    return tuple(dict.fromkeys([*named, *read_target_devices(root, config.target)]))


def find_planned_devices(plan: Plan, package: str) -> tuple[str, ...]:
    """Return the devices of a package by what a plan keeps of its config; where the target depends
    on variables, those of all targets. Empty for a package that names neither."""
    summary = plan.configs.summary(package)
    facts: Mapping[str, Any] = summary.features.get("native", {}) if summary else {}
    names = list(facts.get(_KEY, ()))
    root = plan.workspace.root
    target = facts.get("target")
    for name in _list_targets(root) if target == ANY_TARGET else [target]:
        names += read_target_devices(root, name)
    return tuple(dict.fromkeys(names))


def read_target_devices(root: Path, target: str | None) -> tuple[str, ...]:
    """Return the devices that the file of a target names; none where there is no such file, or one
    with mistakes, which the feature that reads all of it reports."""
    if target is None or "/" in target or target.startswith("."):
        return ()
    path = Path(root, _FOLDER, f"{target}.yaml")
    if not os.path.lexists(path):  # as mostly, which no-op runs ask of every package
        return ()
    try:
        content = read_text_file(inside(path, (root,)))
    except OSError:
        return ()
    if (
        _KEY.encode() not in content
    ):  # the YAML reader takes a no-op run 20 ms to import
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
