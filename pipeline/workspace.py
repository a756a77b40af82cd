"""A workspace: the folders of one project, its settings, and what its last builds left behind.

Settings stand in the workspace's `pyproject.toml` under `[tool.pte-pipeline]`; an environment
variable wins over them.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.digest import FileDigests, canonical_json
from pipeline.errors import PipelineError
from pipeline.files import write_atomically
from pipeline.store import ENVIRONMENT_VARIABLE as STORE_VARIABLE
from pipeline.store import Store, default_root

JOBS_VARIABLE = "PTE_PIPELINE_JOBS"
_TABLE = "tool.pte-pipeline"
_SETTINGS = ("jobs", "store")


@dataclass(frozen=True)
class Workspace:
    """`jobs` is the number of worker processes."""

    root: Path
    store: Store
    jobs: int

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def configs(self) -> Path:
        return self.root / "partition_configs"

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def logs(self) -> Path:
        return self.build / ".logs"  # no package can have this name

    def package(self, name: str) -> Path:
        return self.build / name

    @cached_property
    def file_digests(self) -> FileDigests:
        return FileDigests(self.build / ".file-digests.json")

    def state(self, package: str) -> dict[str, Any]:
        """What the last build of a package recorded; empty where there is nothing to trust."""
        try:
            state = json.loads(self._state_path(package).read_bytes())
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def write_state(self, package: str, state: Mapping[str, Any]) -> None:
        write_atomically(self._state_path(package), canonical_json(state))

    def forget_state(self, package: str) -> None:
        self._state_path(package).unlink(missing_ok=True)

    def _state_path(self, package: str) -> Path:
        return self.build / ".state" / f"{package}.json"


def open_workspace(root: Path) -> Workspace:
    """Raises PipelineError for settings that make no sense."""
    root = root.resolve()
    settings = _settings(root / "pyproject.toml")
    store = os.environ.get(STORE_VARIABLE) or settings.get("store")
    path = default_root() if not store else root / Path(store).expanduser()
    return Workspace(root, Store(path), _jobs(settings))


def _settings(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        settings = tomllib.loads(text).get("tool", {}).get("pte-pipeline", {})
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(f"{path.name}: {error}") from error
    unknown = sorted(set(settings) - set(_SETTINGS))
    if unknown:
        raise PipelineError(
            f"{path.name}: {_TABLE}: unknown key {', '.join(unknown)}; "
            f"known: {', '.join(_SETTINGS)}"
        )
    if not isinstance(settings.get("store", ""), str):
        raise PipelineError(f"{path.name}: {_TABLE}.store: must be a path")
    return settings


def _jobs(settings: Mapping[str, Any]) -> int:
    given = os.environ.get(JOBS_VARIABLE) or settings.get("jobs")
    if given is None:
        return len(os.sched_getaffinity(0))
    where = JOBS_VARIABLE if os.environ.get(JOBS_VARIABLE) else f"pyproject.toml: {_TABLE}.jobs"
    try:
        jobs = int(given)
    except (TypeError, ValueError):
        jobs = 0
    if jobs < 1 or isinstance(given, bool):
        raise PipelineError(f"{where}: is {given!r}; must be a whole number from 1 up")
    return jobs
