"""Runs a method's source program in eager mode, to compare its package with it."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from pipeline.moments import call_all
from pipeline.program.buffers import find_common
from pipeline.program.graphs import has_mutations
from pipeline.program.inputs import InputSet
from pipeline.program.signature import (
    call_signature,
    find_changed_inputs,
    flatten,
    in_dim_order,
    keep_signature,
    returned_values,
    signature,
)
from pipeline.program.training import describe_training_outputs, find_training_outputs

if TYPE_CHECKING:
    from pipeline.program.graph_runner import GraphRunner


class Source:
    """A source program in eager mode, with a private copy of its state.

    `ExportedProgram.module()` shares its buffers with the program, so a run would change the
    program for its next user. The buffers that the program changes are therefore copied first.

    Attributes:
        state: the names of the buffers and parameters that the program changes.
        nonzero: the names in `state` whose tensors don't start as zeros.
        outputs: the name and fake value of each output that the runtime returns: first the inputs
            that the method changes in place, then its returned values, then, if it trains, the
            gradients and parameters.
        module: the program's module, with this source's state.
        runner: runs the module node by node; None if the module is called directly.

    Args:
        common: tensors shared with other Sources, by buffer name. A buffer of such a name is that
            tensor, whether this program changes it or only reads it.
    """

    is_rounded = False  # whether runs round values at random

    def __init__(
        self, program: ExportedProgram, common: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        self.program = program
        effects = find_effects(program)
        self.state = effects.state
        self.outputs = effects.outputs
        self._changed = effects.changed
        self.module = _clone_tree(_make_module(program))
        self.runner: GraphRunner | None = None
        parameters = find_training_outputs(program).get("parameters", ())
        self._parameters = [name for name, _ in parameters]
        self._state = _replace_state(self.module, self.state, common or {})
        self._initial = [tensor.detach().clone() for tensor in self._state]
        initial = zip(self.state, self._initial, strict=True)
        self.nonzero = tuple(name for name, tensor in initial if bool(tensor.any()))

    def reseed(self, seed: int) -> None:
        """Set the seed of random rounding; this base class doesn't round, and ignores it."""

    @classmethod
    def with_common_state(
        cls, programs: Mapping[str, ExportedProgram]
    ) -> dict[str, Self]:
        """Return a source for each method; the sources share buffers as `common_buffers` says.

        A shared buffer starts with the value that it has in the first program.
        """
        common: dict[str, dict[str, torch.Tensor]] = {method: {} for method in programs}
        for name, methods in common_buffers(programs).items():
            first = programs[methods[0]]
            tensors = {**first.constants, **first.state_dict}
            tensor = tensors[name].detach().clone()
            for method in methods:
                common[method][name] = tensor
        return {
            method: cls(program, common[method]) for method, program in programs.items()
        }

    def reset(self) -> None:
        """Restore the initial state."""
        with torch.no_grad():
            for tensor, initial in zip(self._state, self._initial, strict=True):
                tensor.copy_(initial)

    def run(self, inputs: InputSet, keep_strides: bool = False) -> list[Any]:
        """Return the flat outputs in the runtime's order, without sharing memory with the state.

        The input set isn't changed. `keep_strides` is passed to `flatten`.
        """
        return self._run(flatten(self.program, inputs, keep_strides))

    def run_flat(self, values: Sequence[Any]) -> list[Any]:
        """Run as `run` does, on flat values in the order of the program's inputs."""
        arguments = keep_signature(self.program)
        pairs = zip(values, arguments, strict=True)
        return self._run([in_dim_order(value, argument) for value, argument in pairs])

    def _run(self, leaves: list[Any]) -> list[Any]:
        with torch.no_grad():
            returned = self._call_module(leaves)
            parameters = [attrgetter(name)(self.module) for name in self._parameters]
        changed_inputs = [leaves[index] for index in self._changed]
        outputs = []
        for value in (*changed_inputs, *returned, *parameters):
            if isinstance(value, torch.Tensor):
                value = value.detach().clone()
            outputs.append(value)
        return outputs

    def _call_module(self, leaves: list[Any]) -> list[Any]:
        if self.runner is not None:
            return pytree.tree_leaves(self.runner.run(*leaves))
        args, kwargs = pytree.tree_unflatten(
            leaves, call_signature(self.program).in_spec
        )
        return pytree.tree_leaves(self.module(*args, **kwargs))


_MODULES: WeakKeyDictionary[ExportedProgram, GraphModule] = WeakKeyDictionary()


def _make_module(program: ExportedProgram) -> GraphModule:
    """Return the module of a program, cached: generating its code again can take a second."""
    if program not in _MODULES:
        module = _inline_transforms(program).module(check_guards=False)
        if find_training_outputs(program):
            _return_flat(module)
        _MODULES[program] = module
    return _MODULES[program]


_Module = TypeVar("_Module", bound=torch.nn.Module)


def _clone_tree(module: _Module) -> _Module:
    """Return a copy of a module that shares its code and tensors, but lets them be replaced."""
    clone = object.__new__(type(module))
    clone.__dict__.update(module.__dict__)
    for name in ("_parameters", "_buffers", "_modules"):
        clone.__dict__[name] = dict(module.__dict__[name])
    for name, child in module._modules.items():
        if child is not None:
            clone._modules[name] = _clone_tree(child)
    return clone


