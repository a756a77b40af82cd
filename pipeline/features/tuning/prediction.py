"""Predicts figures of a package from a method's quantized program, before anything is lowered.

It measures the bytes of the program's constants, and its errors on some of the examples, in a
separate process. A faithful delegate computes what the quantized program computes, so the program's
SQNR is within a few tenths of a dB of the package's, and its constants are nearly all of the
package's bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from pipeline.plan.kinds.parts import Libraries
from pipeline.program.eager import Source
from pipeline.program.input_files import read_examples
from pipeline.program.inputs import InputSet
from pipeline.program.operator_libraries import load_libraries
from pipeline.program.random_inputs import generate_inputs
from pipeline.program.sources import MethodSource
from pipeline.report.records import MOST_SQNR
from pipeline.run.build.load import load_examples, load_method, load_quantized
from pipeline.run.build.planned import guard_sources
from pipeline.run.worker_process import import_libraries
from pipeline.store.digest import Digest, hash_bytes
from pipeline.store.errors import describe_error
from pipeline.store.workspace import Workspace
from pipeline.validate.metrics import compare

_MOST_CALLS = 16  # input sets, spread evenly over the half that is not held out
_GENERATED = 4  # input sets for a method without examples
_LEAST_PACKED = 64  # values; a smaller tensor may fit 4 bits by chance


def predict_methods(
    parts: Sequence[Mapping[str, Any]], libraries: Libraries, workspace: Workspace
) -> list[dict[str, Any]]:
    """Return a prediction for each part, or why there is none, as JSON.

    Args:
        parts: the `method`, its `source`, the digest of its `quantize` action or None, and the
            `files` of its examples, each with its digest.
    """
    import_libraries(False)
    load_libraries([name for name, _ in libraries], workspace.root)
    predictions: list[dict[str, Any]] = []
    for part in parts:
        try:
            predictions.append(_predict(workspace=workspace, **part))
        except Exception as error:
            # Not a failure: a variant without a prediction is lowered instead.
            predictions.append({"error": describe_error(error)})
    return predictions


def _predict(
    method: str,
    source: MethodSource,
    quantize: Digest | None,
    files: Sequence[tuple[str, Digest]],
    workspace: Workspace,
) -> dict[str, Any]:
    with guard_sources([source], workspace.store):
        program = load_method(source, workspace.store)
        if quantize is None:
            return {"constants": measure_constants(program), "errors": {}}
        quantized = load_quantized(quantize, method, workspace.store).program
        if files:
            examples = read_examples(
                workspace.root, {method: files}, {method: program}
            )[method]
        else:
            examples = load_examples(source, workspace.store)
        inputs = choose_inputs(program, examples)
        errors = measure_errors(program, quantized, inputs)
        return {"constants": measure_constants(quantized), "errors": errors}


def choose_inputs(
    program: ExportedProgram, examples: Sequence[InputSet]
) -> list[InputSet]:
    """Return some of the input sets that judge trials, from the half that isn't held out."""
    if not examples:
        return generate_inputs(program, _GENERATED, 0)
    half = list(examples[::2])
    if len(half) <= _MOST_CALLS:
        return half
    return [half[len(half) * place // _MOST_CALLS] for place in range(_MOST_CALLS)]


def measure_errors(
    program: ExportedProgram, quantized: ExportedProgram, sets: Sequence[InputSet]
) -> dict[str, float]:
    """Return the worst errors of all outputs of a quantized program against the float program.

    They are `sqnr` in dB, and `max_abs`.
    """
    reference, candidate = Source(program), Source(quantized)
    least, greatest = MOST_SQNR, 0.0
    for inputs in sets:
        reference.reset()
        candidate.reset()
        expected = reference.run(inputs)
        for value, actual in zip(expected, candidate.run(inputs), strict=True):
            error = compare(actual, value)
            if error.sqnr_db is not None:
                least = min(least, error.sqnr_db)
            greatest = max(greatest, error.max_abs)
    return {
        "sqnr": max(least, -MOST_SQNR),
        "max_abs": min(greatest, sys.float_info.max),  # JSON has no infinity
    }


def measure_constants(program: ExportedProgram) -> dict[Digest, int]:
    """Return the bytes of the constants that a program uses, by digest."""
    sizes = {}
    for tensor in _find_constants(program):
        sizes[_hash(tensor)] = _count_bytes(tensor)
    return sizes


def _find_constants(program: ExportedProgram) -> Iterator[Tensor]:
    users = {node.name for node in program.graph.nodes if node.users}
    values: dict[str, Any] = {**program.constants, **program.state_dict}
    for spec in program.graph_signature.input_specs:
        tensor = values.get(spec.target or "")
        if spec.arg.name in users and isinstance(tensor, Tensor):
            yield tensor.detach()


def _hash(tensor: Tensor) -> Digest:
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return hash_bytes(flat.numpy().tobytes())


def _count_bytes(tensor: Tensor) -> int:
    """Return the bytes of a constant in a package.

    Delegates pack two 4-bit values, which a quantized program holds as int8, into one byte.
    """
    if tensor.dtype != torch.int8 or tensor.numel() < _LEAST_PACKED:
        return tensor.nbytes
    if int(tensor.min()) < -8 or int(tensor.max()) > 7:
        return tensor.nbytes
    return (tensor.nbytes + 1) // 2
