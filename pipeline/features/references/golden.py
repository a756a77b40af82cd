"""Reads files of recorded outputs, from training or another framework.

A `.npz` or `.safetensors` file holds a tensor for each output, under its name in reports (`output`,
`output[0]`, `output['logits']`), with one leading dimension: the batches. The inputs may be in the
same file under the names of arguments, as in a file of examples (input_files.py). Otherwise the
outputs belong to the method's examples, in order. Each batch is a call from the initial state.

With two leading dimensions, sequences and steps, the calls of a sequence follow one another: only
the first starts from the initial state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor
from torch.export import ExportedProgram

from pipeline.features.references.recordings import RecordedCall, Recording
from pipeline.program.eager import AFTER_CALL, find_effects
from pipeline.program.input_files import (
    count_batches,
    describe_unreadable,
    load_named_tensors,
    restore_bfloat16,
    unstack,
)
from pipeline.program.inputs import InputSet
from pipeline.program.signature import check_inputs, returned_values, signature
from pipeline.store.errors import PipelineError, did_you_mean, listed


def read_golden(
    root: Path,
    path: str,
    method: str,
    program: ExportedProgram,
    examples: Sequence[InputSet],
) -> Recording:
    """Read the recorded outputs of a method from a file of the workspace at `root`.

    Raises:
        PipelineError: the file can't be read, lacks an output or an argument, holds unknown
            tensors, or has a different number of batches than there are inputs.
    """
    try:
        tensors = load_named_tensors(root / path)
    except (
        Exception
    ) as error:  # zipfile, numpy and safetensors raise what damage leads to
        raise describe_unreadable(root / path, path, error) from error
    fake_values = dict(_find_outputs(program))
    outputs = {name: tensor for name, tensor in tensors.items() if name in fake_values}
    inputs = {
        name: tensor for name, tensor in tensors.items() if name not in fake_values
    }
    _check_outputs(path, outputs, inputs, program)
    steps = _count_steps(path, outputs, inputs, program)
    if steps is not None:
        outputs = _join_steps(outputs)
        inputs = _join_steps(inputs)
    count = count_batches(outputs, path, "output")
    if not count:
        raise PipelineError(f"{path}: contains no batches")
    if inputs:
        input_sets = unstack(inputs, path, program)
    else:
        input_sets = list(examples)
    if len(input_sets) != count:
        owner = "examples of the method"
        if inputs:
            owner = "inputs in the file"
        raise PipelineError(
            f"{path}: {count} batches of outputs, {len(input_sets)} {owner}; each output belongs "
            "to one"
        )
    calls = []
    for number, input_set in enumerate(input_sets):
        check_inputs(program, input_set)
        values: dict[str, object] = {}
        for name, fake_value in fake_values.items():
            if fake_value is None:
                values[name] = None
            elif name in outputs:
                values[name] = _as_output(outputs[name][number], fake_value, path)
        calls.append(RecordedCall(method, input_set, values))
    # `here=False`: another framework may round differently from PyTorch here.
    return Recording(path, _split_sequences(calls, steps or 1), here=False)


def _count_steps(
    path: str,
    outputs: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    program: ExportedProgram,
) -> int | None:
    """Return the number of calls in each sequence of a file.

    It is None if the tensors have one leading dimension, so that each batch is a separate call.
    """
    ranks = {name: _rank(like) for name, like in _find_outputs(program)}
    ranks |= {argument.name: _rank(argument.value) for argument in signature(program)}
    tensors = {**outputs, **inputs}
    leading = {}
    for name, tensor in tensors.items():
        leading[name] = tensor.shape[: max(tensor.ndim - ranks[name], 0)]
    sequences = {name: shape for name, shape in leading.items() if len(shape) == 2}
    if not sequences:
        return None
    first, shape = next(iter(sequences.items()))
    misshapen = [name for name in leading if leading[name] != shape]
    if misshapen:
        what = (
            f"'{first}' holds {shape[0]} sequences of {shape[1]} calls, "
            f"{listed(misshapen, 3)} not"
        )
        remedy = "all tensors must have the same two leading dimensions, or all must have one"
        raise PipelineError(f"{path}: {what}; {remedy}")
    return shape[1]


def _rank(like: object) -> int:
    if isinstance(like, Tensor):
        return like.ndim
    return 0


def _join_steps(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with one leading dimension, which counts all calls in order."""
    return {name: tensor.flatten(0, 1) for name, tensor in tensors.items()}


def _split_sequences(
    calls: Sequence[RecordedCall], steps: int
) -> list[list[RecordedCall]]:
    starts = range(0, len(calls), steps)
    return [list(calls[start : start + steps]) for start in starts]


def _returned(program: ExportedProgram) -> list[tuple[str, object]]:
    """Return the name and fake value of each output that a method returns."""
    return [(f"output{path}", value) for path, value in returned_values(program)]


def _find_outputs(program: ExportedProgram) -> list[tuple[str, object]]:
    """Return the outputs of a method, and the inputs that it changes in place.

    A file may hold both.
    """
    outputs = find_effects(program).outputs
    changed = [(name, like) for name, like in outputs if name.endswith(AFTER_CALL)]
    return changed + _returned(program)


def _check_outputs(
    path: str,
    outputs: dict[str, Tensor],
    inputs: dict[str, Tensor],
    program: ExportedProgram,
) -> None:
    names = [name for name, like in _returned(program) if like is not None]
    arguments = [argument.name for argument in signature(program)]
    mistakes = [f"output '{name}' is missing" for name in names if name not in outputs]
    for name in inputs:
        if name not in arguments:
            hint = did_you_mean(name, [*names, *arguments])
            mistakes.append(f"'{name}' is neither an output nor an argument; {hint}")
    ambiguous = sorted({*names} & {*arguments})
    if ambiguous:
        mistakes.append(
            f"{listed(ambiguous, 3)}: an argument and an output have the same name; rename one "
            "of them"
        )
    if mistakes:
        raise PipelineError(*(f"{path}: {mistake}" for mistake in mistakes))


def _as_output(recorded: Tensor, like: object, path: str) -> object:
    """Return a recorded value in the form in which the method returns it.

    It becomes a number if the method returns one, and bfloat16 if a `.npz` file holds float32
    instead.
    """
    if not isinstance(like, Tensor):
        if recorded.ndim:
            return recorded
        return recorded.item()
    if path.endswith(".npz"):
        return restore_bfloat16(recorded, like)
    return recorded
