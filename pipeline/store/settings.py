"""Settings of a workspace: `[tool.pte-pipeline]` in its `pyproject.toml`, and the environment.

An environment variable wins over the file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.store.errors import PipelineError, did_you_mean
from pipeline.store.sizes import parse_size
from pipeline.store.store import default_root

if TYPE_CHECKING:
    from pipeline.store.remote import RemoteSettings

TABLE = "tool.pte-pipeline"
UNTRUSTED_VARIABLE = "PTE_PIPELINE_UNTRUSTED"
DEFAULT_CAP = "50GB"
MODES = ("read-write", "read-only")
VARIABLES = {
    "jobs": "PTE_PIPELINE_JOBS",
    "store": "PTE_PIPELINE_STORE",
    "store_size": "PTE_PIPELINE_STORE_SIZE",
    "remote": "PTE_PIPELINE_REMOTE",
    "remote_mode": "PTE_PIPELINE_REMOTE_MODE",
    "remote_timeout": "PTE_PIPELINE_REMOTE_TIMEOUT",
    "signing_key": "PTE_PIPELINE_SIGNING_KEY",
    "trusted_keys": "PTE_PIPELINE_TRUSTED_KEYS",
}
_KNOWN = (*VARIABLES, "remote_options")


@dataclass(frozen=True)
class Settings:
    """`jobs` is the number of worker processes, `cap` the greatest size of the store in bytes."""

    jobs: int
    store: Path
    cap: int
    remote: RemoteSettings | None


def read_settings(root: Path) -> Settings:
    """The settings of the workspace at `root`. Raises PipelineError for those that make no
    sense."""
    given = _Given(root, _table(root / "pyproject.toml"))
    return Settings(
        jobs=given.get("jobs", _jobs) or len(os.sched_getaffinity(0)),
        store=given.get("store", given.path) or default_root(),
        cap=given.get("store_size", _size) or _size(DEFAULT_CAP),
        remote=_remote(given),
    )


def _table(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        table = tomllib.loads(text).get("tool", {}).get("pte-pipeline", {})
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(f"{path.name}: {error}") from error
    for name in table:
        if name not in _KNOWN:
            raise PipelineError(
                f"{path.name}: {TABLE}: unknown key '{name}'; {did_you_mean(name, _KNOWN)}"
            )
    return table


@dataclass(frozen=True)
class _Given:
    """What the file and the environment say."""

    root: Path
    table: Mapping[str, Any]

    def get(self, name: str, parse: Callable[[Any], Any], from_file: bool = True) -> Any:
        """The value, or None where nobody gives one. `parse` raises ValueError with what would be
        right."""
        text = os.environ.get(VARIABLES.get(name, ""))
        value = text or (self.table.get(name) if from_file else None)
        if value is None:
            return None
        try:
            return parse(value)
        except (ValueError, TypeError) as error:
            where = VARIABLES[name] if text else f"pyproject.toml: {TABLE}.{name}"
            raise PipelineError(f"{where}: is {value!r}; must be {error}") from error

    def path(self, value: Any) -> Path:
        if not isinstance(value, str):
            raise ValueError("a path")
        return self.root / Path(value).expanduser()

    def paths(self, value: Any) -> tuple[Path, ...]:
        values = value.split(os.pathsep) if isinstance(value, str) else value
        if not isinstance(values, list):
            raise ValueError("a path or a list of paths")
        return tuple(self.path(each) for each in values)


def _jobs(value: Any) -> int:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError("a whole number from 1 up")
    return value


def _size(value: Any) -> int:
    size = parse_size(value) if isinstance(value, str) else None
    if size is None:
        raise ValueError("a size such as 50GB")
    return size


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf") or isinstance(value, bool):
        raise ValueError("a number of seconds above 0")
    return seconds


def _mode(value: Any) -> str:
    if value not in MODES:
        raise ValueError(" or ".join(MODES))
    return str(value)


def _url(value: Any) -> str:
    if not isinstance(value, str) or "://" not in value:
        raise ValueError("an address such as s3://bucket/folder or file:///folder")
    return value


def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a table")
    return value


def _remote(given: _Given) -> RemoteSettings | None:
    """The remote tier. An untrusted build writes to it only if its environment says so, not if a
    file says so that the build's author can edit."""
    url = given.get("remote", _url)
    if url is None:
        return None
    from pipeline.store.remote import RemoteSettings

    untrusted = os.environ.get(UNTRUSTED_VARIABLE, "") not in ("", "0", "false")
    mode = given.get("remote_mode", _mode, from_file=not untrusted)
    return RemoteSettings(
        url=url,
        writable=(mode or ("read-only" if untrusted else "read-write")) == "read-write",
        signing_key=given.get("signing_key", given.path),
        trusted_keys=given.get("trusted_keys", given.paths) or (),
        options=given.get("remote_options", _options) or {},
        timeout=given.get("remote_timeout", _seconds) or 20.0,
    )
