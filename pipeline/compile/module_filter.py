"""Partitioners as a config asks for them: confined to sub-modules, and kept out of branches.

ExecuTorch's partitioners look at a whole method. Here one is asked as it is, and then what it chose
outside the modules loses its tag. What is left of a partition may depend on itself in a circle
through what was taken out, so it is split where needed; a partition that lies inside altogether is
left as it was.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data, tag_mutated_buffer
from executorch.exir.graph_module import get_control_flow_submodules
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from pipeline.backends import Backend, PartitionerSpec, make_partitioners, with_partitioner
from pipeline.compile.inspect.reasons import listening, note
from pipeline.program.graphs import copied, graph_modules
from pipeline.program.module_paths import Choice, Frame, Outline, make_outline, mistakes
from pipeline.program.operators import operator_of
from pipeline.store.errors import PipelineError

_TAG = "delegation_tag"
_RANGE = "choose_qparams"


class SharedConstantsError(Exception):
    """A partitioner wants constants that a branch takes as operands too. `names` are those of
    their placeholders."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = sorted(names)


def confined_partitioners(
    specs: Iterable[PartitionerSpec], modules: Sequence[str] | None = None
) -> list[Partitioner]:
    """The partitioners of a method, in their order; none for a backend that lowers by passes.

    Args:
        modules: qualified names of sub-modules; with them, no partitioner delegates anything else.
    """
    specs = with_partitioner(specs)
    made = zip(make_partitioners(specs), specs, strict=True)
    return [
        Confined(partitioner, (modules, spec.modules), spec.backend) for partitioner, spec in made
    ]


class Confined(Partitioner):
    """A partitioner, with what it may not have taken from it. Notes in nodes why it left them."""

    def __init__(
        self,
        inner: Partitioner,
        confines: Iterable[Sequence[str] | None] = (),
        backend: Backend | None = None,
    ) -> None:
        super().__init__()
        self.inner = inner
        self.backend = backend
        self.confines = [Choice(tuple(modules)) for modules in confines if modules is not None]
        if hasattr(inner, "delegation_spec"):
            self.delegation_spec = inner.delegation_spec

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Those of the partitioner; but of what it may not or can't delegate, everything is
        decomposed. Partitioners that check each node look at the outermost graph only
        (canonical_partitioners/config_partitioner.py), and what they keep whole in a branch
        nobody delegates: it ends in "was not decomposed or delegated"."""
        kept, check = self.inner.ops_to_not_decompose(ep)
        branches = check is not None and get_control_flow_submodules(ep.graph_module)
        if not self.confines and not branches:
            return kept, check
        outermost = ep.graph_module.graph

        def wanted(node: Node) -> bool:
            if not self._inside(node) or (check is not None and node.graph is not outermost):
                return False
            return check is None or check(node)

        return kept, wanted

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Raises SharedConstantsError."""
        with listening(self.backend, self.inner, exported_program) as why:
            result = self.inner.partition(exported_program)
        program = result.tagged_exported_program
        for node in program.graph.nodes:
            if _is_branch(node):  # Core ML's takes every `get_attr`
                node.meta.pop(_TAG, None)
        if self.confines:
            result = PartitionResult(program, self._confine(program, result.partition_tags))
        shared = [n.name for n in program.graph.nodes if _shared_with_branch(n)]
        if shared:
            raise SharedConstantsError(shared)
        note(self.backend, program, why, self._outside(program))
        return result

    def _outside(self, program: ExportedProgram) -> dict[Node, str]:
        """What stands in none of the modules, with what the config says."""
        return {
            node: f"outside of `modules: [{', '.join(modules.names)}]`"
            for modules in self.confines
            for module in graph_modules(program.graph_module)
            for node in module.graph.nodes
            if node.op == "call_function" and not _belongs(node, modules)
        }

    def _inside(self, node: Node) -> bool:
        return all(_belongs(node, modules) for modules in self.confines)

    def _confine(self, program: ExportedProgram, tags: dict[str, Any]) -> dict[str, Any]:
        """Takes tags from what lies outside, in place. Returns those that are left."""
        left: dict[str, Any] = {}
        held_constants = held_buffers = False
        for module in graph_modules(program.graph_module):
            chosen: dict[str, list[Node]] = defaultdict(list)
            for node in module.graph.nodes:
                if _TAG not in node.meta:
                    continue
                if node.op == "placeholder":  # goes with its users, again below
                    held_constants = True
                    held_buffers |= node.name in _mutated(program)
                    del node.meta[_TAG]
                else:
                    chosen[node.meta[_TAG]].append(node)
            cut = {}
            for tag, nodes in chosen.items():
                kept = [node for node in nodes if self._inside(node)]
                for node in nodes:
                    if node not in kept:
                        del node.meta[_TAG]
                if len(kept) == len(nodes):
                    left[tag] = tags[tag]
                elif kept:
                    cut[tag] = kept
                    for node in kept:
                        del node.meta[_TAG]
            for tag, nodes in cut.items():
                for number, part in enumerate(_split(module, nodes)):
                    for node in part:
                        node.meta[_TAG] = f"{tag}_{number}"
                    left[f"{tag}_{number}"] = tags[tag]
        if held_constants:
            tag_constant_data(program)
        if held_buffers:
            tag_mutated_buffer(program)
        return left


