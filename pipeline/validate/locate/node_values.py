"""Runs a source program node by node, through control flow too, and keeps the nodes' values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from executorch.exir.graph_module import get_control_flow_submodules
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from pipeline.program.eager import find_effects
from pipeline.program.graphs import iter_nodes
from pipeline.program.signature import in_dim_order, signature

# Bytes of values that are held, and passes through a loop's body; later ones are not compared.
MOST_BYTES = 1 << 30
MOST_VISITS = 32
_STATE = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


class NodeValues:
    """A program with state of its own, which lasts from call to call.

    Attributes:
        values: by place (`graphs.iter_nodes`), the values of a node in the last call, one for
            each time that it ran.
        left_out: places whose values were too much to hold.
    """

    def __init__(
        self, program: ExportedProgram, common: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Make copies of the state.

        Args:
            common: buffers by qualified name, which it shares with other programs.
        """
        self.program = program
        self.nodes = list(iter_nodes(program))
        self.values: dict[int, list[Any]] = {}
        self.left_out: set[int] = set()
        self._places = {node: place for place, node in enumerate(self.nodes)}
        self._lifted = _lifted(program, common or {})
        self._bytes = 0

    def call(self, inputs: Sequence[Any], wanted: Collection[int] | None = None) -> list[Any]:
        """Make one call on flat inputs, and return the flat outputs.

        They are in the order of ExecuTorch's runtime: inputs that the method changes come first.

        Args:
            wanted: the places whose values are to be kept; by default all.
        """
        self.values, self.left_out, self._bytes = {}, set(), 0
        like = [argument.value for argument in signature(self.program)]
        own = [in_dim_order(v, e) for v, e in zip(inputs, like, strict=True)]
        given = iter(own)
        arguments = [
            next(given) if spec.kind is InputKind.USER_INPUT else self._lifted[spec.arg.name]
            for spec in self.program.graph_signature.input_specs
        ]
        with torch.no_grad():
            walker = _Walker(self.program.graph_module, self, wanted)
            returned = pytree.tree_leaves(walker.run(*arguments), is_leaf=lambda v: v is None)
        outputs = []
        state, users = self.state(), self.program.graph_signature.user_inputs
        specs = self.program.graph_signature.output_specs
        for spec, value in zip(specs, returned, strict=True):
            if spec.kind in _STATE:
                state[str(spec.target)].copy_(value)
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                own[users.index(str(spec.target))].copy_(value)
            elif spec.kind is OutputKind.USER_OUTPUT:
                outputs.append(_copy(value))
        return [_copy(own[index]) for index in find_effects(self.program).changed] + outputs

    def state(self) -> dict[str, torch.Tensor]:
        """Return the buffers as they are now, by qualified name."""
        names = self.program.graph_signature.inputs_to_buffers
        return {target: self._lifted[name] for name, target in names.items()}

    def keep(self, node: Node, value: Any, wanted: Collection[int] | None) -> None:
        place = self._places.get(node)
        if place is None or (wanted is not None and place not in wanted):
            return
        if node.op not in ("call_function", "placeholder"):
            return
        size = sum(v.nbytes for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor))
        visits = self.values.setdefault(place, [])
        if len(visits) >= MOST_VISITS or self._bytes + size > MOST_BYTES:
            self.left_out.add(place)
            return
        self._bytes += size
        visits.append(pytree.tree_map(_copy, value))


class _Walker(Interpreter):
    """Runs through a graph once."""

    def __init__(
        self, module: GraphModule, values: NodeValues, wanted: Collection[int] | None
    ) -> None:
        super().__init__(module)
        self._node_values = values
        self._wanted = wanted
        self._bodies = [name for name, _, _ in get_control_flow_submodules(module)]

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        self._node_values.keep(n, value, self._wanted)
        return value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = _CONTROL_FLOW.get(target) if self._bodies else None
        if run is None:
            return super().call_function(target, args, kwargs)
        return run(self._enter, *args, **kwargs)

    def _enter(self, body: GraphModule, *args: Any) -> list[Any]:
        given = _Walker(body, self._node_values, self._wanted).run(*args)
        return list(given) if isinstance(given, (tuple, list)) else [given]


def _cond(enter: Any, predicate: Any, yes: Any, no: Any, operands: Sequence[Any] = ()) -> Any:
    return tuple(enter(yes if bool(predicate) else no, *operands))


def _while(
    enter: Any, condition: Any, body: Any, carried: Sequence[Any], more: Sequence[Any] = ()
) -> Any:
    while bool(enter(condition, *carried, *more)[0]):
        carried = enter(body, *carried, *more)
    return tuple(carried)


def _map(enter: Any, body: Any, over: Sequence[Any], more: Sequence[Any]) -> Any:
    rows = [enter(body, *(x[i] for x in over), *more) for i in range(over[0].shape[0])]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def _scan(
    enter: Any, body: Any, carried: Sequence[Any], over: Sequence[Any], more: Sequence[Any] = ()
) -> Any:
    rows = []
    state = list(carried)
    for i in range(over[0].shape[0]):
        given = enter(body, *state, *(x[i] for x in over), *more)
        state, row = given[: len(state)], given[len(state) :]
        rows.append(row)
    return [*state, *(torch.stack(column) for column in zip(*rows, strict=True))]


_CONTROL_FLOW: Mapping[Any, Any] = {
    torch.ops.higher_order.cond: _cond,
    torch.ops.higher_order.while_loop: _while,
    torch.ops.higher_order.map_impl: _map,
    torch.ops.higher_order.scan: _scan,
}


def run_together(programs: Mapping[str, ExportedProgram]) -> dict[str, NodeValues]:
    """Make the node values of methods that share state.

    Buffers of one name that any of the programs changes are one, and begin as the first that has
    it.
    """
    changed = {name for program in programs.values() for name in find_effects(program).state}
    common: dict[str, torch.Tensor] = {}
    for program in programs.values() if len(programs) > 1 else ():
        tensors = {**program.constants, **program.state_dict}
        for name in sorted(changed & tensors.keys() - common.keys()):
            common[name] = tensors[name].detach().clone()
    return {name: NodeValues(program, common) for name, program in programs.items()}


def _lifted(program: ExportedProgram, common: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return the tensors that a program holds, by placeholder; copies of its buffers."""
    tensors = {**program.constants, **program.state_dict}
    found = {}
    for spec in program.graph_signature.input_specs:
        name = str(spec.target)
        if spec.kind is InputKind.BUFFER:
            found[spec.arg.name] = common[name] if name in common else _copy(tensors.get(name))
        elif spec.kind is not InputKind.USER_INPUT:
            found[spec.arg.name] = tensors.get(name)
    return found


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
