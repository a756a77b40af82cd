"""The base class of objects that collect facts during a compilation.

Features make them in `moments.Feature.compile_facts` and `listen_to_compile`; the core's own is in
`method_facts.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executorch.exir import ExecutorchProgramManager
    from torch.export import ExportedProgram

    from pipeline.program.graphs import NodePlaces

Json = Mapping[str, Any]


@dataclass(frozen=True)
class UnloweredMethod:
    """A method before it is lowered.

    Attributes:
        program: the quantized program if the method is quantized.
        places: maps nodes to their places in the source program.
        origins: maps places in a quantized program to places in its source.
        quantization: the facts of its quantization (`store.quantized.QUANTIZATION_FACTS`).
    """

    program: ExportedProgram
    places: NodePlaces
    origins: Mapping[int, int] | None = None
    quantization: Json | None = None


class CompileListener:
    """Collects facts while a unit is compiled; subclasses override only the methods they need."""

    @property
    def forgoes_cache(self) -> bool:
        """Whether to preprocess every partition, because a cached payload reveals nothing."""
        return False

    def add_sources(self, methods: Mapping[str, UnloweredMethod]) -> None:
        """Take the unit's methods, with their programs as loaded from the archives."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen within the context, in which the unit is lowered, emitted and written."""
        yield

    def add_lowered(self, programs: Mapping[str, ExportedProgram]) -> None:
        """Take the lowered programs, before they are emitted."""

    @contextmanager
    def emitting(self) -> Iterator[None]:
        """Listen within the context, in which the lowered programs are emitted."""
        yield

    def find_facts(
        self, emitted: ExecutorchProgramManager
    ) -> Mapping[str, dict[str, Any]]:
        """Return this listener's facts of each method, once the unit is emitted.

        Fields of `store.compiled.COMPILED_METHOD` become part of the method's record. Any other is
        kept in its `facts`, which reports show by method.
        """
        return {}

    def end(self, result: Json, peak: int) -> None:
        """Take the stored result, and the peak memory of the compilation in bytes."""
