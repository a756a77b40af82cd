"""Methods that train: programs whose outputs are followed by gradients of their parameters.

ExecuTorch appends the parameters themselves (exir/passes/weights_to_outputs_pass.py), so that an
optimizer changes them where they lie. Methods of their own tell its training extension where the
gradients and the parameters begin among the outputs, and what they are called
(exir/emit/_emit_program.py, `_get_training_metadata`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, OutputKind, OutputSpec

_GRADIENTS, _PARAMETERS, _NAMES = (
    "__et_training_gradients_index_",
    "__et_training_parameters_index_",
    "__et_training_fqn_",
)
# Why one of these can be wrong: the indices are of the signature's outputs, not the runtime's.
MISCOUNTED = (
    "; ExecuTorch counts changed buffers among the outputs, and its runtime does not return them, "
    "so that its training extension takes other outputs for these: let the method change no buffer"
)


class TrainingOutputs(NamedTuple):
    """The outputs that follow those of the user, in this order: name and fake value of gradients of
    parameters, of gradients of inputs, and of the parameters that have a gradient."""

    gradients: list[tuple[str, Any]]
    input_gradients: list[tuple[str, Any]]
    parameters: list[tuple[str, Any]]

    def describe(self) -> list[tuple[str, Any]]:
        """Return all of them in a row, by the names that messages give them."""
        return [
            *((f"gradient of parameter '{name}'", value) for name, value in self.gradients),
            *((f"gradient of input '{name}'", value) for name, value in self.input_gradients),
            *((f"parameter '{name}'", value) for name, value in self.parameters),
        ]


def find_training_outputs(program: ExportedProgram) -> TrainingOutputs | None:
    """Return what a program that trains gives after its user's outputs; None for any other."""
    nodes: Any = program.graph.output_node().args[0]
    kinds: dict[OutputKind, list[tuple[str, Any]]] = {
        OutputKind.GRADIENT_TO_PARAMETER: [],
        OutputKind.GRADIENT_TO_USER_INPUT: [],
    }
    for spec, node in zip(program.graph_signature.output_specs, nodes, strict=True):
        if spec.kind in kinds:
            kinds[spec.kind].append((str(spec.target), node.meta["val"]))
    gradients, of_inputs = kinds.values()
    if not gradients:
        return None
    values = {
        name: node.meta["val"]
        for node in program.graph.find_nodes(op="placeholder")
        if (name := program.graph_signature.inputs_to_parameters.get(node.name))
    }
    return TrainingOutputs(gradients, of_inputs, [(name, values[name]) for name, _ in gradients])


def name_input_gradients(program: ExportedProgram) -> ExportGraphSignature:
    """Return the signature of a program with the names of the inputs that have gradients.

    torch leaves there what it called them while it traced, `arg3_1` for the fourth of all inputs,
    and then can't save the program (`_export_forward_backward`, torch 2.13).
    """
    signature = program.graph_signature
    inputs = [spec.arg.name for spec in signature.input_specs]

    def renamed(spec: OutputSpec) -> OutputSpec:
        traced = spec.kind is OutputKind.GRADIENT_TO_USER_INPUT and spec.target not in inputs
        return replace(spec, target=inputs[int(str(spec.target)[3:-2])]) if traced else spec

    return ExportGraphSignature(signature.input_specs, list(map(renamed, signature.output_specs)))


def training_methods(method: str, program: ExportedProgram) -> dict[str, int | list[str]]:
    """Return the methods that tell the training extension about a method's outputs, each with what
    it returns; none for a program that does not train.

    Places are counted in what the runtime returns, as the extension slices it. Changed buffers are
    no part of that; changed inputs come first.
    """
    outputs = find_training_outputs(program)
    if outputs is None:
        return {}
    kinds = [spec.kind for spec in program.graph_signature.output_specs]
    returned = [kind for kind in kinds if kind is not OutputKind.BUFFER_MUTATION]
    return {
        _GRADIENTS + method: returned.index(OutputKind.GRADIENT_TO_PARAMETER),
        _PARAMETERS + method: len(returned),
        _NAMES + method: [name for name, _ in outputs.gradients],
    }


def trained_method(method: str) -> str:
    """Return the method that one of the training extension's is about; any other is its own."""
    return reduce(str.removeprefix, (_GRADIENTS, _PARAMETERS, _NAMES), method)
