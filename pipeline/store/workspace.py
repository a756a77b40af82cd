"""A workspace: the folders of one project, and the results of its last builds."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError
from pipeline.store.file_digests import FileDigests, is_settled, read_stamp
from pipeline.store.files import (
    inside,
    own_record_bytes,
    read_own_record,
    remove,
    write_atomically,
)
from pipeline.store.places import default_root
from pipeline.store.setting_table import DEFAULT_CAP
from pipeline.store.settings import (
    Environment,
    read_environment,
    read_executor,
    read_remote,
    usable_cores,
)
from pipeline.store.settings_reader import SettingsReader, open_settings
from pipeline.store.sizes import parse_size
from pipeline.store.states import is_state
from pipeline.store.store import Store

BASELINES = "baselines"
BUILD_VARIABLE = "PTE_PIPELINE_BUILD_FOLDER"  # set to build elsewhere than in `build/`
CONFIGS_VARIABLE = "PTE_PIPELINE_CONFIGS_FOLDER"  # set to build other configs
CONFIG_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, eq=False, repr=False)  # see `moments.Feature`
class Workspace:
    """A project's folder, its store, and the settings of its builds.

    Attributes:
        jobs: the number of worker processes.
        build_folder: the folder for builds, or None for `build/`.
        environment: the environment variables that configs may read.
        data: folders outside the workspace that links in it may point to.
        operators: the operator libraries of every package, modules and files; loading one runs its
            code.
        operators_folder: whether configs may name libraries in the workspace's folder `operators/`.
        fast_lowering: whether ExecuTorch's calls are made faster; changes no byte, and so is not
            part of any key.
        executor: where actions run: "" for this machine, or the name of an executor that a feature
            provides, followed by its address if it has one.
        refit: whether new weights are put into a previously lowered program; changes no byte
            either.
        allow: the verdicts with which a build succeeds, in addition to passed.
    """

    root: Path
    store: Store
    jobs: int
    build_folder: Path | None = None
    environment: Environment = field(default_factory=Environment)
    data: tuple[Path, ...] = ()
    operators: tuple[str, ...] = ()
    operators_folder: bool = True
    fast_lowering: bool = True
    executor: str = ""
    refit: bool = True
    allow: tuple[str, ...] = ()

    def find_data(self, name: str | Path) -> Digest | None:
        """Return the digest of a data file, or None if it is unreadable or elsewhere."""
        if not os.path.lexists(os.path.join(self.root, name)):  # like most baselines
            return None
        try:
            return self.file_digests.hash(
                inside(self.root / name, (self.root, *self.data))
            )
        except OSError:
            return None

    @cached_property
    def models(self) -> Path:
        return self.root / "models"

    @cached_property
    def configs(self) -> Path:
        return self.root / os.environ.get(CONFIGS_VARIABLE, "partition_configs")

    @cached_property
    def build(self) -> Path:
        return self.build_folder or self.root / "build"

    def baseline(self, package: str) -> Path:
        """Return the path of a package's accepted figures."""
        return self.root / BASELINES / f"{package}.yaml"

    @property
    def logs(self) -> Path:
        return self.build / ".logs"  # no package can have this name

    def package(self, name: str) -> Path:
        return self.build / name

    @cached_property
    def file_digests(self) -> FileDigests:
        # Cached values may derive from remote results that other runs don't trust.
        return FileDigests(self.build / f".files{self.store.trust}.json")

    @cached_property
    def archive_digests(self) -> FileDigests:
        """The descriptions of archives, in a file of their own, which a no-op run doesn't read."""
        return FileDigests(self.build / f".archives{self.store.trust}.json")

    def find_damaged(self, package: str, files: Mapping[str, Digest]) -> Path | None:
        """Return a file of a package that is missing or has another content, or None."""
        for name, content in files.items():
            path = self.package(package) / name
            if self.file_digests.find_plain(str(path)) != content:
                return path
        return None

    def state(self, package: str) -> Mapping[str, Any]:
        """Return what the last build of a package recorded, or {} if the record can't be trusted.

        The file is read again only if its stamp has changed.
        """
        path = _state_path(self.build, package)
        cached, now = self._states.get(package), time.time_ns()
        try:
            stamp = read_stamp(path)
        except OSError:
            return {}
        if cached and cached[0] == stamp:
            return cached[1]
        record = read_own_record(path)
        state = record if is_state(record) else {}
        if is_settled(stamp, now):
            self._states[package] = stamp, state
        return state

    @cached_property
    def _states(self) -> dict[str, tuple[list[int], Mapping[str, Any]]]:
        return {}

    @property
    def writes(self) -> int:
        """The number of times that this process wrote or removed a state."""
        return self._written[0]

    @cached_property
    def _written(self) -> list[int]:
        return [0]

    def write_state(self, package: str, state: Mapping[str, Any]) -> None:
        self._written[0] += 1
        write_atomically(
            _state_path(self.build, package), own_record_bytes(state), self.build
        )

    def forget_state(self, package: str) -> None:
        self._written[0] += 1
        remove(_state_path(self.build, package))

    def has_states(self) -> bool:
        """Return whether any package was ever built here, successfully or not."""
        return os.path.isdir(self.build / ".state")


@cache
def _state_path(build: Path, package: str) -> Path:
    return build / ".state" / f"{package}.json"


def config_files(folder: Path) -> dict[str, list[Path]]:
    """Return the configs in a folder by the stem of their names, except hidden ones.

    Several files with the same stem are a mistake. Raises PipelineError if the folder can't be
    read.
    """
    try:
        paths = [path for path in folder.iterdir() if path.suffix in CONFIG_SUFFIXES]
        paths = sorted(paths, key=lambda path: path.name)
    except FileNotFoundError:
        paths = []
    except OSError as error:
        raise PipelineError(
            f"{folder.name}: cannot be read: {error.strerror}"
        ) from error
    files: dict[str, list[Path]] = {}
    for path in paths:
        if not path.name.startswith("."):
            files.setdefault(path.stem, []).append(path)
    return files


def makes_packages(stem: str) -> bool:
    """Return whether a config of this name makes packages; others exist only to be extended."""
    return not stem.startswith("_")


def open_workspace(root: Path) -> Workspace:
    """Open the workspace at `root`. Raises PipelineError if a setting is wrong.

    An untrusted build takes the following from its environment alone, not from a file that the
    build's author can edit: where the store and the remote tier are, which of their results are
    trusted and what is written to them, which variables configs read, which links out of the
    workspace are followed, and which operator libraries are loaded.
    """
    root = root.resolve()
    settings = open_settings(root)
    get = settings.get
    folder = os.environ.get(BUILD_VARIABLE)
    return Workspace(
        root=root,
        jobs=get("jobs", usable_cores()),
        store=open_store(settings, root / "build" / ".store"),
        build_folder=Path(folder) if folder else None,
        environment=read_environment(settings),
        data=get("data", ()),
        operators=get("operators", ()),
        operators_folder=not settings.untrusted,
        fast_lowering=get("fast_lowering", True),
        executor=read_executor(settings),
        refit=get("refit", True),
        allow=get("allow", ()),
    )


def open_store(settings: SettingsReader, overflow: Path | None = None) -> Store:
    """Open the store that the settings name. Raises PipelineError if a setting is wrong."""
    return Store(
        settings.get("store", default_root()),
        cap=settings.get("store_size", parse_size(DEFAULT_CAP)),
        remote=read_remote(settings),
        overflow=overflow,
    )
