"""Reads files of input sets in the workspace, for calibration and validation.

A file has one of three formats. `.npz` and `.safetensors` hold a tensor for each argument, under
its name as messages show it (`x`, `states[0]['key']`). The tensor has an extra first dimension for
the batches, of the same length in all tensors of a file. `.pt` holds a list of batches, readable
with `weights_only`: each is a tuple of arguments, or a dict of values by argument name. Several
files are read one after another.
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

# How many times larger than a compressed file its content may be, and a size that is always
# allowed. Calibration data hardly ever compresses to a hundredth.
_MOST_TIMES, _ALWAYS_ALLOWED = 100, 1 << 30  # bytes
_MOST_BATCHES = 1_000_000


def check_file(root: Path, name: str, content: Digest) -> None:
    """Raise SourceError if a file of the workspace has changed since it was planned."""
    path = root / name
    if not path.is_file() or digest.hash_file(path) != content:
        raise SourceError(f"{name}: changed while the build ran; run again")


def read_planned(
    root: Path, name: str, content: Digest, program: ExportedProgram
) -> list[InputSet]:
    """Read a file of the workspace at `root` as `read_file` does, if it hasn't changed.

    Raises:
        SourceError: the file has changed since it was planned.
        PipelineError: under the same conditions as in `read_file`.
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
    """Read the batches of all files of each method, in order.

    Args:
        files: by method, the names of its files in the workspace at `root`, each with its planned
            digest.

    Raises:
        PipelineError: a file can't be read, has changed, has no input sets, or lacks the method's
            arguments; the error has one line for each such mistake.
    """
    examples: dict[str, list[InputSet]] = {}
    mistakes: list[str] = []
    for method, planned_files in files.items():
        examples[method] = []
        for name, content in planned_files:
            try:
                batches = read_planned(root, name, content, programs[method])
            except PipelineError as error:
                mistakes += [f"{method}: {line}" for line in str(error).splitlines()]
                continue
            if not batches:
                mistakes.append(f"{method}: {name}: contains no input sets")
            examples[method] += batches
    if mistakes:
        raise PipelineError(*mistakes)
    return examples


def read_file(path: Path, name: str, program: ExportedProgram) -> list[InputSet]:
    """Read the batches of a file, which hold arguments of the program.

    Args:
        name: the file's name in messages.

    Raises:
        PipelineError: the file can't be read, or doesn't hold the program's arguments.
    """
    try:
        if path.suffix == ".pt":
            with open(path, "rb") as file:
                calls = load_tensor_file(file)
            return _parse_calls(calls, name, program)
        tensors = load_named_tensors(path)
    except pickle.UnpicklingError as error:
        raise PipelineError(
            f"{name}: contains more than tensors, numbers, strings and containers of them, so it "
            "is not unpickled; save a list of tuples or of dicts of tensors"
        ) from error
    except PipelineError:
        raise
    except (
        Exception
    ) as error:  # zipfile, numpy, safetensors and torch raise what damage leads to
        raise describe_unreadable(path, name, error) from error
    return unstack(tensors, name, program)


def load_named_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a `.npz` or `.safetensors` file by name.

    Raises whatever zipfile, numpy and safetensors raise for a damaged file.
    """
    if path.suffix != ".npz":
        tensors: dict[str, torch.Tensor] = safetensors.torch.load_file(path)
        return tensors
    _check_arrays(path)
    with numpy.load(path, allow_pickle=False) as arrays:
        return {key: torch.from_numpy(arrays[key]) for key in arrays.files}


def describe_unreadable(path: Path, name: str, error: Exception) -> PipelineError:
    """Return the error for a file that a library refused to read."""
    first_line = str(error).strip().split("\n")[0]
    reason = first_line or type(error).__name__
    return PipelineError(f"{name}: cannot be read as a {path.suffix} file ({reason})")


def _check_arrays(path: Path) -> None:
    """Raise ValueError if an array of a `.npz` claims more bytes than it has.

    This is checked before numpy allocates the arrays.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        if unpacked > max(_ALWAYS_ALLOWED, _MOST_TIMES * path.stat().st_size):
            raise ValueError(
                f"unpacks to {unpacked} bytes, more than {_MOST_TIMES} times its size"
            )
        for member in members:
            with archive.open(member) as file:
                _check_array(file, member)


