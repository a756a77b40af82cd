"""The table of settings: how each is parsed, which values it takes, and what it does.

The table knows nothing of the workspace except the folder that relative paths start from;
`settings.py` knows where the values come from. Features add their own settings
(`moments.Feature.settings`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.moments import Setting, find_features
from pipeline.store.sizes import parse_size

DEFAULT_CAP = "50GB"
_MOST_JOBS = 4096
_MOST_SECONDS = 1e9  # threads can't wait longer than about 1e10
_CONTROL = r"[\x00-\x1f\x7f]"
_EXECUTOR = r"\w+(://[^/\s]+:\d{1,5})?"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"


def _parse_jobs(value: Any, _: Path) -> int:
    jobs = int(value) if isinstance(value, str) and value.isdecimal() else value
    return checked(jobs, type(jobs) is int and 1 <= jobs <= _MOST_JOBS)


def _parse_bool(value: Any, _: Path) -> bool:
    switches = {"1": True, "true": True, "0": False, "false": False}
    switch = switches.get(value) if isinstance(value, str) else value
    return checked(switch, type(switch) is bool)


def _parse_size(value: Any, _: Path) -> int:
    size = parse_size(value) if isinstance(value, str) else None
    return checked(size, size is not None)


def parse_text(value: Any) -> str:
    """Return a string that fits on a line. Raises ValueError for any other value."""
    ok = (
        isinstance(value, str)
        and 0 < len(value) < 4096
        and not re.search(_CONTROL, value)
    )
    return str(checked(value, ok))


def _parse_path(value: Any, root: Path) -> Path:
    path = root / Path(parse_text(value)).expanduser()
    return checked(path, all(len(os.fsencode(part)) < 256 for part in path.parts))


def _parse_names(value: Any, _: Path) -> frozenset[str]:
    names = re.split(r"[,\s]+", value.strip(", ")) if isinstance(value, str) else value
    ok = isinstance(names, list) and all(
        isinstance(n, str) and re.fullmatch(_NAME, n) for n in names
    )
    return frozenset(checked(names, ok))


def _parse_paths(value: Any, root: Path) -> tuple[Path, ...]:
    values = value.split(os.pathsep) if isinstance(value, str) else value
    return tuple(
        _parse_path(path, root) for path in checked(values, isinstance(values, list))
    )


def _parse_verdicts(value: Any, _: Path) -> tuple[str, ...]:
    """Parse verdicts from a list, or from a string with commas between them."""
    words = value.split(",") if isinstance(value, str) else value
    checked(words, isinstance(words, (list, tuple)))
    verdicts = tuple(str(word).strip() for word in words)
    return checked(verdicts, {*verdicts} <= {"not-judged", "not-run"})


def parse_seconds(value: Any, _: Path) -> float:
    """Return a number of seconds above 0. Raises ValueError for any other value."""
    seconds = float(checked(value, type(value) in (int, float, str)))
    return checked(seconds, 0 < seconds < _MOST_SECONDS)


def checked(value: Any, ok: bool) -> Any:
    """Return a value if it is `ok`. Raises ValueError otherwise."""
    if not ok:
        raise ValueError
    return value


SETTINGS: Mapping[str, Setting] = {
    "jobs": Setting(
        _parse_jobs,
        f"a whole number from 1 up to {_MOST_JOBS}",
        "The number of worker processes; `doit -n` takes precedence.",
        "one per core",
    ),
    "store": Setting(
        _parse_path,
        "a path",
        "The store's folder; any number of builds can share it.",
        "$XDG_CACHE_HOME/pte-pipeline, or ~/.cache/pte-pipeline",
    ),
    "store_size": Setting(
        _parse_size,
        "a size such as 50GB",
        "The maximum size of the store. If the store exceeds it, the least recently used results "
        "are removed.",
        DEFAULT_CAP,
    ),
    "signing_key": Setting(
        _parse_path,
        "a path",
        "The private Ed25519 key that signs attestations, and results that are pushed to a remote.",
    ),
    "trusted_keys": Setting(
        _parse_paths,
        "a path or a list of paths",
        "The public Ed25519 keys that are trusted to sign results and attestations.",
    ),
    "variables": Setting(
        _parse_names,
        "a list of variable names",
        "The environment variables that configs may read.",
    ),
    "secrets": Setting(
        _parse_names,
        "a list of variable names",
        "The environment variables that options of passes may read; their values are never "
        "recorded.",
    ),
    "data": Setting(
        _parse_paths,
        "a path or a list of paths",
        "The folders outside the workspace that symbolic links in the workspace may point to.",
    ),
    "executor": Setting(
        lambda value, _: checked(
            value, bool(re.fullmatch(_EXECUTOR, parse_text(value)))
        ),
        "dask, for a cluster on this machine, or the address of a scheduler: dask://host:8786",
        "Where actions run.",
        "worker processes on this machine",
    ),
    "fast_lowering": Setting(
        _parse_bool,
        "true or false",
        "Whether to speed up ExecuTorch's lowering; this doesn't change the bytes of packages.",
        "true",
    ),
    "refit": Setting(
        _parse_bool,
        "true or false",
        "Whether to put new weights into a lowered program instead of lowering it again, if only "
        "the weights of a method have changed; this doesn't change the bytes of packages.",
        "true",
    ),
    "allow": Setting(
        _parse_verdicts,
        "not-judged, not-run, or both",
        "The verdicts that a build accepts in addition to passed; `doit --allow` takes precedence.",
        "none",
    ),
}


@cache
def find_settings() -> Mapping[str, Setting]:
    """Return the settings of the core and of this installation's features, by name."""
    settings = dict(SETTINGS)
    for feature in find_features():
        settings.update(feature.settings)
    return settings


def variable_of(name: str) -> str:
    """Return the name of the environment variable for a setting."""
    return f"PTE_PIPELINE_{name.upper()}"
