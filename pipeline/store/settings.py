"""Settings of a workspace: `[tool.pte-pipeline]` in its `pyproject.toml`, and the environment.

An environment variable wins over the file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.store.errors import PipelineError, did_you_mean, shown
from pipeline.store.files import read_text_file
from pipeline.store.places import default_root
from pipeline.store.setting_table import DEFAULT_CAP, SETTINGS, UNSIGNED
from pipeline.store.setting_table import VARIABLES as VARIABLES
from pipeline.store.sizes import parse_size

if TYPE_CHECKING:
    from pipeline.store.remote import RemoteSettings
    from pipeline.store.signing import Keys

TABLE = "tool.pte-pipeline"
UNTRUSTED_VARIABLE = "PTE_PIPELINE_UNTRUSTED"


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
        executor: where actions run: "" for this machine, "dask" for a cluster that is started on
            it, or the address of a scheduler.
        refit: whether new weights are put into what was lowered before; changes no byte either.
        allow: the verdicts that end a build well beside passed.
        unknown_toolchain: "allow", "refuse", or "" where that depends on CI.
    """

    environment: Environment = field(default_factory=Environment)
    data: tuple[Path, ...] = ()
    operators: OperatorSettings = field(default_factory=OperatorSettings)
    fast_lowering: bool = True
    executor: str = ""
    refit: bool = True
    allow: tuple[str, ...] = ()
    unknown_toolchain: str = ""


@dataclass(frozen=True)
class WorkspaceSettings:
    """The settings of a workspace: `jobs` is the number of worker processes, `cap` the greatest
    size of the store in bytes."""

    jobs: int
    store: Path
    cap: int
    remote: RemoteSettings | None
    build: BuildSettings


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
        build=BuildSettings(
            environment=_environment(get, untrusted),
            data=get("data", ()),
            operators=OperatorSettings(get("operators", ()), not untrusted),
            fast_lowering=get("fast_lowering", True),
            executor=get("executor", ""),
            refit=get("refit", True),
            allow=get("allow", ()),
            unknown_toolchain=get("unknown_toolchain", ""),
        ),
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
        raise PipelineError(f"{where}: is {shown(value)}; must be {setting.expected}") from None


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