def _check_array(file: Any, member: zipfile.ZipInfo) -> None:
    name = member.filename
    version = numpy.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"'{name}' has an unknown version of the .npy format")
    shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError(f"'{name}' contains Python objects, must contain numbers")
    claimed = prod(shape) * dtype.itemsize
    size = member.file_size - file.tell()
    if claimed > size:
        raise ValueError(f"'{name}' claims {claimed} bytes, but has {size}")


_HEADERS = {
    (1, 0): numpy.lib.format.read_array_header_1_0,
    (2, 0): numpy.lib.format.read_array_header_2_0,
}


def _parse_calls(data: Any, name: str, program: ExportedProgram) -> list[InputSet]:
    """Return the input sets that a list of tuples or dicts describes."""
    if not isinstance(data, list) or not data:
        raise PipelineError(
            f"{name}: holds {describe_type(data)}, "
            "must be a list of tuples of arguments or of dicts"
        )
    args, kwargs = argument_names(program)
    names = [*args, *kwargs]
    calls = []
    for number, call in enumerate(data):
        if isinstance(call, dict):
            _check_names(
                f"{name}[{number}]",
                call,
                names,
                names,
            )
            positional = tuple(call[arg] for arg in args)
            call = (positional, {keyword: call[keyword] for keyword in kwargs})
        calls.append(call)
    input_sets = as_input_sets(calls, name)
    return [
        replace(s, origin=f"{name}[{number}]") for number, s in enumerate(input_sets)
    ]


def unstack(
    tensors: Mapping[str, torch.Tensor], name: str, program: ExportedProgram
) -> list[InputSet]:
    """Return the input sets in tensors that are named after arguments and hold all batches."""
    arguments = signature(program)
    # Arguments that the export fixed as constants may be missing.
    varying = (torch.Tensor, torch.SymInt)
    required = [a.name for a in arguments if isinstance(a.value, varying)]
    _check_names(name, tensors, required, [a.name for a in arguments])
    input_sets = []
    for number in range(count_batches(tensors, name, "argument")):
        leaves = []
        for argument in arguments:
            if argument.name in tensors:
                leaf = tensors[argument.name][number]
            else:
                leaf = argument.value
            if name.endswith(".npz"):
                leaf = restore_bfloat16(leaf, argument.value)
            is_number = not isinstance(argument.value, torch.Tensor)
            if is_number and isinstance(leaf, torch.Tensor) and leaf.ndim == 0:
                leaf = leaf.item()  # numbers are stacked as a tensor
            leaves.append(leaf)
        input_sets.append(nest_leaves(program, leaves, f"{name}[{number}]"))
    return input_sets


def restore_bfloat16(value: Any, like: Any) -> Any:
    """Return a float32 tensor as bfloat16 if `like` is bfloat16, and any other value unchanged.

    A `.npz` file has no bfloat16, so it holds float32 instead.
    """
    if not isinstance(value, torch.Tensor) or not isinstance(like, torch.Tensor):
        return value
    is_stand_in = like.dtype is torch.bfloat16 and value.dtype is torch.float32
    if is_stand_in:
        return value.to(torch.bfloat16)
    return value


def count_batches(tensors: Mapping[str, torch.Tensor], name: str, kind: str) -> int:
    """Return the number of batches in a file.

    Raises PipelineError if the tensors don't all have this number, or if it is too large.
    """
    first_key = next(iter(tensors))
    number_of_batches: int | None = None
    for key, tensor in tensors.items():
        label = f"{name}: {kind} '{key}'"
        if not tensor.ndim:
            raise PipelineError(
                f"{label}: a single number, must have a first dimension for the batches"
            )
        if number_of_batches is None:
            number_of_batches = len(tensor)
        if len(tensor) != number_of_batches:
            raise PipelineError(
                f"{label}: {len(tensor)} batches, must be {number_of_batches}, as many as "
                f"'{first_key}'"
            )
    if number_of_batches and number_of_batches > _MOST_BATCHES:
        raise PipelineError(
            f"{name}: {number_of_batches} batches, at most {_MOST_BATCHES} are read"
        )
    return number_of_batches or 0


def _check_names(
    label: str, keys: Iterable[Any], required: Sequence[str], allowed: Sequence[str]
) -> None:
    keys = list(keys)
    unknown = [key for key in keys if key not in allowed]
    mistakes = [
        f"no argument '{key}'; {did_you_mean(str(key), allowed)}" for key in unknown
    ]
    mistakes += [f"argument '{key}' is missing" for key in required if key not in keys]
    if not keys and not mistakes:
        mistakes = ["is empty"]
    if mistakes:
        raise PipelineError(*(f"{label}: {mistake}" for mistake in mistakes))
