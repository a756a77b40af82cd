"""Divides a command line among the toolchains that build its packages.

A command line has a part for each toolchain that the configs of its packages name. The part for the
environment in which doit was started runs in this process; the others run one after another, each
in its own process. A process sees only the packages of its part.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from pipeline.plan.config_cache import ConfigCache
from pipeline.store.settings_reader import open_settings
from pipeline.store.workspace import open_workspace

VARIABLE = "PTE_PIPELINE_TOOLCHAIN"  # the name of this process's toolchain
ROUTED = "PTE_PIPELINE_TOOLCHAIN_ROUTED"  # set if it builds only its own packages
HERE = "default"  # the environment that doit was started in
DEFAULT_PYTHON = "PTE_PIPELINE_DEFAULT_PYTHON"  # `default`'s Python, for the others
# Commands that concern no packages, or that run other commands for each toolchain themselves.
_WHOLE = ("auto", "cache", "completion", "help", "init", "tabcompletion", "upgrade")
# The words for this process, or None; and a function that runs the other parts and returns the exit
# status.
Split = tuple[list[str] | None, Callable[[], int]]


def read_toolchains(root: Path) -> Mapping[str, tuple[str, ...]]:
    """Return the toolchains in the settings of the workspace at `root`."""
    try:
        text = (root / "pyproject.toml").read_bytes()
    except OSError:
        return {}
    if b"toolchains" not in text:  # parsing takes 1.5 ms of each run
        return {}
    toolchains: Mapping[str, tuple[str, ...]] = open_settings(root).get(
        "toolchains", {}
    )
    return toolchains


def present_toolchain() -> str:
    """Return the name of the toolchain that this process belongs to."""
    return os.environ.get(VARIABLE, HERE)


def find_elsewhere(configs: ConfigCache) -> set[str]:
    """Return the packages that other processes build."""
    here = present_toolchain()
    if (
        here != HERE and ROUTED not in os.environ
    ):  # started by `--toolchain`, which builds all packages
        return set()
    toolchains = read_toolchains(configs.workspace.root)
    if not toolchains:
        return set()
    elsewhere = set()
    for package in configs.packages:
        if _choose(configs, package, toolchains) != here:
            elsewhere.add(package)
    return elsewhere


def _choose(
    configs: ConfigCache, package: str, toolchains: Mapping[str, object]
) -> str:
    """Return the toolchain that builds a package.

    A name that the settings don't have is a mistake, which this process reports.
    """
    summary = configs.summary(package)
    if summary is not None:
        name = summary.features.get("toolchains", {}).get("name")
    else:  # an invalid config, which another ExecuTorch's catalogue may accept
        document = configs.document(package)
        data = document.data if document else None
        name = data.get("toolchain") if isinstance(data, dict) else None
    if name in toolchains:
        return str(name)
    return HERE


def split_command(words: Sequence[str], root: Path) -> Split | None:
    """Split a command line by the toolchains of its packages, or return None if it isn't split."""
    if VARIABLE in os.environ or (words and words[0] in _WHOLE):
        return None
    toolchains = read_toolchains(root)
    if not toolchains:
        return None
    configs = ConfigCache(open_workspace(root))
    packages: dict[str, list[str]] = {HERE: []}
    for package in configs.packages:
        packages.setdefault(_choose(configs, package, toolchains), []).append(package)
    if len(packages) == 1:
        return None
    parts = divide(words, packages)
    here = parts.pop(HERE, None)
    return here, partial(_run_parts, parts, root)


def divide(
    words: Sequence[str], packages: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Return the words for each toolchain that takes part in a command line.

    A word that names packages goes to their toolchains, any other word to all that take part.

    Args:
        packages: the packages of each toolchain.
    """
    naming: dict[str, set[str]] = {}
    for word in words:
        owners = set()
        for toolchain, names in packages.items():
            if any(_names(word, package) for package in names):
                owners.add(toolchain)
        if owners:
            naming[word] = owners
    taking_part = set(packages)
    if naming:
        taking_part = set().union(*naming.values())
    parts = {}
    for toolchain in packages:
        if toolchain in taking_part:
            parts[toolchain] = [
                word for word in words if toolchain in naming.get(word, taking_part)
            ]
    return parts


def _names(word: str, package: str) -> bool:
    """Return whether a word such as `lower:vis*` or `vision/encode` names a package."""
    pattern = word.rpartition(":")[2].split("/")[0]
    return bool(pattern) and fnmatchcase(package, pattern)


def _run_parts(parts: Mapping[str, Sequence[str]], root: Path) -> int:
    """Run the parts of other toolchains, and return the worst exit status."""
    from pipeline.features.toolchains.driver import make_command, make_environment
    from pipeline.features.toolchains.environments import find_python

    status = 0
    for toolchain, words in parts.items():
        python = find_python(root, toolchain)
        environment = make_environment(toolchain, python) | {ROUTED: "1"}
        sys.stdout.flush()
        command = make_command(python, words)
        status = max(
            status, subprocess.run(command, env=environment, check=False).returncode
        )
    return status
