"""Options of configs checked against the installed executorch, without importing it.

`constructors.toml` says which callables options are passed to, and `constructors.json` which
parameters these have.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipeline.backends.entry import Backend
from pipeline.backends.options import Options
from pipeline.backends.quantize_options import OVERRIDES, QuantizeConfig
from pipeline.store.errors import did_you_mean

# Options of quantizers that are this package's own: no constructor takes them.
OURS = frozenset({*QuantizeConfig.model_fields, *OVERRIDES}) - {"dynamic"}
FILE = Path(__file__).with_name("constructors.json")


@dataclass(frozen=True)
class Constructor:
    """A callable of an installed library that options are passed to: a row of the TOML file, which
    says what its fields are."""

    target: str
    stages: list[str]
    renamed: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)


@cache
def described() -> dict[str, Any]:
    """Return the description: `versions` by package and parameters by target in `callables`."""
    description: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return description


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(FILE.with_suffix(".toml").read_text(encoding="utf-8"))


def constructors(stage: str = "") -> list[Constructor]:
    """Return the constructors of a stage, such as "xnnpack.lowering"; without one, all."""
    rows = (Constructor(**row) for row in _table()["constructors"])
    return [row for row in rows if not stage or stage in row.stages]


def beyond(stage: str) -> Mapping[str, str]:
    """Return the options of a stage that are no parameter of a constructor, and what they are."""
    backend, _, kind = stage.partition(".")
    return _table()["beyond"].get(backend, {}).get(kind, {})  # type: ignore[no-any-return]


def outdated() -> str:
    """Return a message where the description is of other versions than the installed ones, or
    ""."""
    for package, known in described()["versions"].items():
        with suppress(PackageNotFoundError):
            installed = version(package)
            if installed != known:
                return (
                    f"options were checked against {package} {known}, and {installed} is "
                    "installed; run `python -m tools.describe_constructors`"
                )
    return ""


def parameters(constructor: Constructor) -> list[str]:
    """Return the names of its parameters; [] where it is not described."""
    return [each["name"] for each in described()["callables"].get(constructor.target, ())]


def unknown_options(backend: Backend, options: Options) -> Iterator[tuple[str, str]]:
    """Yield the options written in a config that no constructor of the described executorch takes,
    each with what is known instead."""
    quantizes = isinstance(options, QuantizeConfig)
    stage = f"{backend.name}.{'quantization' if quantizes else 'lowering'}"
    takes = constructors(stage)
    if backend.plugin or not takes:
        return
    own = beyond(stage).keys() | (OURS if quantizes else ())
    known = [name for each in takes for name in parameters(each)]
    hidden = {name for each in takes for name in each.left_out}
    for option in sorted(options.model_fields_set - own):
        if {each.renamed.get(option, option) for each in takes}.isdisjoint(known):
            yield option, did_you_mean(option, [name for name in known if name not in hidden])
