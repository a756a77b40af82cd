"""Reads the workspace settings that combine several keys, or that involve a feature.

Settings are in `[tool.pte-pipeline]` of the workspace's `pyproject.toml`, and in the environment,
which takes precedence.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pipeline.moments import find_features, find_functions, load
from pipeline.store.errors import PipelineError, listed, shown
from pipeline.store.setting_table import variable_of
from pipeline.store.settings_reader import TABLE, SettingsReader

if TYPE_CHECKING:
    from pipeline.store.remote_tier import RemoteTierSettings


class Environment(NamedTuple):
    """The environment variables that configs may read.

    Attributes:
        names: all of these variables.
        secrets: the variables whose values are never recorded.
        remedy: how to add a variable.
        values: used instead of the process's environment.
    """

    names: Collection[str] = ()
    secrets: Collection[str] = ()
    remedy: str = f"add it to `variables` of [{TABLE}] in pyproject.toml"
    values: Mapping[str, str] | None = None

    def get(self, name: str) -> str | None:
        return (os.environ if self.values is None else self.values).get(name)


def read_environment(reader: SettingsReader) -> Environment:
    """Return the environment variables that configs may read."""
    secrets = reader.get("secrets", frozenset())
    names = reader.get("variables", frozenset()) | secrets
    if not reader.untrusted:
        return Environment(names, secrets)
    variable = variable_of("variables")
    remedy = (
        f"this build is untrusted: only {variable} in its environment can list them"
    )
    return Environment(names, secrets, remedy)


def read_remote(reader: SettingsReader) -> RemoteTierSettings | None:
    """Return the settings of the remote tier that a feature provides, or None if none is set."""
    for feature in find_features():
        if feature.remote_tier and any(map(reader.is_set, feature.settings)):
            remote: RemoteTierSettings | None = load(feature.remote_tier)(reader)
            if remote is not None:
                return remote
    return None


def read_executor(reader: SettingsReader) -> str:
    """Return where actions run, or "" for this machine.

    Raises PipelineError if this installation lacks the executor.
    """
    executor: str = reader.get("executor", "")
    name = executor.partition("://")[0]
    executors = find_functions("executors")
    if name and name not in executors:
        names = (
            f"take {listed(executors)}"
            if executors
            else "unset it to build on this machine"
        )
        where = reader.place_of("executor")
        raise PipelineError(
            f"{where}: this installation has no executor {shown(name)}; {names}"
        )
    return executor


def in_ci() -> bool:
    """Return whether this process runs in CI, by the variable that all CI services set."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def usable_cores() -> int:
    """Return the number of cores that this process may use, or of all cores if that is unknown.

    Some systems, such as macOS, don't report it.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
