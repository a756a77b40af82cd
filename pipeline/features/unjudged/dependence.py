"""Finds which outputs of a program depend on the values of its inputs, from its graph alone.

An output that depends on nothing, or only on sizes, is determined by the program: it can be
compared even though it never changes. Nothing is run here.
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
_OUTPUT_ORDER = (
    (OutputKind.USER_INPUT_MUTATION,),
    (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT),
    (OutputKind.GRADIENT_TO_PARAMETER,),
    (OutputKind.GRADIENT_TO_USER_INPUT,),
)
# Operators that use only the size or the dtype of their first argument. `copy`, `fill` and `zero`
# overwrite it.
_OF_SIZES = frozenset(
    {
        "copy",
        "empty_like",
        "fill",
        "full_like",
        "ones_like",
        "zeros_like",
        "new_empty",
        "new_empty_strided",
    }
    | {
        "new_full",
        "new_ones",
        "new_zeros",
        "numel",
        "size",
        "stride",
        "sym_numel",
        "sym_size",
    }
    | {"sym_stride", "zero"}
)


def output_values(functional: ExportedProgram) -> list[Any]:
    """Return the nodes or constants of a functional program's outputs.

    They are in the order of `Source.outputs`, without the parameters that a training program
    returns at the end.
    """
    values: Any = functional.graph.output_node().args[0]
    specs = functional.graph_signature.output_specs
    pairs = list(zip(specs, values, strict=True))
    ordered: list[Any] = []
    for kinds in _OUTPUT_ORDER:
        ordered += [value for spec, value in pairs if spec.kind in kinds]
    return ordered


def find_dependences(
    program: ExportedProgram, outputs: int, state: Collection[str]
) -> list[Dependence]:
    """Return what each output depends on, in the order of `Source.outputs`.

    Args:
        outputs: the number of outputs; those after the graph's outputs are parameters.
        state: the qualified names of buffers that change.
    """
    functional = functionalized(program)
    levels = find_levels(functional, state)
    dependences = [_level_of([value], levels) for value in output_values(functional)]
    parameters: list[Dependence] = ["nothing"] * (outputs - len(dependences))
    return [*dependences, *parameters]


def find_levels(
    functional: ExportedProgram, state: Collection[str]
) -> dict[Node, Dependence]:
    """Return the level of each node; a control-flow node has the greatest level of its operands."""
    varying = set()
    for spec in functional.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT or spec.target in state:
            varying.add(spec.arg.name)
    levels: dict[Node, Dependence] = {}
    for node in functional.graph.nodes:
        if node.op == "placeholder":
            levels[node] = "values" if node.name in varying else "nothing"
        elif base_name(node) in _OF_SIZES or _name(node) in _OF_SIZES:
            levels[node] = _level_of_sizes(node, levels)
        else:
            levels[node] = _level_of(node.all_input_nodes, levels)
    return levels


def _level_of_sizes(node: Node, levels: dict[Node, Dependence]) -> Dependence:
    """Return the level of a node that reads no values of its first argument."""
    level = _level_of([node.args[1:], node.kwargs], levels)
    first_level = _level_of([node.args[:1]], levels)
    if first_level != "nothing" and _has_dynamic_size(node.args[0]):
        return max(level, "sizes", key=_LEVELS.index)
    return level


def _name(node: Node) -> str:
    """Return the name of an operator on sizes, which torch also registers without overloads."""
    return str(getattr(node.target, "__name__", "")).partition(".")[0]


def _has_dynamic_size(value: Any) -> bool:
    fake = None
    if isinstance(value, Node):
        fake = value.meta.get("val")
    return any(not isinstance(size, int) for size in getattr(fake, "shape", ()))


def _level_of(arguments: Sequence[Any], levels: dict[Node, Dependence]) -> Dependence:
    """Return the greatest level of the nodes among the arguments."""
    nodes = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Node)]
    # A node without a level gets the greatest level: then the output is compared.
    node_levels = [levels.get(node, "values") for node in nodes]
    return max(node_levels, key=_LEVELS.index, default="nothing")
