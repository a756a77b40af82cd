"""Finds the inputs that a program mutates from its operators alone, without functionalizing it.

`torch.export.export` leaves `add_` and similar operators in the graph, but out of the signature.
Decomposing a program again turns the mutations into outputs, but takes a second per hundred
operators.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind
from torch.fx import Node

from pipeline.program.graphs import is_mutable, iter_all_nodes

# Operators that always return a view. Others, such as `reshape`, may also return a copy, so only
# running them shows what a change of their result mutates.
_VIEWS = frozenset(
    {
        "alias",
        "as_strided",
        "chunk",
        "detach",
        "diagonal",
        "expand",
        "movedim",
        "narrow",
        "permute",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unflatten",
        "unfold",
        "unsqueeze",
        "view",
    }
)
# Composite operators whose result never shares memory with an argument.
_NEW = frozenset(
    {
        "batch_norm",
        "conv1d",
        "conv2d",
        "conv3d",
        "group_norm",
        "layer_norm",
        "linear",
        "matmul",
        "scaled_dot_product_attention",
    }
)
# Operators that give a tensor other memory, or another size.
_REPLACING = frozenset({"set_", "resize_", "resize_as_"})
# Operators that change the running statistics in their arguments, which their schemas don't show.
_BATCH_NORMS = frozenset(
    {"batch_norm", "instance_norm", "native_batch_norm", "cudnn_batch_norm"}
)
_CHANGEABLE = (InputKind.BUFFER, InputKind.PARAMETER, InputKind.USER_INPUT)


class UncertainError(Exception):
    """Only functionalizing the program shows what it mutates."""


def find_certain_specs(program: ExportedProgram) -> list[InputSpec] | None:
    """Return what `find_changed_specs` returns, or None if it is uncertain."""
    try:
        return find_changed_specs(program)
    except UncertainError:
        return None


def find_changed_specs(program: ExportedProgram) -> list[InputSpec]:
    """Return the buffers, parameters and inputs that a program mutates.

    They are in the order of the program's placeholders. Raises UncertainError.
    """
    _check_structure(program)
    specs = dict(
        zip(
            program.graph.find_nodes(op="placeholder"),
            program.graph_signature.input_specs,
            strict=True,
        )
    )
    origins = Origins()
    changed: dict[Node, None] = {}
    for node in program.graph.nodes:
        if is_mutable(node):
            for argument in _changed_arguments(node):
                changed.update(dict.fromkeys(origins.find(argument)))
        origins.add(node)
    changed_specs = []
    for placeholder, spec in specs.items():
        if placeholder in changed:
            changed_specs.append(spec)
    _check_changed(program, changed_specs)
    return changed_specs


class Origins:
    """The values whose memory each value of a graph shares: itself, or the bases that it views."""

    def __init__(self) -> None:
        # None means uncertain: the value may share memory or have new memory.
        self._origins: dict[Node, tuple[Node, ...] | None] = {}

    def find(self, node: Node) -> tuple[Node, ...]:
        """Return the nodes whose memory a value shares. Raises UncertainError."""
        origins = self._origins[node]
        if origins is None:
            raise UncertainError
        return origins

    def add(self, node: Node) -> None:
        """Record whose memory the result of a node shares."""
        if node.op != "call_function":
            self._origins[node] = (node,)
        elif node.target is operator.getitem:
            self._origins[node] = self._origins[_node(node.args[0])]
        elif isinstance(node.target, OpOverload):
            self._origins[node] = self._find_origins(node, node.target)
        elif isinstance(node.target, HigherOrderOperator):
            self._origins[node] = None  # a body may return its argument
        else:  # arithmetic on sizes
            self._origins[node] = (node,)

    def _find_origins(self, node: Node, target: OpOverload) -> tuple[Node, ...] | None:
        aliased = []
        for parameter, value in _arguments(node, target):
            if parameter.alias_info is not None:
                aliased.append(value)
        if not aliased:
            # A composite operator may return its argument even so, as dropout does.
            is_new = _name(target) in _NEW or not target._can_decompose()
            return (node,) if is_new else None
        is_view = target._schema.is_mutable or _name(target) in _VIEWS
        if target.namespace != "aten" or not is_view or len(aliased) > 1:
            return None
        return self._origins[_node(aliased[0])]


def _check_structure(program: ExportedProgram) -> None:
    """Raise UncertainError if the program contains anything that this module doesn't follow."""
    for spec in program.graph_signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise UncertainError
    for node in iter_all_nodes(program):
        target = node.target
        if not isinstance(target, OpOverload):
            continue
        if _name(target) in _REPLACING or _changes_statistics(node):
            raise UncertainError
        is_body = node.graph is not program.graph
        if is_mutable(node) and (is_body or target.namespace != "aten"):
            raise UncertainError


def _check_changed(program: ExportedProgram, specs: list[InputSpec]) -> None:
    """Raise UncertainError for mutations that torch refuses to functionalize.

    The mutated tensor is a lifted constant, or shares its memory with another tensor.
    """
    tensors = {**program.constants, **program.state_dict}
    memories = Counter(
        tensor.untyped_storage().data_ptr()
        for tensor in tensors.values()
        if isinstance(tensor, torch.Tensor)
    )
    for spec in specs:
        if spec.kind not in _CHANGEABLE:
            raise UncertainError
        if spec.kind is not InputKind.USER_INPUT:
            tensor = tensors[str(spec.target)]
            if tensor.numel() and memories[tensor.untyped_storage().data_ptr()] > 1:
                raise UncertainError


def _changed_arguments(node: Node) -> Iterator[Node]:
    """Yield the arguments that a node mutates. Raises UncertainError for lists of tensors."""
    for parameter, value in _arguments(node, node.target):
        if parameter.alias_info and parameter.alias_info.is_write:
            yield _node(value)


def _arguments(node: Node, target: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each parameter of an operator that a call passes, with its value."""
    parameters = target._schema.arguments
    for place, parameter in enumerate(parameters):
        if parameter.name in node.kwargs:
            yield parameter, node.kwargs[parameter.name]
        elif place < len(node.args) and not parameter.kwarg_only:
            yield parameter, node.args[place]


def _node(value: Any) -> Node:
    if not isinstance(value, Node):
        raise UncertainError
    return value


def _changes_statistics(node: Node) -> bool:
    """Return whether a node may be a batch norm in training mode."""
    if (
        not isinstance(node.target, OpOverload)
        or _name(node.target) not in _BATCH_NORMS
    ):
        return False
    for parameter, value in _arguments(node, node.target):
        if parameter.name in ("training", "use_input_stats"):
            return value is not False
    return True


def _name(target: OpOverload) -> str:
    return target._schema.name.partition("::")[2]
