"""Calibration inputs: what a static quantization observes, batch by batch.

They are read when their turn comes, so that no more than one record of a model, or one file
(pipeline/program/input_files.py), is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import overload

from torch.export import ExportedProgram

from pipeline.program.inputs import InputSet
from pipeline.program.signature import check_inputs
from pipeline.store.errors import PipelineError

Load = Callable[[], Sequence[InputSet]]


class Batches(Sequence[InputSet]):
    """Input sets that are read anew each time they are gone through.

    Args:
        loads: each gives the next of them.
        most: how many there are at most.
    """

    def __init__(self, loads: Iterable[Load], most: int | None = None) -> None:
        self._loads = tuple(loads)
        self._most = most
        self._count: int | None = None

    def __iter__(self) -> Iterator[InputSet]:
        yield from islice((each for load in self._loads for each in load()), self._most)

    def __len__(self) -> int:
        if self._count is None:
            self._count = sum(1 for _ in self)
        return self._count

    @overload
    def __getitem__(self, index: int) -> InputSet: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[InputSet]: ...

    def __getitem__(self, index: int | slice) -> InputSet | Sequence[InputSet]:
        if isinstance(index, slice):
            return list(self)[index]
        place = index + len(self) if index < 0 else index
        for each in islice(self, max(place, 0), None):
            if place >= 0:
                return each
        raise IndexError(index)


def check_batches(program: ExportedProgram, method: str, batches: Sequence[InputSet]) -> None:
    """Raises PipelineError with what is wrong with the first batch that the program does not take,
    or where there is none."""
    empty = True
    for inputs in batches:
        check_inputs(program, inputs, method)
        empty = False
    if empty:
        raise PipelineError(f"{method}: there are no calibration inputs")
