"""Records the inputs and outputs of a method's reference, and serializes such recordings.

A reference is the eager module, any function, or a file of outputs that were recorded elsewhere.
Comparing an exported program with a reference reads the recording, and never runs the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from pipeline.program.containers import make_plain
from pipeline.program.eager import find_effects, name_changed_input
from pipeline.program.inputs import InputSet, load_inputs, save_inputs
from pipeline.program.signature import call_signature, flatten, signature
from pipeline.store.errors import PipelineError

Outputs = Mapping[str, Any]
_ORIGIN = "recording"


class UncomparableOutputError(PipelineError):
    """A reference returned something that no method can return."""


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """A call of a method's reference: its inputs, and its outputs or error.

    `outputs` are in order, by their names in reports; `error` is what the reference raised.
    """

    method: str
    inputs: InputSet
    outputs: Outputs
    error: str = ""


@dataclass(frozen=True, eq=False)
class Recording:
    """The recorded calls of a reference.

    Attributes:
        origin: a human-readable name: `the reference of 'encode'`, or a file of the workspace.
        sequences: calls one after another, each sequence from the initial state.
        here: whether PyTorch ran it with the export, so that both round alike.
        random: how the reference differs from itself, in words; "" if it is deterministic.
        repeats: for a random reference, outputs of repeated calls on the inputs of the first call.
        divergence: where the exported program diverges from the reference, in words; "" if unknown.
        skipped: input sets whose outputs were not recorded, with the reasons.
    """

    origin: str
    sequences: Sequence[Sequence[RecordedCall]] = ()
    here: bool = True
    random: str = ""
    repeats: Sequence[Outputs] = ()
    divergence: str = ""
    skipped: Sequence[tuple[str, str]] = ()


def save_recording(recording: Recording) -> bytes:
    """Return a recording as bytes, stored like input sets, without pickle.

    Raises PipelineError if its values can't be stored that way.
    """
    facts = {
        "origin": recording.origin,
        "here": recording.here,
        "random": recording.random,
        "divergence": recording.divergence,
        "sequences": [list(map(_call_tree, calls)) for calls in recording.sequences],
        "repeats": [dict(outputs) for outputs in recording.repeats],
        "skipped": [list(skip) for skip in recording.skipped],
    }
    return save_inputs([InputSet((facts,), {}, _ORIGIN)])


def load_recording(data: bytes) -> Recording:
    """Return the recording that `save_recording` stored. Raises PipelineError for other bytes."""
    try:
        (facts,) = load_inputs(data)[0].args
        sequences = [list(map(_call_of_tree, calls)) for calls in facts["sequences"]]
        skipped = [(origin, reason) for origin, reason in facts["skipped"]]
        return Recording(**{**facts, "sequences": sequences, "skipped": skipped})
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise PipelineError(f"a stored recording cannot be read: {error!r}") from error


def _call_tree(call: RecordedCall) -> dict[str, Any]:
    return {
        "method": call.method,
        "args": call.inputs.args,
        "kwargs": dict(call.inputs.kwargs),
        "origin": call.inputs.origin,
        "generated": call.inputs.generated,
        "outputs": dict(call.outputs),
        "error": call.error,
    }


def _call_of_tree(tree: Mapping[str, Any]) -> RecordedCall:
    inputs = InputSet(
        tree["args"],
        tree["kwargs"],
        tree["origin"],
        tree["generated"],
    )
    return RecordedCall(
        tree["method"],
        inputs,
        tree["outputs"],
        tree["error"],
    )


def call_reference(
    reference: Callable[..., Any], program: ExportedProgram, inputs: InputSet
) -> dict[str, Any]:
    """Call a reference on copies of a method's inputs, and return its outputs by name.

    Inputs that the program changes in place come first, as a runtime returns them, followed by
    other inputs that the reference changes.

    Raises:
        UncomparableOutputError: it returned a leaf that isn't a tensor, array, number, str or None.
        Exception: whatever the reference raises.
    """
    leaves = flatten(program, inputs)
    # A reference may change its inputs in place.
    leaves_before = [
        leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
    ]
    # Use the export's containers: the reference is the user's function.
    args, kwargs = pytree.tree_unflatten(leaves, call_signature(program).in_spec)
    with torch.no_grad():
        returned = reference(*args, **kwargs)
    changed = [*find_effects(program).changed]
    for place, (leaf, leaf_before) in enumerate(
        zip(leaves, leaves_before, strict=True)
    ):
        if place not in changed and not _has_same_bits(leaf, leaf_before):
            changed.append(place)
    names = [argument.name for argument in signature(program)]
    outputs = {name_changed_input(names[place]): leaves[place] for place in changed}
    outputs |= name_outputs(returned)
    return {name: _copy_output(name, value) for name, value in outputs.items()}


def _has_same_bits(leaf: Any, leaf_before: Any) -> bool:
    """Return whether an input has the same bits as before a call, NaN included."""
    if not isinstance(leaf, torch.Tensor):
        return True
    if leaf.shape != leaf_before.shape or leaf.dtype != leaf_before.dtype:
        return False
    return torch.equal(_bits(leaf), _bits(leaf_before))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def name_outputs(returned: Any) -> dict[str, Any]:
    """Return the leaves of a returned value by their names in reports.

    Such names are `output`, `output[0]` and `output['logits']`.
    """
    leaves, _ = pytree.tree_flatten_with_path(make_plain(returned))
    return {f"output{pytree.keystr(path)}": value for path, value in leaves}


def _copy_output(name: str, value: Any) -> Any:
    """Return a copy of an output, on the CPU."""
    if isinstance(value, numpy.ndarray | numpy.generic):
        value = torch.as_tensor(value)
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone(memory_format=torch.contiguous_format)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = type(value).__name__
    raise UncomparableOutputError(
        f"{name} is of type {kind}, must be a tensor, number, bool, str or None"
    )


def count_bytes(outputs: Outputs) -> int:
    """Return the total bytes of the tensors among outputs."""
    tensors = [value for value in outputs.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
