"""The backend catalogue: the options of each backend, and how to build its parts.

A family of backends is a feature whose entries module has `ENTRIES`, or `QUANTIZERS` that belong to
no backend (`families.py`). torch is only imported when a part is built: checking configs and
writing the JSON schema need only this table. A family knows neither the other families nor the
table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import SerializeAsAny

from pipeline.backends.entry import (
    Backend,
    CacheScope,
    Execution,
    Lowering,
    Preprocessing,
    Quantization,
)
from pipeline.backends.families import find_families
from pipeline.backends.host import Host, Requirement
from pipeline.backends.options import Modules, Options
from pipeline.backends.quantize_options import QuantizeConfig
from pipeline.backends.workspace_files import WorkspaceFiles
from pipeline.moments import call_all
from pipeline.store.errors import PipelineError
from pipeline.store.releases import installed_release

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from executorch.exir.pass_base import ExportedProgramPassBase
    from torchao.quantization.pt2e.quantizer import Quantizer

__all__ = [
    "BACKENDS",
    "PLUGIN_PROBLEMS",
    "QUANTIZERS",
    "RECIPES",
    "Backend",
    "CacheScope",
    "Execution",
    "Host",
    "Lowering",
    "Options",
    "PartitionerSpec",
    "Preprocessing",
    "Quantization",
    "QuantizeConfig",
    "Requirement",
    "WorkspaceFiles",
    "edge_operators",
    "make_partitioners",
    "make_passes",
    "make_quantizer",
    "quantizes_for",
    "with_partitioner",
]

_OWN: dict[str, Backend] = {}
_OWN_QUANTIZERS: dict[str, Quantization] = {}  # those without a backend
for _name in find_families().values():
    _module = import_module(_name)
    # Importing a family first leads here before its entries are defined.
    if not hasattr(_module, "ENTRIES") and not hasattr(_module, "QUANTIZERS"):
        raise ImportError(f"{_name}: import pipeline.backends before this module")
    _OWN |= {entry.name: entry for entry in getattr(_module, "ENTRIES", ())}
    _OWN_QUANTIZERS |= getattr(_module, "QUANTIZERS", {})
_ADDED: dict[str, Backend] = {}
_PROBLEMS: dict[str, str] = {}
for _backends, _faults in call_all("backends", _OWN):
    _ADDED |= _backends
    _PROBLEMS |= _faults


def _require_release(backend: Backend) -> Backend:
    """Return a backend, with a requirement added if the installed ExecuTorch release lacks it."""
    requirement = installed_release().lacks.get(backend.name)
    if requirement is None or backend.plugin:
        return backend
    missing = Requirement(requirement, f"pip install '{requirement}'", lambda: False)
    requirements = (missing, *backend.host.requirements)
    return replace(backend, host=replace(backend.host, requirements=requirements))


BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {name: _require_release(backend) for name, backend in (_OWN | _ADDED).items()}
)
# Plugins that can't be used, and why.
PLUGIN_PROBLEMS: Mapping[str, str] = MappingProxyType(_PROBLEMS)
# By name, ExecuTorch's recipes, each a quantizer and a partitioner with certain options, as spelled
# out in recipes.toml.
RECIPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    tomllib.loads(Path(__file__).with_name("recipes.toml").read_text(encoding="utf-8"))
)
# The quantizers of backends, and those without a backend.
QUANTIZERS: Mapping[str, Quantization] = MappingProxyType(
    {
        name: replace(b.quantization, host=b.host)
        for name, b in BACKENDS.items()
        if b.quantization
    }
    | _OWN_QUANTIZERS
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
    """Make the partitioners of a config, in the order in which they are tried.

    Backends that lower by passes have none.

    Raises:
        PipelineError: this package can't lower to a backend, or a requirement is missing.
    """
    partitioners = []
    for spec in with_partitioner(specs):
        make = spec.backend.lowering.make_partitioner
        if make is None:
            needs = [
                f"{need.what}: {need.remedy}" for need in spec.backend.host.missing()
            ]
            raise PipelineError(f"{spec.name} needs {'; '.join(needs)}")
        partitioners.append(make(spec.options))
    return partitioners


def with_partitioner(specs: Iterable[PartitionerSpec]) -> list[PartitionerSpec]:
    """Return the specs of backends that lower through a partitioner."""
    return [spec for spec in specs if spec.backend.lowering.make_passes is None]


def make_passes(specs: Iterable[PartitionerSpec]) -> list[ExportedProgramPassBase]:
    """Make the passes of the backends that lower by passes."""
    passes: list[ExportedProgramPassBase] = []
    for spec in specs:
        make = spec.backend.lowering.make_passes
        if make is not None:
            passes += make(spec.options)
    return passes


def edge_operators(backends: Iterable[Backend]) -> list[str]:
    """Return the operators beyond Core ATen that these backends accept in a program."""
    names: set[str] = set()
    for backend in backends:
        names.update(backend.lowering.edge_operators)
    return sorted(names)


def quantizes_for(quantizer: str, backend: Backend) -> bool:
    """Return whether a backend may be able to lower a quantizer's output."""
    takers = QUANTIZERS[quantizer].backends
    if takers is None or backend.plugin or backend.name in takers:
        return True
    quantizer_backend = BACKENDS.get(quantizer)
    if quantizer_backend is None:
        return False
    return (
        bool(quantizer_backend.plugin)
        or quantizer_backend.backend_id == backend.backend_id
    )


def make_quantizer(config: QuantizeConfig) -> Quantizer:
    """Make the quantizer of a config."""
    quantizer = QUANTIZERS[config.quantizer].make_quantizer(config)
    assert quantizer is not None, (
        f"{config.quantizer} has options of a quantizer, but makes none"
    )
    return quantizer
