"""Settings of a workspace: `[tool.pte-pipeline]` in its `pyproject.toml`, and the environment.

An environment variable wins over the file.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.moments import find_features, find_functions, load
from pipeline.store.errors import PipelineError, listed, shown
from pipeline.store.places import default_root
from pipeline.store.setting_table import DEFAULT_CAP, variable_of
from pipeline.store.settings_reader import TABLE, SettingsReader, open_settings
from pipeline.store.sizes import parse_size

if TYPE_CHECKING:
    from pipeline.store.remote_tier import RemoteTierSettings


@dataclass(frozen=True)
class Environment:
    """The variables of the environment that configs may read.

    Attributes:
        names: all of them.
        secrets: those whose values are recorded nowhere.
        remedy: how to add one.
        values: instead of the process's environment.
    """

    names: Collection[str] = ()
    secrets: Collection[str] = ()
    remedy: str = f"add it to `variables` of [{TABLE}] in pyproject.toml"
    values: Mapping[str, str] | None = None

    def get(self, name: str) -> str | None:
        return (os.environ if self.values is None else self.values).get(name)


@dataclass(frozen=True)
class OperatorSettings:
    """The libraries of operators that may be loaded, which runs their code.

    Attributes:
        listed: modules, and files of modules and shared libraries, that every package has.
        folder: whether configs may name what stands in the workspace's folder `operators/`.
    """

    listed: tuple[str, ...] = ()
    folder: bool = True


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """The settings that every action of a workspace sees.

    Attributes:
        environment: the variables that configs may read.
        data: folders outside of the workspace to which links in it may lead.
        operators: the libraries that may be loaded.
        fast_lowering: whether time is saved inside ExecuTorch's calls; changes no byte, and so is
            in no key.
        executor: where actions run: "" for this machine, or the name of an executor that a feature
            brings, with an address behind it where it has one.
        refit: whether new weights are put into what was lowered before; changes no byte either.
        allow: further verdicts with which a build succeeds, besides passed.
    """

    environment: Environment = field(default_factory=Environment)
    data: tuple[Path, ...] = ()
    operators: OperatorSettings = field(default_factory=OperatorSettings)
    fast_lowering: bool = True
    executor: str = ""
    refit: bool = True
    allow: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkspaceSettings:
    """The settings of a workspace: `jobs` is the number of worker processes, `cap` the greatest
    size of the store in bytes."""

    jobs: int
    store: Path
    cap: int
    remote: RemoteTierSettings | None
    build: BuildSettings


def read_settings(root: Path) -> WorkspaceSettings:
    """Read the settings of the workspace at `root`. Raises PipelineError for wrong ones.

    An untrusted build goes by its environment alone, not by a file that the build's author can
    edit: where the store and the remote tier are, what is believed of them and written to them,
    which variables configs read, which links out of the workspace are followed, and which libraries
    of operators are loaded.
    """
    reader = open_settings(root)
    get = reader.get
    return WorkspaceSettings(
        jobs=get("jobs", usable_cores()),
        store=get("store", default_root()),
        cap=get("store_size", parse_size(DEFAULT_CAP)),
        remote=_read_remote(reader),
        build=BuildSettings(
            environment=_environment(reader),
            data=get("data", ()),
            operators=OperatorSettings(get("operators", ()), not reader.untrusted),
            fast_lowering=get("fast_lowering", True),
            executor=_read_executor(reader),
            refit=get("refit", True),
            allow=get("allow", ()),
        ),
    )


def _read_remote(reader: SettingsReader) -> RemoteTierSettings | None:
    """Return the settings of the remote tier that a feature brings, if one is set."""
    for feature in find_features():
        if feature.remote_tier and any(map(reader.is_set, feature.settings)):
            remote: RemoteTierSettings | None = load(feature.remote_tier)(reader)
            if remote is not None:
                return remote
    return None


def _read_executor(reader: SettingsReader) -> str:
    """Return where actions run, "" for this machine. Raises PipelineError for an executor that this
    installation lacks."""
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
    """Return the number of cores that this process may use; all of them where the system, such as
    macOS, does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _environment(reader: SettingsReader) -> Environment:
    secrets = reader.get("secrets", frozenset())
    names = reader.get("variables", frozenset()) | secrets
    if not reader.untrusted:
        return Environment(names, secrets)
    variable = variable_of("variables")
    remedy = (
        f"this build is untrusted: only {variable} in its environment can list them"
    )
    return Environment(names, secrets, remedy)
