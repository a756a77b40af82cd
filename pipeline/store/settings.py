"""Settings of a workspace: `[tool.pte-pipeline]` in its `pyproject.toml`, and the environment.

An environment variable wins over the file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.store.errors import PipelineError, did_you_mean, shown
from pipeline.store.files import read_text_file
from pipeline.store.places import default_root
from pipeline.store.sizes import parse_size

if TYPE_CHECKING:
    from pipeline.store.remote import RemoteSettings
    from pipeline.store.signing import Keys

TABLE = "tool.pte-pipeline"
UNTRUSTED_VARIABLE = "PTE_PIPELINE_UNTRUSTED"
DEFAULT_CAP = "50GB"
UNSIGNED = "unsigned"
_MOST_JOBS = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_EXECUTOR = re.compile(r"dask(://[^/\s]+:\d{1,5})?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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


@dataclass(frozen=True)
class WorkspaceSettings:
    """`jobs` is the number of worker processes, `cap` the greatest size of the store in bytes;
    `data` are folders outside of the workspace to which links in it may lead. `fast_lowering` is
    whether time is saved inside ExecuTorch's calls, and `refit` whether new weights are put into
    what was lowered before; both change no byte and so are in no key.
    `executor` is where actions run: "" for this machine, "dask" for a cluster that is started on
    it, or the address of a scheduler. `allow` are verdicts that end a build well beside passed.
    `unknown_toolchain` is "allow", "refuse", or "" where that depends on CI."""

    jobs: int
    store: Path
    cap: int
    remote: RemoteSettings | None
    environment: Environment
    data: tuple[Path, ...]
    operators: OperatorSettings
    fast_lowering: bool
    executor: str = ""
    refit: bool = True
    allow: tuple[str, ...] = ()
    unknown_toolchain: str = ""


def read_settings(root: Path) -> WorkspaceSettings:
    """Read the settings of the workspace at `root`. Raises PipelineError for wrong ones.

    An untrusted build goes by its environment alone, not by a file that the build's author can
    edit: where the store and the remote tier are, what is believed of them and written to them,
    which variables configs read, which links out of the workspace are followed, and which libraries
    of operators are loaded.
    """
    get, untrusted = _open_settings(root)
    remote = None
    if (url := get("remote")) is not None:
        from pipeline.store.remote import RemoteSettings

        remote = RemoteSettings(
            url=url,
            writable=get("remote_mode", "read-only" if untrusted else "read-write") == "read-write",
            signing_key=get("signing_key"),
            trusted_keys=get("trusted_keys", ()),
            options=get("remote_options", {}),
            timeout=get("remote_timeout", 20.0),
            unsigned=get("remote_trust") == "unsigned",
        )
        _check_trust(remote)
        if untrusted:
            _check_keys_outside(remote.signing_key, remote.trusted_keys, root)
    return WorkspaceSettings(
        jobs=get("jobs", usable_cores()),
        store=get("store", default_root()),
        cap=get("store_size", parse_size(DEFAULT_CAP)),
        remote=remote,
        environment=_environment(get, untrusted),
        data=get("data", ()),
        operators=OperatorSettings(get("operators", ()), not untrusted),
        fast_lowering=get("fast_lowering", True),
        executor=get("executor", ""),
        refit=get("refit", True),
        allow=get("allow", ()),
        unknown_toolchain=get("unknown_toolchain", ""),
    )


def read_keys(root: Path) -> Keys:
    """Read the keys of the workspace at `root`, with a remote or without. Raises PipelineError for
    wrong settings, and for keys that can't be used."""
    from pipeline.store.signing import load_keys

    get, untrusted = _open_settings(root)
    signing_key, trusted_keys = get("signing_key"), get("trusted_keys", ())
    if untrusted:
        _check_keys_outside(signing_key, trusted_keys, root)
    return load_keys(signing_key, trusted_keys)


def _open_settings(root: Path) -> tuple[Callable[..., Any], bool]:
    """Return what gives the value of a setting, and whether the build is untrusted. Raises
    PipelineError."""
    untrusted = os.environ.get(UNTRUSTED_VARIABLE, "") not in ("", "0", "false")
    table = _read_table(root / "pyproject.toml")
    if untrusted:
        table = {name: value for name, value in table.items() if name == "jobs"}
    return partial(_get, root, table), untrusted


def in_ci() -> bool:
    """Return whether this process runs in CI, by the variable that all CI services set."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def usable_cores() -> int:
    """Return the number of cores that this process may use; all of them where the system, such as
    macOS, does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _environment(get: Callable[..., Any], untrusted: bool) -> Environment:
    secrets = get("secrets", frozenset())
    names = get("variables", frozenset()) | secrets
    if not untrusted:
        return Environment(names, secrets)
    remedy = f"this build is untrusted: only {VARIABLES['variables']} of its environment lists them"
    return Environment(names, secrets, remedy)


