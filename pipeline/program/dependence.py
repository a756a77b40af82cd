"""Finds which outputs of a program depend on the values of its inputs, by its graph alone.

What depends on nothing, or on sizes alone, is determined by the program: that it never changes says
nothing against comparing it. Nothing is run here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from pipeline.program.eager import functionalized
from pipeline.program.operators import base_name

Dependence = Literal["nothing", "sizes", "values"]
_LEVELS: tuple[Dependence, ...] = ("nothing", "sizes", "values")
_RETURNED = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
_GRADIENTS = (OutputKind.GRADIENT_TO_PARAMETER, OutputKind.GRADIENT_TO_USER_INPUT)
# Operators that take only the size of their first argument, or its dtype.
_OF_SIZES = frozenset(
    {"empty_like", "full_like", "ones_like", "zeros_like", "new_empty", "new_empty_strided"}
    | {"new_full", "new_ones", "new_zeros", "numel", "size", "stride", "sym_numel", "sym_size"}
    | {"sym_stride"}
)


def output_values(functional: ExportedProgram) -> list[Any]:
    """Return the nodes or constants of a functional program's outputs, in the order of
    `Source.outputs`; the parameters that a training program returns at the end are left out."""
    values: Any = functional.graph.output_node().args[0]
    specs = functional.graph_signature.output_specs
    pairs = list(zip(specs, values, strict=True))
    ordered: list[Any] = []
    for kinds in ((OutputKind.USER_INPUT_MUTATION,), _RETURNED, *((kind,) for kind in _GRADIENTS)):
        ordered += [value for spec, value in pairs if spec.kind in kinds]
    return ordered


def find_dependences(
    program: ExportedProgram, outputs: int, state: Collection[str]
) -> list[Dependence]:
    """Return what each output depends on, in the order of `Source.outputs`.

    Args:
        outputs: the number of outputs; those after the graph's own are parameters.
        state: qualified names of buffers that change.
    """
    functional = functionalized(program)
    levels = _find_levels(functional, state)
    found = [_level_of([value], levels) for value in output_values(functional)]
    parameters: list[Dependence] = ["nothing"] * (outputs - len(found))
    return [*found, *parameters]


def _find_levels(functional: ExportedProgram, state: Collection[str]) -> dict[Node, Dependence]:
    """Return the level of each node; bodies of control flow count as what they are given."""
    varying = {
        spec.arg.name
        for spec in functional.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT or (spec.target in state)
    }
    levels: dict[Node, Dependence] = {}
    for node in functional.graph.nodes:
        if node.op == "placeholder":
            levels[node] = "values" if node.name in varying else "nothing"
            continue
        level = _level_of(node.all_input_nodes, levels)
        if base_name(node) in _OF_SIZES or _name(node) in _OF_SIZES:
            level = _level_of([node.args[1:], node.kwargs], levels)
            if _level_of([node.args[:1]], levels) != "nothing" and _has_dynamic_size(node.args[0]):
                level = max(level, "sizes", key=_LEVELS.index)
        levels[node] = level
    return levels


def _name(node: Node) -> str:
    """Return the name of an operator on sizes, which torch registers without overloads too."""
    return str(getattr(node.target, "__name__", "")).partition(".")[0]


def _has_dynamic_size(value: Any) -> bool:
    fake = value.meta.get("val") if isinstance(value, Node) else None
    return any(not isinstance(size, int) for size in getattr(fake, "shape", ()))


def _level_of(arguments: Sequence[Any], levels: dict[Node, Dependence]) -> Dependence:
    """Return the greatest level of the nodes among arguments."""
    nodes = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Node)]
    found = [levels.get(node, "values") for node in nodes]
    return max(found, key=_LEVELS.index, default="nothing")
