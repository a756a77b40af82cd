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
class WorkspaceSettings:
    """`jobs` is the number of worker processes, `cap` the greatest size of the store in bytes."""

    jobs: int
    store: Path
    cap: int
    remote: RemoteSettings | None


def read_settings(root: Path) -> WorkspaceSettings:
    """Read the settings of the workspace at `root`. Raises PipelineError for wrong ones."""
    source = _Source(root)
    cpus = len(os.sched_getaffinity(0))
    cap = parse_size(DEFAULT_CAP)
    return WorkspaceSettings(
        jobs=source.get("jobs", _parse_jobs, "a whole number from 1 up", cpus),
        store=source.get("store", source.parse_path, "a path", default_root()),
        cap=source.get("store_size", _parse_size, "a size such as 50GB", cap),
        remote=_read_remote(source),
    )


class _Source:
    """The values that the file and the environment give."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._table = _read_table(root / "pyproject.toml")

    def get(
        self,
        name: str,
        parse: Callable[[Any], Any],
        wanted: str,
        default: Any = None,
        from_file: bool = True,
    ) -> Any:
        """Return the parsed value of a setting, or the default if nothing gives one.

        Args:
            parse: raises ValueError for a wrong value.
            wanted: what would be right, for the message.
        """
        text = os.environ.get(VARIABLES.get(name, ""))
        value = text or (self._table.get(name) if from_file else None)
        if value is None:
            return default
        try:
            return parse(value)
        except ValueError:
            where = VARIABLES[name] if text else f"pyproject.toml: {TABLE}.{name}"
            raise PipelineError(f"{where}: is {value!r}; must be {wanted}") from None

    def parse_path(self, value: Any) -> Path:
        return self._root / Path(_checked(value, isinstance(value, str))).expanduser()

    def parse_paths(self, value: Any) -> tuple[Path, ...]:
        values = value.split(os.pathsep) if isinstance(value, str) else value
        return tuple(map(self.parse_path, _checked(values, isinstance(values, list))))


def _read_table(path: Path) -> Mapping[str, Any]:
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


def _checked(value: Any, ok: bool) -> Any:
    if not ok:
        raise ValueError
    return value


def _parse_jobs(value: Any) -> int:
    jobs = int(value) if isinstance(value, str) and value.isdecimal() else value
    return _checked(jobs, type(jobs) is int and jobs >= 1)


def _parse_size(value: Any) -> int:
    size = parse_size(value) if isinstance(value, str) else None
    return _checked(size, size is not None)


def _parse_seconds(value: Any) -> float:
    seconds = float(_checked(value, type(value) in (int, float, str)))
    return _checked(seconds, 0 < seconds < float("inf"))


def _read_remote(source: _Source) -> RemoteSettings | None:
    """Read the settings of the remote tier.

    An untrusted build writes to it only if its environment says so, not if a file says so that the
    build's author can edit.
    """
    url = source.get(
        "remote",
        lambda value: _checked(value, isinstance(value, str) and "://" in value),
        "an address such as s3://bucket/folder or file:///folder",
    )
    if url is None:
        return None
    from pipeline.store.remote import RemoteSettings

    untrusted = os.environ.get(UNTRUSTED_VARIABLE, "") not in ("", "0", "false")
    mode = source.get(
        "remote_mode",
        lambda value: _checked(value, value in MODES),
        " or ".join(MODES),
        "read-only" if untrusted else "read-write",
        from_file=not untrusted,
    )
    paths = source.get("trusted_keys", source.parse_paths, "a path or a list of paths", ())
    options = source.get("remote_options", lambda v: _checked(v, isinstance(v, dict)), "a table")
    return RemoteSettings(
        url=url,
        writable=mode == "read-write",
        signing_key=source.get("signing_key", source.parse_path, "a path"),
        trusted_keys=paths,
        options=options or {},
        timeout=source.get("remote_timeout", _parse_seconds, "a number of seconds above 0", 20.0),
    )
