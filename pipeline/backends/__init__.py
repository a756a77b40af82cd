"""The backend catalogue: what a config can tell each backend, and how to build its parts.

One entry a backend, in a module of its family, and no torch until a part is built: configs are
checked and the JSON schema is written from this table alone. A backend is added by writing its
options and its entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import SerializeAsAny

from pipeline.backends import torchao, xnnpack
from pipeline.backends.entry import (
    Backend,
    Modules,
    Options,
    Quantization,
    QuantizeConfig,
    Requirement,
    Sight,
)
from pipeline.backends.recipes import RECIPES, Recipe

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

__all__ = [
    "BACKENDS",
    "QUANTIZERS",
    "RECIPES",
    "Backend",
    "Options",
    "PartitionerSpec",
    "Quantization",
    "QuantizeConfig",
    "Recipe",
    "Requirement",
    "Sight",
    "make_partitioners",
    "make_quantizer",
]

BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {backend.name: backend for backend in (*xnnpack.ENTRIES,)}
)
# Those of the backends, and those that have no backend of their own.
QUANTIZERS: Mapping[str, Quantization] = MappingProxyType(
    {
        each.name: each
        for each in (*(backend.quantization for backend in BACKENDS.values()), *torchao.QUANTIZERS)
        if each is not None
    }
)


class PartitionerSpec(Options):
    """One item of `partitioners`: a backend and the options of its partitioner."""

    name: str
    options: SerializeAsAny[Options]
    modules: Modules | None = None

    @property
    def backend(self) -> Backend:
        return BACKENDS[self.name]


def make_partitioners(specs: Iterable[PartitionerSpec]) -> list[Partitioner]:
    """In the order of the config, which is the order in which they are tried."""
    return [spec.backend.make_partitioner(spec.options) for spec in specs]


def make_quantizer(config: QuantizeConfig) -> Quantizer:
    quantizer = config.entry.make_quantizer(config)
    assert quantizer is not None, f"{config.quantizer} has options of a quantizer, but makes none"
    return quantizer