def _check_trust(remote: RemoteSettings) -> None:
    """Raise PipelineError where it is not said, or said twice, whose results are believed."""
    both = f"trusted_keys (Ed25519 public keys) or remote_trust = '{UNSIGNED}'"
    if remote.signed and remote.unsigned:
        raise PipelineError(f"{TABLE}: has keys and remote_trust; keep {both}")
    if not (remote.signed or remote.unsigned):
        raise PipelineError(
            f"{TABLE}.remote: nothing says whose results are believed; set {both}, which believes "
            "all who can write there (docs/concepts/cache.md)"
        )


def _check_keys_outside(signing_key: Path | None, trusted_keys: Sequence[Path], root: Path) -> None:
    """Raise PipelineError for a key in the workspace, where a stranger could put another."""
    trusted = [("trusted_keys", key) for key in trusted_keys]
    for name, key in [*trusted, ("signing_key", signing_key)]:
        for place in map(Path, (os.path.normpath(key), os.path.realpath(key)) if key else ()):
            if place.is_relative_to(root):
                raise PipelineError(
                    f"{VARIABLES[name]}: {place.relative_to(root)} is in the workspace, which an "
                    "untrusted build does not believe; name a file outside"
                )


def _parse_jobs(value: Any, _: Path) -> int:
    jobs = int(value) if isinstance(value, str) and value.isdecimal() else value
    return _checked(jobs, type(jobs) is int and 1 <= jobs <= _MOST_JOBS)


def _parse_bool(value: Any, _: Path) -> bool:
    switches = {"1": True, "true": True, "0": False, "false": False}
    switch = switches.get(value) if isinstance(value, str) else value
    return _checked(switch, type(switch) is bool)


def _parse_size(value: Any, _: Path) -> int:
    size = parse_size(value) if isinstance(value, str) else None
    return _checked(size, size is not None)


def _parse_seconds(value: Any, _: Path) -> float:
    seconds = float(_checked(value, type(value) in (int, float, str)))
    return _checked(seconds, 0 < seconds < 1e9)  # threads wait no longer than some 1e10


def _parse_text(value: Any) -> str:
    ok = isinstance(value, str) and 0 < len(value) < 4096 and not _CONTROL.search(value)
    return str(_checked(value, ok))


def _parse_path(value: Any, root: Path) -> Path:
    path = root / Path(_parse_text(value)).expanduser()
    return _checked(path, all(len(os.fsencode(part)) < 256 for part in path.parts))


def _parse_texts(value: Any, _: Path) -> tuple[str, ...]:
    values = value.split(os.pathsep) if isinstance(value, str) else value
    return tuple(_parse_text(each) for each in _checked(values, isinstance(values, list)))


def _parse_names(value: Any, _: Path) -> frozenset[str]:
    names = re.split(r"[,\s]+", value.strip(", ")) if isinstance(value, str) else value
    ok = isinstance(names, list) and all(isinstance(n, str) and _NAME.fullmatch(n) for n in names)
    return frozenset(_checked(names, ok))


def _parse_paths(value: Any, root: Path) -> tuple[Path, ...]:
    values = value.split(os.pathsep) if isinstance(value, str) else value
    return tuple(_parse_path(each, root) for each in _checked(values, isinstance(values, list)))


def _parse_verdicts(value: Any, root: Path) -> tuple[str, ...]:
    """Parse verdicts, of a list or with commas between them."""
    words = value.split(",") if isinstance(value, str) else list(value)
    verdicts = tuple(str(word).strip() for word in words)
    return _checked(verdicts, {*verdicts} <= {"not-judged", "not-run"})


def _checked(value: Any, ok: bool) -> Any:
    if not ok:
        raise ValueError
    return value


class Setting(NamedTuple):
    """How the value of a setting is read, in a workspace at a root; what it must be; what it does;
    its default in words. The parser raises ValueError."""

    parse: Callable[[Any, Path], Any]
    wanted: str
    meaning: str
    default: str = "not set"


