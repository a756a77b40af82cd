"""Finds outputs that are choices, such as a class index or a mask, rather than amounts.

The distance between two choices means nothing: class 7 is no worse than class 2 in place of class
1. Only the share of equal values says how good they are.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from pipeline.program.eager import find_effects, functionalized
from pipeline.program.operators import base_name

_CHOOSING = frozenset(
    {"argmax", "argmin", "argsort", "bucketize", "multinomial", "nonzero"}
    | {"searchsorted"}
)
# Operators that return values, and the places where they were.
_WITH_INDICES = frozenset(
    {"kthvalue", "max", "max_pool2d_with_indices", "median", "min", "mode"}
    | {"sort", "topk"}
)
# Operators that count or add up choices; their result is an amount.
_COUNTING = frozenset(
    {"bincount", "count_nonzero", "cumsum", "histc", "mean", "prod", "sum"}
)
_KINDS = (OutputKind.USER_INPUT_MUTATION, OutputKind.USER_OUTPUT)


def find_labels(program: ExportedProgram) -> frozenset[int]:
    """Return the positions of outputs that are choices, in the order of `Source.outputs`.

    Bools are choices. Integers are if they come from bools or from operators that choose, such as
    `argmax`, and aren't counts.
    """
    fakes = [fake for _, fake in find_effects(program).outputs]
    labels = {place for place, fake in enumerate(fakes) if _is_bool(fake)}
    if all(place in labels or _is_float(fake) for place, fake in enumerate(fakes)):
        return frozenset(labels)
    for place, value in enumerate(find_output_values(program)):
        if isinstance(value, Node) and _is_choice(value):
            labels.add(place)
    return frozenset(labels)


def find_output_values(program: ExportedProgram) -> list[Any]:
    """Return the graph's value of each output, in the order of `Source.outputs`."""
    functional = functionalized(program)
    values: Any = functional.graph.output_node().args[0]
    pairs = list(zip(functional.graph_signature.output_specs, values, strict=True))
    return [value for kind in _KINDS for spec, value in pairs if spec.kind is kind]


def _is_choice(output: Node) -> bool:
    """Return whether an output's integers come from choices, and from nothing else."""
    has_chosen = False
    seen = {output}
    waiting = [output]
    while waiting:
        node = waiting.pop()
        if _chooses(node):
            has_chosen = True
            continue
        arguments = node.all_input_nodes
        if base_name(node) in _COUNTING or _is_float(node.meta.get("val")):
            return False
        if any(_holds_floats(argument.meta.get("val")) for argument in arguments):
            return False
        waiting += [argument for argument in arguments if argument not in seen]
        seen.update(arguments)
    return has_chosen


def _chooses(node: Node) -> bool:
    """Return whether a node's values are choices, whatever it is computed from."""
    if _is_bool(node.meta.get("val")) or base_name(node) in _CHOOSING:
        return True
    if getattr(node.target, "__name__", "") != "getitem" or node.args[1] != 1:
        return False
    return any(
        base_name(argument) in _WITH_INDICES for argument in node.all_input_nodes
    )


def _holds_floats(value: Any) -> bool:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return any(map(_is_float, values))


def _is_float(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() or value.is_complex()
    return isinstance(value, float)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) == "torch.bool"