class OneBackend(Partitioner):
    """Delegates the whole of some sub-modules to one backend, whatever they hold: each module is a
    delegate, or several where what is called in between would depend on itself."""

    def __init__(
        self, backend_id: str, compile_specs: list[CompileSpec], modules: Sequence[str]
    ) -> None:
        super().__init__()
        self.delegation_spec = DelegationSpec(backend_id, compile_specs)
        self.modules = tuple(modules)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        tags: dict[str, Any] = {}
        for module in graph_modules(exported_program.graph_module):
            for name in self.modules:
                choice = Choice((name,))
                nodes = [n for n in module.graph.nodes if _delegable(n) and _belongs(n, choice)]
                for part in _split(module, nodes):
                    tag = f"{name}_{len(tags)}"
                    tags[tag] = self.delegation_spec
                    for node in part:
                        node.meta[_TAG] = tag
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, tags)


def _delegable(node: Node) -> bool:
    """Whether it calls an operator that no other delegate has; a control flow itself is none."""
    moves = isinstance(node.target, torch._ops.HigherOrderOperator)
    return node.op == "call_function" and not moves and _TAG not in node.meta


def refuse_wrong_modules(
    programs: Mapping[str, ExportedProgram], partitioners: Mapping[str, Sequence[Partitioner]]
) -> None:
    """Raises PipelineError where a partitioner is confined to a module that its method lacks, to
    what is no module, or to one of several calls without saying which. All of it is told."""
    wrong = []
    for method, own in partitioners.items():
        confines = [each for p in own if isinstance(p, Confined) for each in p.confines]
        if confines:
            outline = outline_of(programs[method])
            told = [each for choice in confines for each in mistakes(choice.names, outline)]
            where = f"{method}: " if method else ""  # one program by itself has no name
            wrong += [f"{where}{what}; {known}" for what, known in dict.fromkeys(told)]
    if wrong:
        raise PipelineError("\n".join(wrong))


def separate_constants(program: ExportedProgram, names: Collection[str]) -> ExportedProgram:
    """The program, whose control flow takes these constants, named by their placeholders, by
    placeholders of its own. They hold the same tensors, and equal constants are emitted once."""
    module = copied(program.graph_module)
    signature = copy.deepcopy(program.graph_signature)
    state, constants = dict(program.state_dict), dict(program.constants)
    placeholders = {node.name: node for node in module.graph.nodes if node.op == "placeholder"}
    specs = []
    for spec in signature.input_specs:
        specs.append(spec)
        name = getattr(spec.arg, "name", "")
        if name not in names or not _of_control_flow(placeholders[name]):
            continue
        with module.graph.inserting_after(placeholders[name]):
            own = module.graph.placeholder(f"{name}_of_branches")
        own.meta = dict(placeholders[name].meta)
        for user in list(placeholders[name].users):
            if isinstance(user.target, torch._ops.HigherOrderOperator):
                user.replace_input_with(placeholders[name], own)
        target = f"{spec.target}_of_branches"
        values = constants if spec.target in constants else state
        values[target] = values[spec.target]
        arg = dataclasses.replace(spec.arg, name=own.name)
        specs.append(dataclasses.replace(spec, arg=arg, target=target))
    signature.input_specs = specs
    module.recompile()
    return program._update(module, signature, state_dict=state, constants=constants)


def outline_of(program: ExportedProgram) -> Outline:
    """What a program says of its modules."""
    nodes = (n for module in graph_modules(program.graph_module) for n in module.graph.nodes)
    tensors = {**program.constants, **program.state_dict}
    kinds = {name: _kind(name, program) for name, t in tensors.items() if torch.is_tensor(t)}
    storages = {name: _storage(tensors[name]) for name in kinds}
    listed = [entry.fqn for entry in program.module_call_graph]
    return make_outline(map(_stack, nodes), listed, kinds, storages)


def _kind(name: str, program: ExportedProgram) -> str:
    if isinstance(program.state_dict.get(name), torch.nn.Parameter):
        return "parameter"
    signature = program.graph_signature
    of = ((signature.parameters, "parameter"), (signature.buffers, "buffer"))
    found = (kind for names, kind in of if name in names)
    return next(found, "buffer" if name in program.state_dict else "constant")


def _storage(tensor: torch.Tensor) -> Any:
    place = tensor.untyped_storage()._cdata
    return place, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())


def _stack(node: Node) -> list[Frame]:
    stack = node.meta.get("nn_module_stack") or {}
    return [Frame(str(key), path, _class(kind)) for key, (path, kind) in stack.items()]


def _class(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)


