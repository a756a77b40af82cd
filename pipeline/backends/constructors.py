"""What the described executorch can be told, without importing it: `constructors.json`."""

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
    told: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return told


def outdated() -> str:
    """What to say where the description is not of what is installed; else ""."""
    for package, known in described()["versions"].items():
        with suppress(PackageNotFoundError):
            installed = version(package)
            if installed != known:
                return (
                    f"options were checked against {package} {known}, and {installed} is "
                    "installed; run `python -m pipeline.backends.describe`"
                )
    return ""


def parameters(constructor: Constructor) -> list[str]:
    """The names of its parameters; empty where it is not described."""
    return [each["name"] for each in described()["callables"].get(constructor.target, ())]


def constructors_of(backend: Backend, options: Options) -> list[Constructor]:
    of = "quantizer" if isinstance(options, QuantizeConfig) else "partitioner"
    return [each for each in backend.constructors if each.of == of]


def unknown_options(backend: Backend, options: Options) -> Iterator[tuple[str, str]]:
    """The options written in a config that no constructor of the described executorch takes, each
    with what is known instead."""
    own = constructors_of(backend, options)
    if not own:
        return
    known = [name for each in own for name in parameters(each)]
    for option in sorted(options.model_fields_set):
        names = {each.renamed.get(option, option) for each in own}
        ours = option in backend.beyond or option in OURS
        if not ours and names.isdisjoint(known):
            shown = [n for each in own for n in parameters(each) if n not in each.left_out]
            yield option, did_you_mean(option, shown)
