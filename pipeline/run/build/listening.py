"""What is learnt from a compilation: the base class of `moments.Feature.compile_facts` and
`listen_to_compile`, and of the core's own facts."""

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
        program: the quantized one where the method is quantized.
        places: finds where nodes come from, as places in the source program.
        origins: leads from places in a quantized program to those in its source.
        quantization: the facts of its quantization (`store.quantized.QUANTIZATION_FACTS`).
    """

    program: ExportedProgram
    places: NodePlaces
    origins: Mapping[int, int] | None = None
    quantization: Json | None = None


class CompileListener:
    """Whoever learns from the compilation of a unit; each method may be left as it is here."""

    @property
    def forgoes_cache(self) -> bool:
        """Whether every partition is to be preprocessed, since nothing is learnt of a payload that
        the store holds."""
        return False

    def add_sources(self, methods: Mapping[str, UnloweredMethod]) -> None:
        """Take the unit's methods, with their programs as they are in their archives."""

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
        """Return by method the fields of `store.compiled.COMPILED_METHOD` that the listener knows,
        once the unit is emitted. Others are kept in its `facts`, which a report has by method."""
        return {}

    def end(self, result: Json, peak: int) -> None:
        """Take the result, once it is in the store, and the bytes of memory that compiling took."""
