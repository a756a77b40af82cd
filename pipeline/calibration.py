"""Calibration inputs: what a static quantization observes, batch by batch.

They are read when their turn comes, so that no more than one record of a model, or one file, is in
memory at a time.

A file is one of three things. `.npz` and `.safetensors` hold a tensor for each argument, under its
name as messages show it (`x`, `states[0]['key']`), with one dimension in front: that of the
batches, of which all tensors of a file have the same number. `.pt` holds, for `weights_only`, a
list of batches, each a tuple of arguments or a dict from the name of an argument to its value.
Several files are read one after another.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from pipeline.errors import PipelineError, did_you_mean
from pipeline.inputs import InputSet, as_input_sets, kind_of
from pipeline.signature import argument_names, check_inputs, signature

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


def read_file(path: Path, name: str, program: ExportedProgram) -> list[InputSet]:
    """The batches of a file, for a program whose arguments they are.

    Args:
        name: how messages call the file.

    Raises:
        PipelineError: it can't be read, or what it holds are not the program's arguments.
    """
    try:
        if path.suffix == ".pt":
            return _of_calls(torch.load(path, weights_only=True), name, program)
        if path.suffix == ".npz":
            with numpy.load(path, allow_pickle=False) as arrays:
                tensors = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
        else:
            tensors = safetensors.torch.load_file(path)
    except pickle.UnpicklingError as error:
        raise PipelineError(
            f"{name}: holds more than tensors, numbers, text and containers of them, and is not "
            "unpickled; save a list of tuples or of dicts of tensors"
        ) from error
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        EOFError,
        RuntimeError,
        SafetensorError,
        zipfile.BadZipFile,
    ) as error:
        first = str(error).strip().split("\n")[0]
        raise PipelineError(f"{name}: cannot be read as a {path.suffix} file ({first})") from error
    return _unstacked(tensors, name, program)


def _of_calls(data: Any, name: str, program: ExportedProgram) -> list[InputSet]:
    """Of a list of tuples or of dicts."""
    if not isinstance(data, list) or not data:
        raise PipelineError(
            f"{name}: holds {kind_of(data)}, must be a list of tuples of arguments or of dicts"
        )
    args, kwargs = argument_names(program)
    calls = []
    for number, call in enumerate(data):
        if isinstance(call, dict):
            where = f"{name}[{number}]"
            _check_names(where, call, [*args, *kwargs], [*args, *kwargs])
            call = (tuple(call[a] for a in args), {k: call[k] for k in kwargs})
        calls.append(call)
    sets = as_input_sets(calls, name)
    return [
        InputSet(each.args, each.kwargs, f"{name}[{number}]") for number, each in enumerate(sets)
    ]


def _unstacked(
    tensors: Mapping[str, torch.Tensor], name: str, program: ExportedProgram
) -> list[InputSet]:
    """Of tensors that hold all batches, each named as an argument. Constants with which the
    program was exported need not be there."""
    arguments = signature(program)
    varying = (torch.Tensor, torch.SymInt)
    wanted = [a.name for a in arguments if isinstance(a.value, varying)]
    _check_names(name, tensors, wanted, [a.name for a in arguments])
    counts = {key: len(t) if t.ndim else None for key, t in tensors.items()}
    first, count = next(iter(counts.items()))
    for key, other in counts.items():
        if other is None:
            raise PipelineError(
                f"{name}: argument '{key}': a single number, must have a first dimension, that of "
                "the batches"
            )
        if other != count:
            raise PipelineError(
                f"{name}: argument '{key}': {other} batches, must be {count}, as many as '{first}'"
            )
    sets = []
    for number in range(count or 0):
        leaves = [
            _leaf(tensors[a.name][number], a.value) if a.name in tensors else a.value
            for a in arguments
        ]
        args, kwargs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
        sets.append(InputSet(args, kwargs, f"{name}[{number}]"))
    return sets


def _leaf(value: torch.Tensor, expected: Any) -> Any:
    """Numbers of a signature are stacked as tensors."""
    if isinstance(expected, torch.Tensor) or value.ndim:
        return value
    return value.item()


def _check_names(
    where: str, given: Iterable[Any], wanted: Sequence[str], known: Sequence[str]
) -> None:
    given = list(given)
    mistakes = [f"no argument '{key}'; {did_you_mean(str(key), known)}" for key in given]
    mistakes = [m for m, key in zip(mistakes, given, strict=True) if key not in known]
    mistakes += [f"argument '{key}' is missing" for key in wanted if key not in given]
    if mistakes or not given:
        raise PipelineError("\n".join(f"{where}: {m}" for m in mistakes or ["is empty"]))