SETTINGS: Mapping[str, Setting] = {
    "jobs": Setting(
        _parse_jobs,
        f"a whole number from 1 up to {_MOST_JOBS}",
        "The number of worker processes; `-n` of doit comes first.",
        "one per core",
    ),
    "store": Setting(
        _parse_path,
        "a path",
        "The folder of the store; any number of builds may share it.",
        "$XDG_CACHE_HOME/pte-pipeline, or ~/.cache/pte-pipeline",
    ),
    "store_size": Setting(
        _parse_size,
        "a size such as 50GB",
        "The greatest size of the store; what was not used for longest goes first.",
        DEFAULT_CAP,
    ),
    "remote": Setting(
        lambda value, _: _checked(value, "://" in _parse_text(value)),
        "an address such as s3://bucket/folder or file:///folder",
        "A store that a team and its CI share, by any address of fsspec.",
    ),
    "remote_mode": Setting(
        lambda value, _: _checked(value, value in ("read-write", "read-only")),
        "read-write or read-only",
        "Whether results are pushed to the remote.",
        "read-write; read-only in an untrusted build",
    ),
    "remote_trust": Setting(
        lambda value, _: _checked(value, value == UNSIGNED),
        UNSIGNED,
        "Believe unsigned results, and so all who can write to the remote; in place of keys.",
    ),
    "remote_timeout": Setting(
        _parse_seconds,
        "a number of seconds above 0",
        "How long one step of a transfer may take.",
        "20",
    ),
    "remote_options": Setting(
        lambda value, _: _checked(value, isinstance(value, dict)),
        "a table",
        "What fsspec is given beside the address, such as endpoint_url.",
    ),
    "signing_key": Setting(
        _parse_path,
        "a path",
        "The private Ed25519 key by which results are signed when pushed, and attestations.",
    ),
    "trusted_keys": Setting(
        _parse_paths,
        "a path or a list of paths",
        "The public Ed25519 keys of those whose results and attestations are believed.",
    ),
    "variables": Setting(
        _parse_names, "a list of names of variables", "The variables that configs may read."
    ),
    "secrets": Setting(
        _parse_names,
        "a list of names of variables",
        "Variables that options of passes may read, and whose values are recorded nowhere.",
    ),
    "data": Setting(
        _parse_paths,
        "a path or a list of paths",
        "Folders outside of the workspace to which links in it may lead.",
    ),
    "operators": Setting(
        _parse_texts,
        "a list of modules and of paths of libraries",
        "Libraries of operators that every package and every exporter has.",
    ),
    "executor": Setting(
        lambda value, _: _checked(value, bool(_EXECUTOR.fullmatch(_parse_text(value)))),
        "dask, for a cluster on this machine, or the address of a scheduler: dask://host:8786",
        "Where actions run.",
        "worker processes of this machine",
    ),
    "fast_lowering": Setting(
        _parse_bool,
        "true or false",
        "Save time inside of ExecuTorch's calls; changes no byte.",
        "true",
    ),
    "refit": Setting(
        _parse_bool,
        "true or false",
        "Put new weights into what was lowered before, where nothing else changed; changes no "
        "byte.",
        "true",
    ),
    "allow": Setting(
        _parse_verdicts,
        "not-judged, not-run, or both",
        "The verdicts that end a build well beside passed; `--allow` of doit comes first.",
        "none",
    ),
    "unknown_toolchain": Setting(
        lambda value, _: _checked(value, value in ("allow", "refuse")),
        "allow or refuse",
        "Whether packages are built with another torch, executorch or torchao than this release "
        "was tested with. A line says so anyway.",
        "allow; refuse where CI=true",
    ),
}
VARIABLES = {name: f"PTE_PIPELINE_{name.upper()}" for name in SETTINGS if name != "remote_options"}


def _get(root: Path, table: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Return the value of a setting, or the default if nothing gives one."""
    text = os.environ.get(VARIABLES.get(name, ""))
    value = text or table.get(name)
    if value is None:
        return default
    setting = SETTINGS[name]
    try:
        return setting.parse(value, root)
    except (OverflowError, RuntimeError, ValueError):  # RuntimeError: no such user's home
        where = VARIABLES[name] if text else f"pyproject.toml: {TABLE}.{name}"
        raise PipelineError(f"{where}: is {shown(value)}; must be {setting.wanted}") from None


def _read_table(path: Path) -> Mapping[str, Any]:
    try:
        file = tomllib.loads(read_text_file(path).decode())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise PipelineError(f"{path.name}: cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise PipelineError(f"{path.name}: is nested too deep") from error
    except ValueError as error:  # no TOML, or no text
        raise PipelineError(f"{path.name}: {error}") from error
    settings: Any = file
    for place, key in (("tool", "tool"), (TABLE, "pte-pipeline")):
        settings = settings.get(key, {})
        if not isinstance(settings, dict):
            raise PipelineError(f"{path.name}: {place}: is {shown(settings)}; must be a table")
    if unknown := [name for name in settings if name not in SETTINGS]:
        guess = did_you_mean(unknown[0], SETTINGS)
        raise PipelineError(f"{path.name}: {TABLE}: unknown key {shown(unknown[0])}; {guess}")
    return settings
