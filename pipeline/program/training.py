"""Finds the outputs of methods that train: gradients of their parameters follow the user's outputs.

ExecuTorch appends the parameters themselves (exir/passes/weights_to_outputs_pass.py), so that an
optimizer can change them in place. Constant methods give its training extension the positions of
the first gradient and the first parameter among the outputs, and the parameters' names
(exir/emit/_emit_program.py, `_get_training_metadata`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, OutputKind

_GRADIENTS, _PARAMETERS, _NAMES = (
    "__et_training_gradients_index_",
    "__et_training_parameters_index_",
    "__et_training_fqn_",
)
# ExecuTorch counts outputs of the signature instead of those that the runtime returns.
MISCOUNTED = (
    "; ExecuTorch counts changed buffers among the outputs, but its runtime does not return "
    "them, so its training extension mixes up the outputs: don't change buffers in this method"
)


# The name and fake value of each output, keyed by the kind of output.
TrainingOutputs = Mapping[str, list[tuple[str, Any]]]
_WORDS = {
    "gradients": "gradient of parameter",
    "input_gradients": "gradient of input",
    "parameters": "parameter",
}


def describe_training_outputs(outputs: TrainingOutputs) -> list[tuple[str, Any]]:
    """Return all training outputs as a flat list, each with its label in messages."""
    described = []
    for kind, members in outputs.items():
        described += [(f"{_WORDS[kind]} '{name}'", value) for name, value in members]
    return described


def find_training_outputs(program: ExportedProgram) -> TrainingOutputs:
    """Return the outputs that follow the user's outputs, or {} if the program doesn't train.

    The kinds come in this order: the `gradients` of parameters, `input_gradients`, and the
    `parameters` that have a gradient.
    """
    nodes: Any = program.graph.output_node().args[0]
    gradients: list[tuple[str, Any]] = []
    input_gradients: list[tuple[str, Any]] = []
    for spec, node in zip(program.graph_signature.output_specs, nodes, strict=True):
        if spec.kind is OutputKind.GRADIENT_TO_PARAMETER:
            gradients.append((str(spec.target), node.meta["val"]))
        elif spec.kind is OutputKind.GRADIENT_TO_USER_INPUT:
            input_gradients.append((str(spec.target), node.meta["val"]))
    if not gradients:
        return {}
    names = program.graph_signature.inputs_to_parameters
    values = {
        names[node.name]: node.meta["val"]
        for node in program.graph.find_nodes(op="placeholder")
        if node.name in names
    }
    parameters = [(name, values[name]) for name, _ in gradients]
    return {
        "gradients": gradients,
        "input_gradients": input_gradients,
        "parameters": parameters,
    }


def name_input_gradients(program: ExportedProgram) -> ExportGraphSignature:
    """Return a program's signature with each gradient of an input assigned to the input's name.

    torch leaves the inputs' names from tracing there, `arg3_1` for the fourth of all inputs, and
    then can't save the program (`_export_forward_backward`, torch 2.13).
    """
    signature = program.graph_signature
    inputs = [spec.arg.name for spec in signature.input_specs]
    output_specs = []
    for spec in signature.output_specs:
        is_input_gradient = spec.kind is OutputKind.GRADIENT_TO_USER_INPUT
        if is_input_gradient and spec.target not in inputs:
            # The 3 in `arg3_1` counts parameters and buffers too.
            number = int(str(spec.target).removeprefix("arg").removesuffix("_1"))
            spec = replace(spec, target=inputs[number])
        output_specs.append(spec)
    return ExportGraphSignature(signature.input_specs, output_specs)


def training_methods(
    method: str, program: ExportedProgram
) -> dict[str, int | list[str]]:
    """Return the constant methods that describe a method's outputs to the training extension.

    They are returned with their values; the dict is empty if the program doesn't train. Positions
    are counted among the outputs that the runtime returns, which the extension slices: changed
    inputs come first, and changed buffers aren't included.
    """
    outputs = find_training_outputs(program)
    if not outputs:
        return {}
    kinds = [spec.kind for spec in program.graph_signature.output_specs]
    returned = [kind for kind in kinds if kind is not OutputKind.BUFFER_MUTATION]
    return {
        _GRADIENTS + method: returned.index(OutputKind.GRADIENT_TO_PARAMETER),
        _PARAMETERS + method: len(returned),
        _NAMES + method: [name for name, _ in outputs["gradients"]],
    }


def trained_method(method: str) -> str:
    """Return the method that a constant method of the training extension describes.

    Any other name is returned unchanged.
    """
    return reduce(str.removeprefix, (_GRADIENTS, _PARAMETERS, _NAMES), method)