def _inline_transforms(program: ExportedProgram) -> ExportedProgram:
    """Return the program, decomposed as for lowering if it opens a level of `torch.vmap` or `jvp`.

    If the program failed, such a level would stay open for everything this process runs later.
    """
    for node in program.graph.nodes:
        if getattr(node.target, "__module__", "") == _TRANSFORMS:
            return program.run_decompositions({})
    return program


_TRANSFORMS = "torch._functorch.predispatch"


@dataclass(frozen=True)
class Effects:
    """The state and inputs that a program changes, and its outputs.

    Attributes:
        state: the qualified names of the buffers and parameters that it changes.
        outputs: the same as `Source.outputs`.
        changed: the positions, among its flat inputs, of the inputs that it changes.
    """

    state: tuple[str, ...]
    outputs: list[tuple[str, Any]]
    changed: list[int]


_EFFECTS: WeakKeyDictionary[ExportedProgram, Effects] = WeakKeyDictionary()


def find_effects(program: ExportedProgram) -> Effects:
    """Return the effects of a program, cached: decomposing it again can take seconds."""
    if program not in _EFFECTS:
        _EFFECTS[program] = _find_effects(program)
    return _EFFECTS[program]


AFTER_CALL = " after the call"


def name_changed_input(argument: str) -> str:
    """Return the name that reports give to an input that a method changes in place."""
    return f"input '{argument}'{AFTER_CALL}"


_STATE = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
_STATE_INPUTS = (InputKind.BUFFER, InputKind.PARAMETER)


def _find_effects(program: ExportedProgram) -> Effects:
    if not has_mutations(program):
        return read_effects(program)
    specs = next(call_all("find_changed_specs", program), None)
    if specs is None:
        return read_effects(functionalized(program))
    state = [str(spec.target) for spec in specs if spec.kind in _STATE_INPUTS]
    inputs = enumerate(_user_inputs(program))
    changed = [place for place, spec in inputs if spec in specs]
    return Effects(tuple(state), _describe_outputs(program, changed), changed)


def read_effects(functional: ExportedProgram) -> Effects:
    """Read the effects of a functional program from its signature, which lists all of them."""
    specs = functional.graph_signature.output_specs
    state = tuple(spec.target for spec in specs if spec.kind in _STATE and spec.target)
    changed = find_changed_inputs(functional)
    outputs = _describe_outputs(functional, changed)
    outputs += describe_training_outputs(find_training_outputs(functional))
    return Effects(state, outputs, changed)


def _user_inputs(program: ExportedProgram) -> list[InputSpec]:
    specs = program.graph_signature.input_specs
    return [spec for spec in specs if spec.kind is InputKind.USER_INPUT]


def _describe_outputs(
    program: ExportedProgram, changed: Sequence[int]
) -> list[tuple[str, Any]]:
    """Return the name and fake value of each changed input, then of each returned value."""
    arguments = signature(program)
    outputs: list[tuple[str, Any]] = []
    for place in changed:
        argument = arguments[place]
        outputs.append((name_changed_input(argument.name), argument.value))
    for path, value in returned_values(program):
        outputs.append((f"output{path}", value))
    return outputs


def functionalized(program: ExportedProgram) -> ExportedProgram:
    """Return the program with each change of a buffer or input as an output of its signature."""
    # `torch.export.export` leaves in-place operators such as `add_` in the graph, and their effects
    # out of the signature.
    return program.run_decompositions({}) if has_mutations(program) else program


def _return_flat(module: GraphModule) -> None:
    """Make a module return all its outputs as a flat sequence.

    The output spec of a program that trains covers only the user's outputs, not the gradients.
    """
    codegen: Any = module.graph._codegen
    codegen.pytree_info = codegen.pytree_info._replace(out_spec=None)
    module.recompile()


def _replace_state(
    module: torch.nn.Module, names: Sequence[str], common: Mapping[str, torch.Tensor]
) -> list[torch.Tensor]:
    """Replace the state of a module by the common tensors, or else by copies, and return it.

    Nothing else shares the memory of these tensors: torch refuses to decompose a program that
    changes a buffer with two names, or a buffer of which another buffer is a view.
    """
    state = {**common}
    for name in names:
        if name not in common:
            state[name] = copy.deepcopy(attrgetter(name)(module))
    for name, tensor in state.items():
        owner, _, attribute = name.rpartition(".")
        with suppress(AttributeError):  # this program lacks the common buffer
            parent = module.get_submodule(owner)
            getattr(parent, attribute)
            setattr(parent, attribute, tensor)
    return [state[name] for name in names]


def common_buffers(
    programs: Mapping[str, ExportedProgram],
) -> dict[str, tuple[str, ...]]:
    """Return the buffers that several programs use and at least one changes, with their methods."""
    uses = {
        method: describe_used_buffers(program) for method, program in programs.items()
    }
    return find_common(uses)


def describe_used_buffers(program: ExportedProgram) -> dict[str, dict[str, Any]]:
    """Describe the buffers that a program reads or changes, but not its module's unused ones."""
    changed = find_effects(program).state
    names = program.graph_signature.inputs_to_buffers
    used = dict.fromkeys(changed)
    for node in program.graph.find_nodes(op="placeholder"):
        if node.users and node.name in names:
            used[names[node.name]] = None
    tensors = {**program.constants, **program.state_dict}
    buffers = {}
    for name in used:
        tensor = tensors[name]
        buffers[name] = {
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "changed": name in changed,
        }
    return buffers
