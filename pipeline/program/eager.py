"""Runs the source program of a method in eager mode, for a package to be compared with."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from pipeline.program.buffers import find_common
from pipeline.program.inputs import InputSet
from pipeline.program.signature import (
    find_changed_inputs,
    flatten,
    in_dim_order,
    returned_values,
    signature,
)
from pipeline.program.training import find_training_outputs


class Source:
    """A source program in eager mode, with state of its own.

    `ExportedProgram.module()` shares its buffers with the program, so a run would change the
    program for whoever uses it next; what the program changes is copied first. `state` names those
    buffers, `nonzero` the ones of them that do not start as zeros. `outputs` holds the name and
    fake value of each output that the runtime returns: the inputs that the method changes in place
    come first, then what it returns; then, where it trains, gradients and parameters.

    Args:
        common: tensors by the name of a buffer, shared with other Sources: a buffer of such a name
            is that tensor, whether this program changes it or only reads it.
    """

    def __init__(
        self, program: ExportedProgram, common: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        self.program = program
        effects = find_effects(program)
        self.state, self.outputs, self._changed = effects.state, effects.outputs, effects.changed
        self._module = _inline_transforms(program).module(check_guards=False)
        trained = find_training_outputs(program)
        self._parameters = [name for name, _ in trained.parameters] if trained else []
        if trained:
            _return_flat(self._module)
        self._state = _give_own(self._module, self.state, common or {})
        self._initial = [tensor.detach().clone() for tensor in self._state]
        initial = zip(self.state, self._initial, strict=True)
        self.nonzero = tuple(name for name, tensor in initial if bool(tensor.any()))

    @classmethod
    def with_common_state(cls, programs: Mapping[str, ExportedProgram]) -> dict[str, Self]:
        """Make sources by method, which share the buffers of one name that any of them changes.

        A buffer begins as the first program has it.
        """
        common: dict[str, dict[str, torch.Tensor]] = {method: {} for method in programs}
        for name, methods in common_buffers(programs).items():
            first = programs[methods[0]]
            tensor = {**first.constants, **first.state_dict}[name].detach().clone()
            for method in methods:
                common[method][name] = tensor
        return {method: cls(program, common[method]) for method, program in programs.items()}

    def reset(self) -> None:
        """Restore the initial state."""
        with torch.no_grad():
            for tensor, initial in zip(self._state, self._initial, strict=True):
                tensor.copy_(initial)

    def run(self, inputs: InputSet, as_given: bool = False) -> list[Any]:
        """Return the flat outputs, as the runtime orders them; none shares memory with the state.

        The input set is left as it is; `as_given` is that of `flatten`.
        """
        return self._run(flatten(self.program, inputs, as_given))

    def run_flat(self, values: Sequence[Any]) -> list[Any]:
        """Run as `run` does, on leaves in the order of the program's inputs."""
        like = [argument.value for argument in signature(self.program)]
        return self._run([in_dim_order(v, e) for v, e in zip(values, like, strict=True)])

    def _run(self, leaves: list[Any]) -> list[Any]:
        with torch.no_grad():
            returned = self._call_module(leaves)
            parameters = [attrgetter(name)(self._module) for name in self._parameters]
        outputs = [leaves[index] for index in self._changed] + returned + parameters
        return [v.detach().clone() if isinstance(v, torch.Tensor) else v for v in outputs]

    def _call_module(self, leaves: list[Any]) -> list[Any]:
        args, kwargs = pytree.tree_unflatten(leaves, self.program.call_spec.in_spec)
        return pytree.tree_leaves(self._module(*args, **kwargs))


def _inline_transforms(program: ExportedProgram) -> ExportedProgram:
    """Return a program that opens no level of `torch.vmap` or `jvp`, as lowering has it: what fails
    before such a level is closed would leave it open for all that this process runs."""
    if any(getattr(n.target, "__module__", "") == _TRANSFORMS for n in program.graph.nodes):
        return program.run_decompositions({})
    return program


