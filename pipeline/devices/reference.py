"""The reference device: the source program of a method, in eager mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram

from pipeline.devices.interface import (
    Computation,
    Declared,
    DeclaredTensor,
    DeviceError,
    Runtime,
    Shape,
)
from pipeline.program.eager import Source, outputs_of, sources_with_common_state
from pipeline.program.signature import bounds, expression, signature


class ReferenceRuntime(Runtime):
    """Programs are mappings of method names to ExportedPrograms, which are left as they are.

    A size without a greatest one is declared as the one of the export. Results are ordered as the
    ExecuTorch runtime orders them: the inputs that a method changes come first.
    """

    type = "reference"

    def __init__(self) -> None:
        super().__init__()
        self._random: torch.Tensor | None = None

    def methods(self, program: Mapping[str, ExportedProgram]) -> list[str]:
        return sorted(_sources(program))

    def declared(self, program: Mapping[str, ExportedProgram], method: str) -> Declared:
        found = _method(program, method)
        inputs = tuple(_shape(found, argument.value) for argument in signature(found))
        return Declared(inputs, tuple(_shape(found, v) for _, v in outputs_of(found)))

    def compile_together(self, computations: Sequence[Computation]) -> list[Computation]:
        """Buffers of one name are one, where any of the methods changes it."""
        programs = {each.name: _method(each.program, each.name) for each in computations}
        sources = sources_with_common_state(programs)
        self._counts["compiled"] += len(computations)
        return [replace(each, compiled=sources[each.name]) for each in computations]

    def load(self, computation: Computation) -> Source:
        return Source(_method(computation.program, computation.name))

    def call(self, computation: Computation, values: Sequence[Any]) -> Sequence[Any]:
        source: Source = computation.compiled
        try:
            with torch.random.fork_rng(devices=(), enabled=self._random is not None):
                if self._random is not None:
                    torch.set_rng_state(self._random)
                outputs = source.run_flat(values)
                if self._random is not None:
                    self._random = torch.get_rng_state()
        except Exception as error:  # whatever an operator raises
            reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            raise DeviceError(f"{computation.name}: ", reason) from error
        return outputs

    def text(self, computation: Computation) -> str:
        return f"{computation}\n{_method(computation.program, computation.name).graph}"

    def set_seed(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed).get_state()


def _sources(program: Any) -> Mapping[str, ExportedProgram]:
    if not isinstance(program, Mapping):
        name = getattr(program, "name", type(program).__name__)
        raise DeviceError(f"{name}: ", "the reference device runs source programs, not packages")
    return program


def _method(program: Any, method: str) -> ExportedProgram:
    if method not in _sources(program):
        known = ", ".join(sorted(program)) or "none"
        raise DeviceError("", f"no method '{method}'; there are {known}")
    return program[method]


def _shape(program: ExportedProgram, value: Any) -> Shape:
    if not isinstance(value, torch.Tensor):
        return None
    return DeclaredTensor(tuple(_size(program, size) for size in value.shape), value.dtype)


def _size(program: ExportedProgram, size: int | torch.SymInt) -> int:
    if not isinstance(size, torch.SymInt):
        return size
    greatest = bounds(program, expression(size))[1]
    return int(size.node.hint) if greatest is None else greatest
