"""Stores the outputs of source programs, and reuses those that are stored.

A validation that ran out of time resumes where it stopped. The packages of one model, say for
another target or in another number format, run its source programs once. Packages themselves always
run.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.features.source_calls.dequantized_weights import DequantizedWeights
from pipeline.features.source_calls.kept_lane import CallResults, KeptLane
from pipeline.program.eager import Source
from pipeline.program.graphs import iter_nodes
from pipeline.program.random_operators import (
    find_random_operators,
    is_foreign,
    is_uninitialized,
)
from pipeline.run.prove.measuring import Measuring
from pipeline.run.prove.subject import Subject
from pipeline.run.stages import Stages
from pipeline.store.digest import Digest
from pipeline.validate.references import Lane, OpenLane

Identity = tuple[Digest | None, ...]


class SourceCallMeasuring(Measuring):
    """Runs the source programs of one package through lanes that store their outputs."""

    def __init__(self, subject: Subject, stages: Stages) -> None:
        super().__init__(subject, stages)
        self._results = CallResults(subject.workspace.store)
        self._weights = DequantizedWeights()

    @property
    def open_lane(self) -> OpenLane | None:
        # A library of operators can do things that no key covers.
        if self.subject.anew or self.subject.action.inputs.libraries:
            return None
        return self._open

    def _open(self, name: str, sources: Mapping[str, Source]) -> Lane:
        for source in sources.values():
            self._weights.serve(source)
        if any(_is_unpredictable(source.program) for source in sources.values()):
            return Lane(name, sources)
        identities = {method: self._identify(name, method) for method in sources}
        return KeptLane(name, sources, identities, self._results)

    def _identify(self, lane: str, method: str) -> Identity:
        """Return the digests that identify the program of a method.

        They cover its content, the names of its values (and so of its state) and, if the lane runs
        the quantized program, its quantization.
        """
        source = self.subject.action.inputs.sources[method]
        quantized = None
        if lane != "source":
            quantized = self.subject.methods.get(method, {}).get("quantized")
        return source.program, source.names, quantized


def _is_unpredictable(program: ExportedProgram) -> bool:
    """Return whether equal calls of a program may have different outputs."""
    return bool(find_random_operators(program)) or any(
        is_uninitialized(node) or (is_foreign(node) and not _is_functional(node))
        for node in iter_nodes(program)
    )


def _is_functional(node: Node) -> bool:
    """Return whether a node calls torchao, which every key names, and whose results repeat."""
    return getattr(node.target, "namespace", "") == "torchao"
