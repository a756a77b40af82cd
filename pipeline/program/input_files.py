"""Reads files of input sets in the workspace, for calibration and validation.

A file is one of three things. `.npz` and `.safetensors` hold a tensor for each argument, under its
name as messages show it (`x`, `states[0]['key']`), with one dimension in front: that of the
batches, of which all tensors of a file have the same number. `.pt` holds, for `weights_only`, a
list of batches, each a tuple of arguments or a dict from the name of an argument to its value.
Several files are read one after another.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy
import numpy.lib.format
import safetensors.torch
import torch
from torch.export import ExportedProgram

from pipeline.program.inputs import InputSet, as_input_sets, describe_type
from pipeline.program.signature import argument_names, nest_leaves, signature
from pipeline.program.tensor_file import load_tensor_file
from pipeline.store import digest
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError, SourceError, did_you_mean

# What a packed file may become; calibration data hardly ever packs to a hundredth.
_MOST_TIMES, _ALWAYS_ALLOWED = 100, 1 << 30  # bytes
_MOST_BATCHES = 1_000_000


def check_file(root: Path, name: str, content: Digest) -> None:
    """Raises SourceError where a file of the workspace is another one than was planned."""
    if not (root / name).is_file() or digest.hash_file(root / name) != content:
        raise SourceError(f"{name}: changed while the build ran; run again")


def read_planned(
    root: Path, name: str, content: Digest, program: ExportedProgram
) -> list[InputSet]:
    """Read a file of the workspace at `root` as it was planned, as `read_file` does.

    Raises:
        SourceError: it is another one by now.
        PipelineError: as `read_file`.
    """
    check_file(root, name, content)
    batches = read_file(root / name, name, program)
    check_file(root, name, content)
    return batches


def read_examples(
    root: Path,
    files: Mapping[str, Sequence[tuple[str, Digest]]],
    programs: Mapping[str, ExportedProgram],
) -> dict[str, list[InputSet]]:
    """Read the batches of all files of each method, in their order.

    Args:
        files: by method, the names of its files in the workspace at `root`, and what was planned
            to be in them.

    Raises:
        PipelineError: files that can't be read, are others by now, hold nothing, or hold other
            arguments than the method takes: all of them, a line each.
    """
    found: dict[str, list[InputSet]] = {}
    mistakes: list[str] = []
    for method, planned in files.items():
        found[method] = []
        for name, content in planned:
            try:
                batches = read_planned(root, name, content, programs[method])
            except PipelineError as error:
                mistakes += [f"{method}: {line}" for line in str(error).splitlines()]
                continue
            if not batches:
                mistakes.append(f"{method}: {name}: holds no input sets")
            found[method] += batches
    if mistakes:
        raise PipelineError(*mistakes)
    return found


def read_file(path: Path, name: str, program: ExportedProgram) -> list[InputSet]:
    """Read the batches of a file, for a program whose arguments they are.

    Args:
        name: how messages call the file.

    Raises:
        PipelineError: it can't be read, or what it holds are not the program's arguments.
    """
    try:
        if path.suffix == ".pt":
            with open(path, "rb") as file:
                calls = load_tensor_file(file)
            return _parse_calls(calls, name, program)
        tensors = _load_named(path)
    except pickle.UnpicklingError as error:
        raise PipelineError(
            f"{name}: holds more than tensors, numbers, text and containers of them, and is not "
            "unpickled; save a list of tuples or of dicts of tensors"
        ) from error
    except PipelineError:
        raise
    except Exception as error:  # zipfile, numpy, safetensors and torch raise what damage leads to
        raise _unreadable(path, name, error) from error
    return unstack(tensors, name, program)


def read_named_tensors(path: Path, name: str) -> dict[str, torch.Tensor]:
    """Read the tensors of a `.npz` or `.safetensors` file by name. Raises PipelineError."""
    try:
        return _load_named(path)
    except Exception as error:  # zipfile, numpy and safetensors raise what damage leads to
        raise _unreadable(path, name, error) from error


def _load_named(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix != ".npz":
        tensors: dict[str, torch.Tensor] = safetensors.torch.load_file(path)
        return tensors
    _check_arrays(path)
    with numpy.load(path, allow_pickle=False) as arrays:
        return {key: torch.from_numpy(arrays[key]) for key in arrays.files}


def _unreadable(path: Path, name: str, error: Exception) -> PipelineError:
    what = str(error).strip().split("\n")[0] or type(error).__name__
    return PipelineError(f"{name}: cannot be read as a {path.suffix} file ({what})")


def _check_arrays(path: Path) -> None:
    """Check that the arrays of a `.npz` have as many bytes as they say, before room is made."""
    with zipfile.ZipFile(path) as members:
        unpacked = sum(info.file_size for info in members.infolist())
        if unpacked > max(_ALWAYS_ALLOWED, _MOST_TIMES * path.stat().st_size):
            raise ValueError(f"unpacks to {unpacked} bytes, more than {_MOST_TIMES} times its size")
        for info in members.infolist():
            with members.open(info) as file:
                version = numpy.lib.format.read_magic(file)
                if version not in _HEADERS:
                    raise ValueError(f"'{info.filename}' is of an unknown version of .npy")
                shape, _, dtype = _HEADERS[version](file)
                if dtype.hasobject:
                    raise ValueError(f"'{info.filename}' holds Python objects, must hold numbers")
                claimed, there = prod(shape) * dtype.itemsize, info.file_size - file.tell()
                if claimed > there:
                    raise ValueError(f"'{info.filename}' claims {claimed} bytes, and has {there}")


_HEADERS = {
    (1, 0): numpy.lib.format.read_array_header_1_0,
    (2, 0): numpy.lib.format.read_array_header_2_0,
}


def _parse_calls(data: Any, name: str, program: ExportedProgram) -> list[InputSet]:
    """Return input sets of a list of tuples or of dicts."""
    if not isinstance(data, list) or not data:
        raise PipelineError(
            f"{name}: holds {describe_type(data)}, "
            "must be a list of tuples of arguments or of dicts"
        )
    args, kwargs = argument_names(program)
    calls = []
    for number, call in enumerate(data):
        if isinstance(call, dict):
            where = f"{name}[{number}]"
            _check_names(where, call, [*args, *kwargs], [*args, *kwargs])
            call = (tuple(call[a] for a in args), {k: call[k] for k in kwargs})
        calls.append(call)
    sets = enumerate(as_input_sets(calls, name))
    return [replace(each, origin=f"{name}[{number}]") for number, each in sets]


def unstack(
    tensors: Mapping[str, torch.Tensor], name: str, program: ExportedProgram
) -> list[InputSet]:
    """Return input sets of tensors that hold all batches, each named as an argument."""
    # Constants with which the program was exported need not be there.
    arguments = signature(program)
    varying = (torch.Tensor, torch.SymInt)
    wanted = [a.name for a in arguments if isinstance(a.value, varying)]
    _check_names(name, tensors, wanted, [a.name for a in arguments])
    sets = []
    for number in range(count_batches(tensors, name, "argument")):
        leaves = []
        for argument in arguments:
            leaf = tensors[argument.name][number] if argument.name in tensors else argument.value
            if name.endswith(".npz"):
                leaf = restore_bfloat16(leaf, argument.value)
            if isinstance(leaf, torch.Tensor) and not isinstance(argument.value, torch.Tensor):
                leaf = leaf if leaf.ndim else leaf.item()  # numbers are stacked as a tensor
            leaves.append(leaf)
        sets.append(nest_leaves(program, leaves, f"{name}[{number}]"))
    return sets


def restore_bfloat16(value: Any, like: Any) -> Any:
    """Return a value of a `.npz` file, which has no bfloat16, in bfloat16 where `like` is and the
    file holds float32."""
    if not isinstance(value, torch.Tensor) or not isinstance(like, torch.Tensor):
        return value
    is_stand_in = like.dtype is torch.bfloat16 and value.dtype is torch.float32
    return value.to(torch.bfloat16) if is_stand_in else value


def count_batches(tensors: Mapping[str, torch.Tensor], name: str, kind: str) -> int:
    """Return the number of batches that all tensors of a file have. Raises PipelineError where they
    have none in common."""
    counts = {key: len(t) if t.ndim else None for key, t in tensors.items()}
    first, count = next(iter(counts.items()))
    for key, other in counts.items():
        if other is None:
            raise PipelineError(
                f"{name}: {kind} '{key}': a single number, must have a first dimension, that of "
                "the batches"
            )
        if other != count:
            raise PipelineError(
                f"{name}: {kind} '{key}': {other} batches, must be {count}, as many as '{first}'"
            )
    if count and count > _MOST_BATCHES:
        raise PipelineError(f"{name}: {count} batches, at most {_MOST_BATCHES} are read")
    return count or 0


def _check_names(
    where: str, given: Iterable[Any], wanted: Sequence[str], known: Sequence[str]
) -> None:
    given = list(given)
    foreign = [key for key in given if key not in known]
    mistakes = [f"no argument '{key}'; {did_you_mean(str(key), known)}" for key in foreign]
    mistakes += [f"argument '{key}' is missing" for key in wanted if key not in given]
    if mistakes or not given:
        raise PipelineError(*(f"{where}: {m}" for m in mistakes or ["is empty"]))
