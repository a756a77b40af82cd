"""Options of configs checked against `constructors.json`, without importing executorch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipeline.backends.entry import Backend, Constructor
from pipeline.backends.options import Options
from pipeline.backends.quantize_options import OVERRIDES, QuantizeConfig
from pipeline.store.errors import did_you_mean

# Options of quantizers that are this package's own: no constructor takes them.
OURS = frozenset({*QuantizeConfig.model_fields, *OVERRIDES}) - {"dynamic"}
FILE = Path(__file__).with_name("constructors.json")


@cache
def described() -> dict[str, Any]:
    """Return the description: `versions` by package and parameters by target in `callables`."""
    description: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return description


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
    stage = backend.quantization if quantizes else backend.lowering
    if stage is None or not stage.constructors:
        return
    own = stage.beyond.keys() | (OURS if quantizes else ())
    known = [name for each in stage.constructors for name in parameters(each)]
    hidden = {name for each in stage.constructors for name in each.left_out}
    for option in sorted(options.model_fields_set - own):
        if {each.renamed.get(option, option) for each in stage.constructors}.isdisjoint(known):
            yield option, did_you_mean(option, [name for name in known if name not in hidden])
