"""Finds operators that make a program random: they draw numbers, or read uninitialized memory.

torch tags operators that draw from its generator (`torch.Tag.nondeterministic_seeded`). Some of
these draw nothing for certain arguments: dropout in evaluation mode, for example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.program.graphs import iter_nodes
from pipeline.program.operators import base_name, operator_name
from pipeline.program.source_lines import source_line
from pipeline.program.training import find_training_outputs
from pipeline.store.errors import plural

# `training`: left in training mode. `sampling`: draws numbers in any mode. `memory`: leaves memory
# uninitialized.
Cause = Literal["training", "sampling", "memory"]
_MOST_LINES = 3
_UNINITIALIZED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
    }
)
_TORCH_NAMESPACES = frozenset({"aten", "prim", "prims", "quantized_decomposed"})
_DROPOUTS = frozenset(
    {
        "dropout",
        "native_dropout",
        "feature_dropout",
        "alpha_dropout",
        "feature_alpha_dropout",
    }
    | {"_fused_dropout"}
)
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
_BATCH_NORMS = frozenset(
    {"batch_norm", "native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit"}
    | {"_native_batch_norm_legit_functional", "_batch_norm_with_update"}
    | {"_batch_norm_with_update_functional"}
)
REMEDIES: Mapping[Cause, str] = {
    "training": "call .eval() on the model before the export (functions such as "
    "F.dropout also need `training=self.training`), or declare that it samples, "
    "`validate: {random: true}`",
    "sampling": "if it samples on purpose, declare it with `validate: {random: true}`",
    "memory": "write the tensor before it is read (torch.zeros instead of torch.empty)",
}


@dataclass(frozen=True)
class RandomOperator:
    """A random operator of a program, and the source lines that call it.

    Attributes:
        name: the name in the operator's schema, such as `aten.dropout`.
        lines: the calling lines in the model's source; empty if they are unknown.
        count: the number of calls.
    """

    name: str
    cause: Cause
    lines: tuple[str, ...]
    count: int

    @property
    def changes_buffers(self) -> bool:
        """Whether the operator changes the model's buffers when it runs."""
        return self.name.split(".")[1] in _BATCH_NORMS

    def __str__(self) -> str:
        mode = " in training mode" if self.cause == "training" else ""
        calls = plural(self.count, "call")
        if self.lines:
            calls += f": {'; '.join(self.lines[:_MOST_LINES])}"
        return f"{self.name}{mode} ({calls})"


def find_random_operators(
    program: ExportedProgram, root: Path | None = None
) -> list[RandomOperator]:
    """Find the operators that draw random numbers or are in training mode.

    Batch norm in a program that trains is left out: it is in training mode on purpose. So are
    operators that allocate uninitialized memory, since most memory is written before it is read
    (see `find_uninitialized`).
    """
    trains = bool(find_training_outputs(program))

    def find_cause(node: Node) -> Cause | None:
        if trains and base_name(node) in _BATCH_NORMS:
            return None
        return random_cause(node)

    return find_operators_by(program, root, find_cause)


def find_uninitialized(
    program: ExportedProgram, root: Path | None
) -> list[RandomOperator]:
    """Find the operators that allocate memory without writing it."""
    return find_operators_by(
        program, root, lambda node: "memory" if is_uninitialized(node) else None
    )


def find_operators_by(
    program: ExportedProgram,
    root: Path | None,
    find_cause: Callable[[Node], Cause | None],
) -> list[RandomOperator]:
    """Find the operators for which a function of their node returns a cause."""
    calls: dict[tuple[str, Cause], list[Node]] = {}
    for node in iter_nodes(program):
        if cause := find_cause(node):
            calls.setdefault((operator_name(node), cause), []).append(node)
    return [
        _describe(name, cause, nodes, root) for (name, cause), nodes in calls.items()
    ]


def is_uninitialized(node: Node) -> bool:
    """Return whether a node allocates memory without writing it."""
    return base_name(node) in _UNINITIALIZED


def is_foreign(node: Node) -> bool:
    """Return whether a node calls another library than torch, or enlarges a tensor."""
    target = node.target
    return base_name(node) == "resize" or (
        isinstance(target, OpOverload) and target.namespace not in _TORCH_NAMESPACES
    )


def _describe(
    name: str, cause: Cause, nodes: list[Node], root: Path | None
) -> RandomOperator:
    all_lines = [source_line(node, root) for node in nodes]
    lines = dict.fromkeys(str(line) for line in all_lines if line is not None)
    return RandomOperator(name, cause, tuple(lines), len(nodes))


def random_cause(node: Node) -> Cause | None:
    """Return why a node is random, or None if it isn't."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return None
    name = base_name(node)
    argument = _argument_reader(node, target)
    if name in _BATCH_NORMS:
        updates = argument("running_mean") is not None
        trains = argument(
            "training", argument("train", name.startswith("_batch_norm_with"))
        )
        if trains and updates:
            return "training"
        return None
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return None
    if name in _RECURRENT and argument("num_layers", 2) == 1:
        return None  # there is no dropout after the last layer
    if name in _DROPOUTS or name in _RECURRENT:
        probability = argument("p", argument("dropout", 0.0))
        trains = argument("train", True) is not False
        if trains and probability:
            return "training"
        return None
    if "scaled_dot_product" in name:
        if argument("dropout_p", 0.0):
            return "training"
        return None
    if name.startswith("rrelu"):
        if argument("training", False):
            return "training"
        return None
    return "sampling"


def _argument_reader(node: Node, target: OpOverload) -> Callable[..., Any]:
    """Return a function that reads an argument of a node by its name in the operator's schema."""
    parameters = target._schema.arguments
    places = {parameter.name: place for place, parameter in enumerate(parameters)}
    defaults = {p.name: p.default_value for p in parameters if p.has_default_value()}

    def read(name: str, default: Any = None) -> Any:
        if name in node.kwargs:
            return node.kwargs[name]
        if name in places and places[name] < len(node.args):
            return node.args[places[name]]
        return defaults.get(name, default)

    return read


def describe_random_operators(operators: list[RandomOperator]) -> str:
    """Return a string that lists random operators, and a remedy for each cause."""
    causes = dict.fromkeys(operator.cause for operator in operators)
    remedies = "; ".join(REMEDIES[cause] for cause in causes)
    return f"{', '.join(map(str, operators))}; {remedies}"
