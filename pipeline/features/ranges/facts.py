"""Finds the size ranges that a compilation narrows, and explains the sizes that it fails on.

The narrowed ranges are a fact of each compiled method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeline.features.ranges.large_sizes import explain_large_sizes
from pipeline.features.ranges.recorder import InputSizes, record_ranges
from pipeline.program.graphs import iter_nodes
from pipeline.run.build.listening import CompileListener, UnloweredMethod

if TYPE_CHECKING:
    from executorch.exir import ExecutorchProgramManager
    from torch.export import ExportedProgram


class RangeFacts(CompileListener):
    """The sizes of a unit's methods before and after the unit is lowered and emitted."""

    def add_sources(self, methods: Mapping[str, UnloweredMethod]) -> None:
        self._methods = methods

    @contextmanager
    def listening(self) -> Iterator[None]:
        programs = {name: method.program for name, method in self._methods.items()}
        with (
            record_ranges(programs) as self._find_narrowed,
            explain_large_sizes(programs),
        ):
            yield

    def add_lowered(self, programs: Mapping[str, ExportedProgram]) -> None:
        self._sizes = {name: InputSizes(program) for name, program in programs.items()}

    def find_facts(
        self, emitted: ExecutorchProgramManager
    ) -> Mapping[str, dict[str, Any]]:
        facts = {}
        for name, method in self._methods.items():
            # A quantized program has other nodes than the source, whose operators are named.
            nodes = [] if method.quantization else list(iter_nodes(method.program))
            sizes = self._sizes[name]
            narrowed = self._find_narrowed(name, sizes, method.places, nodes)
            facts[name] = {"narrowed": narrowed}
        return facts
