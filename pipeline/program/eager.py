"""The source program of a method in eager mode: what a package is compared with."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from pipeline.program.inputs import InputSet
from pipeline.program.signature import flat_as_given, flatten, in_dim_order, signature


class Source:
    """A source program in eager mode, with state of its own.

    `ExportedProgram.module()` shares its buffers with the program, so a run would change the
    program for whoever uses it next; what the program changes is copied first. `state` names those
    buffers, `nonzero` the ones of them that do not start as zeros. `outputs` holds the name and
    fake value of each output that the runtime returns: the inputs that the method changes in place
    come first, then what it returns.

    Args:
        common: tensors by the name of a buffer, shared with other Sources: a buffer of such a name
            is that tensor, whether this program changes it or only reads it.
    """

    def __init__(
        self, program: ExportedProgram, common: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        self.program = program
        facts = _facts(program)
        self.state, self.outputs, self._changed = facts.state, facts.outputs, facts.changed
        self._module = program.module(check_guards=False)
        self._state = _give_own(self._module, self.state, common or {})
        self._initial = [tensor.detach().clone() for tensor in self._state]
        self.nonzero = tuple(
            name
            for name, tensor in zip(self.state, self._initial, strict=True)
            if bool(tensor.any())
        )

    def reset(self) -> None:
        """Back to the initial state."""
        with torch.no_grad():
            for tensor, initial in zip(self._state, self._initial, strict=True):
                tensor.copy_(initial)

    def run(self, inputs: InputSet) -> list[Any]:
        """The flat outputs, as the runtime orders them, none of them sharing memory with the
        state. The input set is left as it is."""
        return self._run(flatten(self.program, inputs))

    def run_flat(self, values: Sequence[Any]) -> list[Any]:
        """As `run`, on leaves in the order of the program's inputs."""
        like = [argument.value for argument in signature(self.program)]
        return self._run([in_dim_order(v, e) for v, e in zip(values, like, strict=True)])

    def run_as_given(self, inputs: InputSet) -> list[Any]:
        """As `run`, on tensors that lie in memory as the given ones do."""
        return self._run(flat_as_given(self.program, inputs))

    def _run(self, leaves: list[Any]) -> list[Any]:
        args, kwargs = pytree.tree_unflatten(leaves, self.program.call_spec.in_spec)
        with torch.no_grad():
            returned = pytree.tree_leaves(self._module(*args, **kwargs))
        outputs = [leaves[index] for index in self._changed] + returned
        return [v.detach().clone() if isinstance(v, torch.Tensor) else v for v in outputs]


@dataclass(frozen=True)
class Facts:
    """What a program changes and gives; `changed` are the places of the inputs that it changes."""

    state: tuple[str, ...]
    outputs: list[tuple[str, Any]]
    changed: list[int]


_FACTS: WeakKeyDictionary[ExportedProgram, Facts] = WeakKeyDictionary()


def _facts(program: ExportedProgram) -> Facts:
    """Kept as long as the program is: decomposing one again takes seconds."""
    if program not in _FACTS:
        functional = _functionalized(program)
        specs = functional.graph_signature.output_specs
        state = tuple(spec.target for spec in specs if spec.kind in _STATE and spec.target)
        _FACTS[program] = Facts(state, *_outputs(functional))
    return _FACTS[program]


def outputs_of(program: ExportedProgram) -> list[tuple[str, Any]]:
    """As `Source.outputs`."""
    return _facts(program).outputs


def changed_inputs(program: ExportedProgram) -> list[int]:
    """The places of the inputs that a program changes, among its flat ones."""
    return _facts(program).changed


def changed_buffers(program: ExportedProgram) -> tuple[str, ...]:
    """The qualified names of the buffers that a program changes."""
    return _facts(program).state


_STATE = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


def _functionalized(program: ExportedProgram) -> ExportedProgram:
    """The program with every change of a buffer or an input as an output in its signature.

    `torch.export.export` leaves `add_` and the like in the graph, and says nothing of them there.
    """
    for graph_module in program.graph_module.modules():
        for node in graph_module.graph.nodes if isinstance(graph_module, GraphModule) else ():
            if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
                return program.run_decompositions({})
    return program


def _outputs(functional: ExportedProgram) -> tuple[list[tuple[str, Any]], list[int]]:
    """Names and fake values of what the runtime returns, and the places of the inputs among it."""
    inputs = functional.graph_signature.input_specs
    placeholders = [spec.arg.name for spec in inputs if spec.kind is InputKind.USER_INPUT]
    arguments = signature(functional)
    out_spec = functional.call_spec.out_spec
    returned = pytree.tree_unflatten(range(out_spec.num_leaves), out_spec)
    paths = iter(pytree.tree_flatten_with_path(returned)[0])
    outputs: list[tuple[str, Any]] = []
    changed: list[int] = []
    nodes = functional.graph.output_node().args[0]
    for spec, node in zip(functional.graph_signature.output_specs, nodes, strict=True):
        value = node.meta["val"] if isinstance(node, Node) else node
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            changed.append(placeholders.index(spec.target))
            outputs.append((f"input '{arguments[changed[-1]].name}' after the call", value))
        elif spec.kind not in _STATE:
            outputs.append((f"output{pytree.keystr(next(paths)[0])}", value))
    return outputs, changed


def _give_own(
    module: torch.nn.Module, names: Sequence[str], common: Mapping[str, torch.Tensor]
) -> list[torch.Tensor]:
    """Replaces the named tensors of a module by copies, and those of common names by these. Nothing
    else shares their memory: torch does not decompose a program that changes a buffer with two
    names or a view beside it."""
    own = []
    for name in names:
        parent, attribute = _place(module, name)
        own.append(common[name] if name in common else copy.deepcopy(getattr(parent, attribute)))
        setattr(parent, attribute, own[-1])
    for name in common.keys() - {*names}:
        parent, attribute = _place(module, name)
        if hasattr(parent, attribute):
            setattr(parent, attribute, common[name])
    return own


def _place(module: torch.nn.Module, name: str) -> tuple[torch.nn.Module | None, str]:
    """The module that holds a tensor, if there is one, and the tensor's name in it."""
    owner, _, attribute = name.rpartition(".")
    try:
        return module.get_submodule(owner), attribute
    except AttributeError:
        return None, attribute


def sources_with_common_state(programs: Mapping[str, ExportedProgram]) -> dict[str, Source]:
    """Sources by method, in which buffers of one name are one, as far as any of them changes it.
    It begins as the first that has it."""
    common: dict[str, torch.Tensor] = {}
    for name in common_buffers(programs):
        holders = (p.state_dict | p.constants for p in programs.values())
        first = next(tensors[name] for tensors in holders if name in tensors)
        common[name] = first.detach().clone()
    return {method: Source(program, common) for method, program in programs.items()}


def common_buffers(programs: Mapping[str, ExportedProgram]) -> dict[str, tuple[str, ...]]:
    """The buffers that several methods use under one name and at least one of them changes, each
    with these methods."""
    changed = dict.fromkeys(name for p in programs.values() for name in _facts(p).state)
    used = {method: _used_buffers(program) for method, program in programs.items()}
    using = {name: tuple(m for m, own in used.items() if name in own) for name in changed}
    return {name: methods for name, methods in using.items() if len(methods) > 1}


def _used_buffers(program: ExportedProgram) -> set[str]:
    """Those that it reads or changes; an export lists all that its module has."""
    names = program.graph_signature.inputs_to_buffers
    read = (n for n in program.graph.nodes if n.op == "placeholder" and n.users)
    return {names[n.name] for n in read if n.name in names} | {*_facts(program).state}
