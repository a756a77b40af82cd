"""Runs a program and its eager reference on the same inputs, and records both.

Both run in eager mode under one recorder, so that a PyTorch operator makes the same kernel calls in
both. Afterwards the reference is unchanged: its tensors, attributes and mode are restored, and so
are the random number generators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from pipeline.features.divergences.places import Place, find_eager_place
from pipeline.features.divergences.python_state import PythonState, find_holders
from pipeline.features.divergences.storages import StorageKeeper, storage_key
from pipeline.features.divergences.trace import Trace
from pipeline.features.divergences.trace_recorder import TraceRecorder
from pipeline.program.eager import Source, find_effects
from pipeline.program.graphs import iter_nodes
from pipeline.program.inputs import InputSet
from pipeline.program.patching import wrapped
from pipeline.program.signature import as_exported, signature
from pipeline.validate.node_values import Walker

Labels = dict[tuple[Any, ...], tuple[str, str]]


class _RecordedSource(Source):
    """A program whose run is recorded."""

    recorder: TraceRecorder[Node | None]
    returned: list[Any]
    node: Node | None = None

    def _call_module(self, leaves: list[Any]) -> list[Any]:
        names = signature(self.program)
        labels: Labels = {}
        for argument, leaf in zip(names, leaves, strict=True):
            if isinstance(leaf, Tensor):
                labels[storage_key(leaf)] = ("input", argument.name)
        labels |= _label_program(self.program, self.module)
        self.recorder = TraceRecorder(lambda: self.node, labels, StorageKeeper())
        walker = _MarkingWalker(self.module, self._mark)
        with self.recorder:
            result = walker.run(*leaves, enable_io_processing=False)
        self.returned = pytree.tree_leaves(result)
        return self.returned

    def _mark(self, node: Node, value: Any) -> None:
        self.node = node

    def buffers(self) -> dict[str, Tensor]:
        """Return the buffers that the program changes, by name."""
        return dict(zip(self.state, self._state, strict=True))

    def begin_with(self, state: Mapping[str, Tensor]) -> None:
        """Set the buffers of these names, which the program changes."""
        buffers = self.buffers()
        with torch.no_grad():
            for name, value in state.items():
                buffers[name].copy_(value)


class _MarkingWalker(Walker):
    """Passes each node to a callback before it runs."""

    def run_node(self, n: Node) -> Any:
        self._keep(n, None)
        return torch.fx.Interpreter.run_node(self, n)


def _label_program(program: ExportedProgram, module: GraphModule) -> Labels:
    specs = program.graph_signature
    labels: Labels = {}
    kinds = (("parameter", specs.parameters), ("buffer", specs.buffers))
    for kind, names in (*kinds, ("constant", specs.lifted_tensor_constants)):
        for name in names:
            value = _find_attribute(module, name)
            if isinstance(value, Tensor):
                labels.setdefault(storage_key(value), (kind, name))
    return labels


def _find_attribute(module: nn.Module, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def find_state(
    program: ExportedProgram, holders: Mapping[int, tuple[str, Any]]
) -> dict[str, Tensor]:
    """Return the reference's present values of the buffers that a program changes.

    The keys are the program's names; a wrapper may have added a prefix to them.
    """
    state: dict[str, Tensor] = {}
    buffers = list(_iter_buffers(holders))
    for name in find_effects(program).state:
        for buffer_name, tensor in buffers:
            if f".{name}".endswith(f".{buffer_name}") or f".{buffer_name}".endswith(
                f".{name}"
            ):
                state.setdefault(name, tensor)
    expected = {**program.state_dict, **program.constants}
    return {name: t for name, t in state.items() if t.shape == expected[name].shape}


def run_program(
    program: ExportedProgram, inputs: InputSet, state: Mapping[str, Tensor]
) -> Trace[Node | None]:
    """Run a program on an input set, from its initial state except for the buffers in `state`."""
    source = _RecordedSource(program)
    source.begin_with(state)
    outputs = source.run(inputs)
    recorder = source.recorder
    changed = len(outputs) - len(source.returned)
    names = [name for name, _ in source.outputs]
    for name, value in zip(names[:changed], outputs[:changed], strict=True):
        recorder.add_output(name, value)
    for name, value in source.buffers().items():
        recorder.add_output(f"buffer '{name}' after the call", value)
    for number, value in enumerate(source.returned):
        recorder.add_output(f"output {number}", value)
    trace = recorder.trace
    trace.returned = source.returned
    trace.autocasts = any(
        "wrap_with_autocast" in str(node.target) for node in iter_nodes(program)
    )
    return trace


def run_reference(
    reference: Callable[..., object], program: ExportedProgram, inputs: InputSet
) -> Trace[Place]:
    """Run a reference on an input set. Raises whatever the reference raises."""
    exported_inputs = as_exported(program, inputs)
    leaves = pytree.tree_leaves((exported_inputs.args, exported_inputs.kwargs))
    holders = find_holders(reference)
    labels = _label_holders(holders)
    arguments = signature(program)
    for argument, leaf in zip(arguments, leaves, strict=True):
        if isinstance(leaf, Tensor):
            labels[storage_key(leaf)] = ("input", argument.name)
    with _preserved(holders) as (state, storages):
        outermost = _call.__code__
        recorder = TraceRecorder(
            lambda: find_eager_place(holders, outermost), labels, storages
        )
        with _watching_autocast() as entered:
            returned = pytree.tree_leaves(_call(recorder, reference, exported_inputs))
        for argument, leaf in zip(arguments, leaves, strict=True):
            recorder.add_output(f"input '{argument.name}' after the call", leaf)
        for name, buffer in _iter_buffers(holders):
            recorder.add_output(f"buffer '{name}' after the call", buffer)
        for number, value in enumerate(returned):
            recorder.add_output(f"output {number}", value)
        # Returned tensors may share memory that is about to be restored.
        copies = [v.detach().clone() if isinstance(v, Tensor) else v for v in returned]
    trace = recorder.trace
    trace.returned = copies
    trace.autocasts = bool(entered)
    trace.changed = state.changed
    trace.holders = holders
    return trace


@contextmanager
def _watching_autocast() -> Iterator[list[bool]]:
    """Yield a list that is empty as long as nothing enters autocast."""
    entered: list[bool] = []

    def enter(original: Callable[[Any], Any], context: Any) -> Any:
        if context._enabled:
            entered.append(True)
        return original(context)

    with wrapped(torch.amp.autocast_mode.autocast, "__enter__", enter):
        yield entered


def _call(
    recorder: TraceRecorder[Place],
    reference: Callable[..., object],
    inputs: InputSet,
) -> object:
    # A compiled module runs fused kernels, which aren't operators of a program.
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), recorder:
        return reference(*inputs.args, **inputs.kwargs)


@contextmanager
def _preserved(
    holders: Mapping[int, tuple[str, Any]],
) -> Iterator[tuple[PythonState, StorageKeeper]]:
    """Restore everything that a run may change in a reference."""
    state = PythonState(dict(holders))
    storages = StorageKeeper()
    with ExitStack() as stack:
        # Callbacks run backwards: memory is restored first, then the attributes that hold it.
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        stack.callback(state.restore)
        stack.callback(storages.restore)
        stack.enter_context(torch.no_grad())
        yield state, storages


def _label_holders(holders: Mapping[int, tuple[str, Any]]) -> Labels:
    labels: Labels = {}
    for name, holder in holders.values():
        prefix = f"{name}." if name else ""
        if isinstance(holder, nn.Module):
            for key, tensor in holder._parameters.items():
                _label(labels, tensor, "parameter", prefix + key)
            for key, tensor in holder._buffers.items():
                _label(labels, tensor, "buffer", prefix + key)
        for key, value in vars(holder).items():
            values = [value] if isinstance(value, Tensor) else _elements(value)
            for tensor in values:
                _label(labels, tensor, "attribute", prefix + key)
    return labels


def _elements(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return value
    return ()


def _label(labels: Labels, tensor: Any, kind: str, name: str) -> None:
    if isinstance(tensor, Tensor):
        labels.setdefault(storage_key(tensor), (kind, name))


def _iter_buffers(
    holders: Mapping[int, tuple[str, Any]],
) -> Iterator[tuple[str, Tensor]]:
    for name, holder in holders.values():
        if isinstance(holder, nn.Module):
            for key, tensor in holder._buffers.items():
                if tensor is not None:
                    yield (f"{name}.{key}" if name else key), tensor