_TRANSFORMS = "torch._functorch.predispatch"


@dataclass(frozen=True)
class Effects:
    """The effects of a program.

    `state` has the qualified names of the buffers that it changes, `outputs` what `Source.outputs`
    has, `changed` the places of the inputs that it changes, among its flat ones.
    """

    state: tuple[str, ...]
    outputs: list[tuple[str, Any]]
    changed: list[int]


_EFFECTS: WeakKeyDictionary[ExportedProgram, Effects] = WeakKeyDictionary()


def find_effects(program: ExportedProgram) -> Effects:
    """Find the effects of a program once: decomposing it again takes seconds."""
    if program not in _EFFECTS:
        functional = functionalized(program)
        specs = functional.graph_signature.output_specs
        state = tuple(spec.target for spec in specs if spec.kind in _STATE and spec.target)
        changed = find_changed_inputs(functional)
        arguments, trained = signature(functional), find_training_outputs(functional)
        outputs = [
            *((name_changed_input(arguments[i].name), arguments[i].value) for i in changed),
            *((f"output{path}", value) for path, value in returned_values(functional)),
            *(trained.describe() if trained else ()),
        ]
        _EFFECTS[program] = Effects(state, outputs, changed)
    return _EFFECTS[program]


AFTER_CALL = " after the call"


def name_changed_input(argument: str) -> str:
    """Return the name in reports of an input that a method changes in place."""
    return f"input '{argument}'{AFTER_CALL}"


_STATE = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)


def functionalized(program: ExportedProgram) -> ExportedProgram:
    """Return the program with each change of a buffer or an input as an output in its signature."""
    # `torch.export.export` leaves `add_` and the like in the graph, and says nothing of them there.
    for graph_module in program.graph_module.modules():
        for node in graph_module.graph.nodes if isinstance(graph_module, GraphModule) else ():
            if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
                return program.run_decompositions({})
    return program


def _return_flat(module: GraphModule) -> None:
    """Let a module return all outputs in a row: that of a program that trains has the structure of
    the user's outputs alone, which the gradients do not fit."""
    codegen: Any = module.graph._codegen
    codegen.pytree_info = codegen.pytree_info._replace(out_spec=None)
    module.recompile()


def _give_own(
    module: torch.nn.Module, names: Sequence[str], common: Mapping[str, torch.Tensor]
) -> list[torch.Tensor]:
    """Replace the named tensors of a module by copies, and those of common names by these."""
    # Nothing else shares their memory: torch does not decompose a program that changes a buffer
    # with two names or a view beside it.
    own = {n: common[n] if n in common else copy.deepcopy(attrgetter(n)(module)) for n in names}
    for name, tensor in {**common, **own}.items():
        owner, _, attribute = name.rpartition(".")
        with suppress(AttributeError):  # another program's
            parent = module.get_submodule(owner)
            getattr(parent, attribute)
            setattr(parent, attribute, tensor)
    return list(own.values())


def common_buffers(programs: Mapping[str, ExportedProgram]) -> dict[str, tuple[str, ...]]:
    """Return the methods of each buffer that several use by one name and at least one changes."""
    return find_common({method: describe_used_buffers(p) for method, p in programs.items()})


def describe_used_buffers(program: ExportedProgram) -> dict[str, dict[str, Any]]:
    """Describe the buffers that a program reads or changes; an export lists all of its module."""
    changed = find_effects(program).state
    names = program.graph_signature.inputs_to_buffers
    read = (n for n in program.graph.nodes if n.op == "placeholder" and n.users)
    used = dict.fromkeys([*changed, *(names[n.name] for n in read if n.name in names)])
    tensors = {**program.constants, **program.state_dict}
    return {
        name: {
            "shape": list(tensors[name].shape),
            "dtype": str(tensors[name].dtype).removeprefix("torch."),
            "changed": name in changed,
        }
        for name in used
    }
