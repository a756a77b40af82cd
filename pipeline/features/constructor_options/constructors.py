"""Checks options of configs against the installed executorch, without importing it.

In the folder of each family, `constructors.toml` lists the callables to which options are passed,
and `constructors.json` describes their parameters in the first release of `store.releases`, which
also records how other releases differ (`python -m tools.describe_constructors`). The plan checks
options of configs against both, and tests check every row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pipeline.backends.entry import Backend
from pipeline.backends.families import find_files, read_tables
from pipeline.backends.options import Options
from pipeline.backends.quantize_options import OVERRIDES, QuantizeConfig
from pipeline.store.errors import did_you_mean
from pipeline.store.releases import Release, installed_release

# Options of quantizers that only this package has: no constructor takes them.
OURS = frozenset({*QuantizeConfig.model_fields, *OVERRIDES}) - {"dynamic"}
DESCRIPTION = "constructors.json"


@dataclass(frozen=True)
class Constructor:
    """A callable of an installed library to which options are passed: a row of a TOML file.

    The file's `beyond` lists options that aren't a parameter of any of its callables.

    Attributes:
        target: where the callable is defined: `module:function`, `module:Class` or
            `module:Class.method`. If upstream takes options as a mapping or as compile specs, an
            `[expression]` follows, whose keys the callable reads or compares.
        stages: the parts of entries whose options it takes, such as "xnnpack.lowering".
        renamed: option to parameter, for names that differ.
        left_out: parameters that aren't options, and why.
        defaults: options whose default differs from the parameter's, and why.
    """

    target: str
    stages: list[str]
    renamed: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)


def described() -> dict[str, Any]:
    """Return the description of the installed release."""
    return describe_release(installed_release())


@cache
def describe_release(release: Release) -> dict[str, Any]:
    """Return the description of a release.

    It has `versions` by package, and in `callables` the parameters by target, [] for a callable
    that the release lacks.
    """
    description: dict[str, Any] = {"versions": {}, "callables": {}}
    for path in find_files(DESCRIPTION):
        part = json.loads(path.read_text(encoding="utf-8"))
        description["versions"] |= part["versions"]
        description["callables"] |= part["callables"]
    differences = release.constructors
    if differences.is_file():
        part = json.loads(differences.read_text(encoding="utf-8"))
        description["versions"] |= part["versions"]
        description["callables"] |= part["callables"]
    return description


@cache
def _table() -> dict[str, Any]:
    return read_tables("constructors.toml")


def constructors(stage: str = "") -> list[Constructor]:
    """Return the constructors of a stage, such as "xnnpack.lowering", or all without a stage."""
    not_offered = installed_release().not_offered
    rows = []
    for row in _table()["constructors"]:
        if not stage or stage in row["stages"]:
            left_out = {**row.get("left_out", {}), **not_offered.get(row["target"], {})}
            rows.append(Constructor(**{**row, "left_out": left_out}))
    return rows


def beyond(stage: str) -> Mapping[str, str]:
    """Return the options of a stage that aren't a parameter of any constructor, each explained."""
    backend, _, kind = stage.partition(".")
    return _table()["beyond"].get(backend, {}).get(kind, {})  # type: ignore[no-any-return]


def outdated() -> str:
    """Return a message if versions other than the described ones are installed, or ""."""
    for package, described_version in described()["versions"].items():
        with suppress(PackageNotFoundError):
            installed = version(package)
            if installed != described_version:
                return (
                    f"options were checked against {package} {described_version}, but "
                    f"{installed} is installed; run `python -m tools.describe_constructors`"
                )
    return ""


def parameters(constructor: Constructor, release: Release | None = None) -> list[str]:
    """Return the names of a constructor's parameters, by default in the installed release.

    Returns [] if the constructor isn't described.
    """
    description = describe_release(release) if release else described()
    rows = description["callables"].get(constructor.target, ())
    return [row["name"] for row in rows]


def find_unknown_options(
    backend: Backend, options: Options
) -> Iterator[tuple[str, str]]:
    """Yield what `unknown_options` yields, if the described versions are installed.

    `doit explain` reports other versions.
    """
    if not outdated():
        yield from unknown_options(backend, options)


def unknown_options(backend: Backend, options: Options) -> Iterator[tuple[str, str]]:
    """Yield a config's options that no described constructor takes, each with a suggestion."""
    quantizes = isinstance(options, QuantizeConfig)
    stage = f"{backend.name}.{'quantization' if quantizes else 'lowering'}"
    callables = constructors(stage)
    if backend.plugin or not callables:
        return
    parameter_names: list[str] = []
    hidden: set[str] = set()
    for constructor in callables:
        parameter_names += parameters(constructor)
        hidden.update(constructor.left_out)
    not_passed = {*beyond(stage)}
    if quantizes:
        not_passed |= OURS
    for option in sorted(options.model_fields_set - not_passed):
        names = {constructor.renamed.get(option, option) for constructor in callables}
        if names.isdisjoint(parameter_names):
            yield (
                option,
                did_you_mean(
                    option, [name for name in parameter_names if name not in hidden]
                ),
            )