def _belongs(node: Node, modules: Choice) -> bool:
    """Whether a node stands in one of these modules.

    Quantization puts its nodes between modules: a dequantize goes with what reads it, a quantize
    with what it quantizes, and with its reader where that has the range computed as it runs.
    """
    name = operator_of(node)
    item = node.target is operator.getitem
    source = node.args[0] if node.args and isinstance(node.args[0], Node) else None
    if item and source is not None and not operator_of(source).startswith(_RANGE):
        return _belongs(source, modules)
    if name.startswith(("dequantize", _RANGE)) or item or _range_is_computed(node):
        return any(_belongs(user, modules) for user in node.users)
    if name.startswith("quantize"):
        return source is not None and _belongs(source, modules)
    return modules.holds(_stack(node))


def _range_is_computed(node: Node) -> bool:
    """Whether it quantizes with a range that is computed as it runs."""
    return operator_of(node).startswith("quantize") and any(
        isinstance(scale, Node) and scale.op == "call_function" for scale in node.args[1:3]
    )


def _mutated(program: ExportedProgram) -> set[str]:
    signature = program.graph_signature
    targets = set(signature.buffers_to_mutate.values())
    return {name for name, target in signature.inputs_to_buffers.items() if target in targets}


def _is_branch(node: Node) -> bool:
    """Whether it is the sub-graph of a control flow."""
    return node.op == "get_attr" and _of_control_flow(node)


def _shared_with_branch(node: Node) -> bool:
    """Whether a constant that a delegate takes is an operand of a control flow as well. ExecuTorch
    copies a constant for each of its users, but doesn't see those operands, which stand in a
    list."""
    return node.op == "placeholder" and _TAG in node.meta and _of_control_flow(node)


def _of_control_flow(node: Node) -> bool:
    """Whether it is an operand of one."""
    return any(isinstance(user.target, torch._ops.HigherOrderOperator) for user in node.users)


def _split(module: GraphModule, nodes: Sequence[Node]) -> list[list[Node]]:
    """Parts of a partition that are connected, and none of which depends on itself through what is
    outside of it; all other partitions count as one node each.

    Each node gets the number of times that a path from the partition to it leaves the partition
    and comes back. Numbers never fall along a path, so nodes of one number have no way out and in
    again. A node that nothing outside reads goes with the first that reads it: the transposed
    weight of a layer with its product, wherever that stands.
    """
    own = set(nodes)
    order = _in_order(module, own)
    returns: dict[Node, int] = {}
    reached: dict[Any, int] = {}  # by node or tag: the highest number on a path to it, or -1
    for group in order:
        if len(group) == 1 and group[0] in own:
            node = group[0]
            inside = [returns[i] for i in node.all_input_nodes if i in own]
            outside = [reached[_unit(i, own)] + 1 for i in node.all_input_nodes if i not in own]
            returns[node] = max([0, *inside, *outside])
        else:
            before = [i for node in group for i in node.all_input_nodes if i not in group]
            numbers = [returns[i] if i in own else reached[_unit(i, own)] for i in before]
            reached[_unit(group[0], own)] = max([-1, *numbers])
    for group in reversed(order):
        if len(group) == 1 and group[0] in own and own.issuperset(group[0].users):
            returns[group[0]] = min((returns[u] for u in group[0].users), default=returns[group[0]])
    return _connected(nodes, returns)


def _unit(node: Node, own: Collection[Node]) -> Any:
    tag = node.meta.get(_TAG)
    return node if tag is None or node in own else tag


def _in_order(module: GraphModule, own: Collection[Node]) -> list[list[Node]]:
    """Nodes in an order of dependence, with every other partition as one."""
    groups: dict[Any, list[Node]] = defaultdict(list)
    for node in module.graph.nodes:
        groups[_unit(node, own)].append(node)
    waiting = {
        unit: {_unit(i, own) for node in group for i in node.all_input_nodes} - {unit}
        for unit, group in groups.items()
    }
    readers: dict[Any, list[Any]] = defaultdict(list)
    for unit, needs in waiting.items():
        for need in needs:
            readers[need].append(unit)
    ready = [unit for unit, needs in waiting.items() if not needs]
    order = []
    while ready:
        unit = ready.pop()
        order.append(groups[unit])
        for reader in readers[unit]:
            waiting[reader].discard(unit)
            if not waiting[reader]:
                ready.append(reader)
    assert len(order) == len(groups), "the partitioner's own partitions depend on each other"
    return order


def _connected(nodes: Sequence[Node], number: dict[Node, int]) -> list[list[Node]]:
    """Nodes of one number that are connected by edges between such, in the order of the graph."""
    parts: list[list[Node]] = []
    placed: set[Node] = set()
    for first in nodes:
        if first in placed:
            continue
        part, queue = {first}, [first]
        while queue:
            node = queue.pop()
            for other in (*node.all_input_nodes, *node.users):
                if other in number and number[other] == number[first] and other not in part:
                    part.add(other)
                    queue.append(other)
        placed |= part
        parts.append([node for node in nodes if node in part])
    return parts
