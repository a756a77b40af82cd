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

from pipeline.backends import add_sub, apple, coreml, openvino, torchao, vulkan, xnnpack
from pipeline.backends import cortex_m as by_passes
from pipeline.backends.arm import ethos_u, tosa, vgf
from pipeline.backends.entry import Backend, Quantization, Requirement, Sight
from pipeline.backends.options import Modules, Options
from pipeline.backends.plugins import find_plugins
from pipeline.backends.quantize_options import QuantizeConfig
from pipeline.backends.recipes import RECIPES, Recipe
from pipeline.backends.vendors import aoti, mediatek, nxp, qualcomm, samsung
from pipeline.backends.workspace_files import WorkspaceFiles

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
    "Options",
    "PartitionerSpec",
    "Quantization",
    "QuantizeConfig",
    "Recipe",
    "Requirement",
    "Sight",
    "WorkspaceFiles",
    "edge_operators",
    "make_partitioners",
    "make_passes",
    "make_quantizer",
    "with_partitioner",
]

_ENTRIES = (
    *xnnpack.ENTRIES,
    *vulkan.ENTRIES,
    *coreml.ENTRIES,
    *apple.ENTRIES,
    *openvino.ENTRIES,
    *ethos_u.ENTRIES,
    *vgf.ENTRIES,
    *tosa.ENTRIES,
    *by_passes.ENTRIES,
    *qualcomm.ENTRIES,
    *mediatek.ENTRIES,
    *samsung.ENTRIES,
    *nxp.ENTRIES,
    *aoti.ENTRIES,
    *add_sub.ENTRIES,
)
_OWN = {backend.name: backend for backend in _ENTRIES}
_PLUGINS = find_plugins(_OWN)

BACKENDS: Mapping[str, Backend] = MappingProxyType(_OWN | _PLUGINS.backends)
# Plugins that can't be used, and why.
PLUGIN_PROBLEMS: Mapping[str, str] = MappingProxyType(_PLUGINS.problems)
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
    """In the order of the config, which is the order in which they are tried. Backends that lower
    by passes have none."""
    return [spec.backend.make_partitioner(spec.options) for spec in with_partitioner(specs)]


def with_partitioner(specs: Iterable[PartitionerSpec]) -> list[PartitionerSpec]:
    """Those of backends that lower through one."""
    return [spec for spec in specs if spec.backend.make_passes is None]


def make_passes(specs: Iterable[PartitionerSpec]) -> list[ExportedProgramPassBase]:
    """Those of the backends that lower by passes."""
    makers = [(spec.backend.make_passes, spec.options) for spec in specs]
    return [each for make, options in makers if make is not None for each in make(options)]


def edge_operators(backends: Iterable[Backend]) -> list[str]:
    """The operators beyond Core ATen that these let stand in a program."""
    return sorted({name for backend in backends for name in backend.edge_operators})


def make_quantizer(config: QuantizeConfig) -> Quantizer:
    quantizer = config.entry.make_quantizer(config)
    assert quantizer is not None, f"{config.quantizer} has options of a quantizer, but makes none"
    return quantizer
