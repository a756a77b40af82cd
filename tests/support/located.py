"""Packages built in memory, along with how they were made, and damaged on purpose."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import executorch.kernels.quantized  # noqa: F401  its out variants, which lowering asks for
from executorch.exir._serialize._program import (
    PTEFile,
    deserialize_pte_binary,
    serialize_pte_binary,
)
from executorch.exir.backend.partitioner import Partitioner
from torch.export import ExportedProgram

from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.config.emission import EmitConfig
from pipeline.config.validation import ValidateConfig
from pipeline.devices.interface import PackageFiles
from pipeline.features.instructions.emit_trace import Emission, record_emission
from pipeline.features.locating.case import Evidence, Located, LoweredMethod
from pipeline.features.locating.locate import locate
from pipeline.features.quantization.quantize import quantize
from pipeline.program.graphs import find_origins, map_places
from pipeline.program.inputs import InputSet

ROOT = Path(__file__).parents[2]


@dataclass
class Built:
    """A package and everything that its build knew."""

    sources: Mapping[str, ExportedProgram]
    lowered: Mapping[str, ExportedProgram]
    partitioners: Mapping[str, Sequence[Partitioner]]
    pte: bytes
    emission: Emission
    origins: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def evidence(self, pte: bytes | None = None, **limits: Any) -> Evidence:
        """Return the evidence for the package, or for a damaged copy of it."""
        settings = ValidateConfig(**{"atol": 1e-5, "rtol": 1e-5} | limits)
        return Evidence(
            files=PackageFiles("small.pte", pte or self.pte),
            sources=self.sources,
            limits=settings.select_limits,
            lowered=self._lowered,
            lower_again=self._lower_again,
            root=ROOT,
        )

    def located(
        self, method: str, *calls: Sequence[Any], pte: bytes | None = None, **limits: Any
    ) -> Located:
        failing = [(method, InputSet(tuple(call))) for call in calls]
        return locate(self.evidence(pte, **limits), method, failing)

    def _lowered(self, method: str) -> LoweredMethod:
        instructions = self.emission.instructions(method, self.lowered[method])
        return LoweredMethod(self.lowered[method], instructions, self.origins.get(method))

    def _lower_again(self, method: str) -> list[Any]:
        program = self.lowered[method]
        own = {method: self.partitioners.get(method, [])}
        with record_emission() as emission:
            emit(lower({method: program}, own))
        return emission.delegates(method)


def build(
    sources: Mapping[str, ExportedProgram],
    partitioners: Mapping[str, Sequence[Partitioner]] | None = None,
    quantizers: Mapping[str, Any] | None = None,
    calibration: Sequence[InputSet] = (),
    emit_config: Mapping[str, Any] | None = None,
) -> Built:
    """Build a package in memory.

    Args:
        quantizers: specs, keyed by method.
        emit_config: the fields of `emit:` in a config.
    """
    lowered = dict(sources)
    made_of = {}
    for name, spec in (quantizers or {}).items():
        lowered[name] = quantize(sources[name], spec, calibration)
        made_of[name] = map_places(lowered[name], find_origins(lowered[name], sources[name]))
    own = partitioners or {}
    manager = lower(lowered, {name: own.get(name, []) for name in lowered})
    with record_emission() as emission:
        emitted = emit(manager, EmitConfig(**emit_config or {}))
    return Built(sources, lowered, own, bytes(emitted.buffer), emission, made_of)


def opened(pte: bytes) -> PTEFile:
    """Return a copy of a package that a test can change and pass to `written`."""
    return copy.deepcopy(deserialize_pte_binary(pte))


def plan_of(file: PTEFile, method: str) -> Any:
    return next(plan for plan in file.program.execution_plan if plan.name == method)


def written(file: PTEFile) -> bytes:
    return bytes(
        serialize_pte_binary(file, extract_delegate_segments=True, constant_tensor_alignment=16)
    )
