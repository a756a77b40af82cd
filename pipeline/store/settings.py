"""Settings of a workspace: `[tool.pte-pipeline]` in its `pyproject.toml`, and the environment.

An environment variable wins over the file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True)
class WorkspaceSettings:
    """`jobs` is the number of worker processes, `cap` the greatest size of the store in bytes."""

    jobs: int
    store: Path
    cap: int
    remote: RemoteSettings | None


def read_settings(root: Path) -> WorkspaceSettings:
    """Read the settings of the workspace at `root`. Raises PipelineError for wrong ones.

    An untrusted build writes to the remote tier only if its environment says so, not if a file says
    so that the build's author can edit.
    """
    get = partial(_get, root, _read_table(root / "pyproject.toml"))
    remote = None
    if (url := get("remote")) is not None:
        from pipeline.store.remote import RemoteSettings

        untrusted = os.environ.get(UNTRUSTED_VARIABLE, "") not in ("", "0", "false")
        default_mode = "read-only" if untrusted else "read-write"
        remote = RemoteSettings(
            url=url,
            writable=get("remote_mode", default_mode, from_file=not untrusted) == "read-write",
            signing_key=get("signing_key"),
            trusted_keys=get("trusted_keys", ()),
            options=get("remote_options", {}),
            timeout=get("remote_timeout", 20.0),
        )
    return WorkspaceSettings(
        jobs=get("jobs", len(os.sched_getaffinity(0))),
        store=get("store", default_root()),
        cap=get("store_size", parse_size(DEFAULT_CAP)),
        remote=remote,
    )


def _parse_jobs(value: Any, _: Path) -> int:
    jobs = int(value) if isinstance(value, str) and value.isdecimal() else value
    return _checked(jobs, type(jobs) is int and jobs >= 1)


def _parse_size(value: Any, _: Path) -> int:
    size = parse_size(value) if isinstance(value, str) else None
    return _checked(size, size is not None)


def _parse_seconds(value: Any, _: Path) -> float:
    seconds = float(_checked(value, type(value) in (int, float, str)))
    return _checked(seconds, 0 < seconds < 1e9)  # threads wait no longer than some 1e10


def _parse_path(value: Any, root: Path) -> Path:
    return root / Path(_checked(value, isinstance(value, str))).expanduser()


def _parse_paths(value: Any, root: Path) -> tuple[Path, ...]:
    values = value.split(os.pathsep) if isinstance(value, str) else value
    return tuple(_parse_path(each, root) for each in _checked(values, isinstance(values, list)))


def _checked(value: Any, ok: bool) -> Any:
    if not ok:
        raise ValueError
    return value


# How the value of each setting is read, in a workspace at a root, and what it must be. A parser
# raises ValueError.
_SETTINGS: Mapping[str, tuple[Callable[[Any, Path], Any], str]] = {
    "jobs": (_parse_jobs, "a whole number from 1 up"),
    "store": (_parse_path, "a path"),
    "store_size": (_parse_size, "a size such as 50GB"),
    "remote": (
        lambda value, _: _checked(value, isinstance(value, str) and "://" in value),
        "an address such as s3://bucket/folder or file:///folder",
    ),
    "remote_mode": (
        lambda value, _: _checked(value, value in ("read-write", "read-only")),
        "read-write or read-only",
    ),
    "remote_timeout": (_parse_seconds, "a number of seconds above 0"),
    "signing_key": (_parse_path, "a path"),
    "trusted_keys": (_parse_paths, "a path or a list of paths"),
    "remote_options": (lambda value, _: _checked(value, isinstance(value, dict)), "a table"),
}
VARIABLES = {name: f"PTE_PIPELINE_{name.upper()}" for name in _SETTINGS if name != "remote_options"}


def _get(
    root: Path, table: Mapping[str, Any], name: str, default: Any = None, from_file: bool = True
) -> Any:
    """Return the value of a setting, or the default if nothing gives one."""
    text = os.environ.get(VARIABLES.get(name, ""))
    value = text or (table.get(name) if from_file else None)
    if value is None:
        return default
    parse, wanted = _SETTINGS[name]
    try:
        return parse(value, root)
    except (OverflowError, RuntimeError, ValueError):  # RuntimeError: no such user's home
        where = VARIABLES[name] if text else f"pyproject.toml: {TABLE}.{name}"
        raise PipelineError(f"{where}: is {value!r}; must be {wanted}") from None


def _read_table(path: Path) -> Mapping[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:  # no TOML, or no text
        raise PipelineError(f"{path.name}: {error}") from error
    settings: dict[str, Any] = table.get("tool", {}).get("pte-pipeline", {})
    if unknown := [name for name in settings if name not in _SETTINGS]:
        guess = did_you_mean(unknown[0], _SETTINGS)
        raise PipelineError(f"{path.name}: {TABLE}: unknown key '{unknown[0]}'; {guess}")
    return settings
