"""Traces a program for its decomposition without running it first.

Before torch traces a program, it runs the whole program on fake tensors to find which inputs it
changes, and which outputs share memory with inputs (torch 2.13,
`torch._functorch._aot_autograd.collect_metadata_analysis`). The schemas of most programs' operators
say so. For those, torch analyses a stand-in that changes the same inputs and returns new tensors of
the same kinds.

A program with symbolic sizes is run the first time that it is traced: a run fills caches of the
sizes of its inputs, and while torch traces, what it doesn't find there takes names in the graph. A
run also adds guards. Once a program was traced, decomposing the result again finds all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from functools import partial, wraps
from operator import getitem
from typing import Any

import torch
from torch._functorch import aot_autograd
from torch._functorch._aot_autograd.collect_metadata_analysis import (
    run_functionalized_fw_and_collect_metadata,
)
from torch._guards import detect_fake_mode
from torch._higher_order_ops.effects import has_effects
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import _trace
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_symbols, free_unbacked_symbols
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from pipeline.program.patching import replaced

_Function = Callable[..., Any]
# The functions that the stand-in relies on.
SOURCES = (
    _trace._aot_export_joint_with_descriptors,
    aot_autograd.aot_export_joint_with_descriptors,
    aot_autograd.create_aot_state,
    run_functionalized_fw_and_collect_metadata,
)
# Composite operators that always return new tensors. Others may return what they were given, as
# `dropout` does.
_COMPUTING = frozenset(
    f"aten::{name}"
    for name in (
        *("linear", "matmul", "conv1d", "conv2d", "conv3d", "conv2d.padding"),
        *("layer_norm", "group_norm", "rms_norm", "softmax.int", "log_softmax.int"),
        "scaled_dot_product_attention",
    )
)
# Changes to their results count differently from changes to other views.
_DETACHING = ("aten::detach", "aten::alias", "aten::lift_fresh")
# Operators that give a tensor other memory.
_MOVING = ("aten::set_", "aten::resize_", "aten::resize_as_")


# torch's operators, and ExecuTorch's copies of those that must not be decomposed yet, which run as
# the operators do.
_NAMESPACES = re.compile(r"\A(?:aten|EDGE_DO_NOT_DECOMP)\.")


class _UnknownEffectsError(Exception):
    """The graph doesn't say which tensors share memory."""


# The names of the parameters and buffers that a program changes, and fake tensors like those that
# it returns, none of which shares memory with an input.
_Effects = tuple[frozenset[str], Sequence[FakeTensor]]


def make_tracing(original: _Function) -> _Function:
    """Return a function that traces a program without running it first."""

    # The operators of traced programs that had symbolic sizes, by fake mode, of which each program
    # has its own.
    traced: MutableMapping[Any, frozenset[str]] = WeakIdKeyDictionary()

    def trace(stack: ExitStack, mod: Any, args: Any, **given: Any) -> Any:
        mode = detect_fake_mode(args)
        try:
            effects = _find_effects(mod, traced.get(mode) if mode else None)
        except _UnknownEffectsError:
            found = original(stack, mod, args, **given)
        else:
            with replaced(
                aot_autograd,
                "run_functionalized_fw_and_collect_metadata",
                lambda collect: partial(_collect, collect, effects),
            ):
                found = original(stack, mod, args, **given)
        if mode is not None:
            traced[mode] = _list_symbolic(found[0])
        return found

    return trace


def _list_symbolic(program: GraphModule) -> frozenset[str]:
    """Return the names of all operators that are called with, or return, symbolic sizes.

    A copy has the name of its operator. Only these operators can add guards.
    """
    return frozenset(
        _NAMESPACES.sub("", str(node.target), count=1)
        for node in program.graph.nodes
        if node.op == "call_function"
        and any(
            free_symbols(value.meta.get("val"))
            for value in (node, *node.all_input_nodes)
        )
    )


def _collect(
    collect: _Function,
    effects: _Effects,
    program: _Function,
    *,
    flat_args_descs: Sequence[Any],
    **given: Any,
) -> _Function:
    """Return a function that analyses a stand-in with the effects of the program."""
    changed, outputs = effects

    @wraps(program)
    def stand_in(*values: Any) -> list[torch.Tensor]:
        for value, described in zip(values, flat_args_descs, strict=True):
            if getattr(described, "target", None) in changed:
                value.copy_(torch.empty_like(value))
        return [
            torch.empty_strided(
                output.shape, output.stride(), dtype=output.dtype, device=output.device
            )
            for output in outputs
        ]

    return collect(stand_in, flat_args_descs=flat_args_descs, **given)  # type: ignore[no-any-return]


def _find_effects(module: Any, traced: AbstractSet[str] | None) -> _Effects:
    """Find what a program changes and returns.

    Args:
        traced: if this program was traced before, the operators that then had symbolic sizes.

    Raises:
        _UnknownEffectsError: its operators' schemas don't say, or operators have symbolic sizes
            that were not traced before.
    """
    if torch.is_grad_enabled() or not isinstance(module, GraphModule):
        raise _UnknownEffectsError
    is_traced = traced is not None and _list_symbolic(module) <= traced
    # For each value, the inputs that it shares memory with.
    inputs: dict[Node, frozenset[Node] | None] = {}
    changed: set[Node] = set()
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if (free_symbols(value) and not is_traced) or free_unbacked_symbols(value):
            raise _UnknownEffectsError
        if node.op in ("placeholder", "get_attr"):
            inputs[node] = frozenset((node,))
        elif node.op == "call_function" and not _has_hidden_effects(node.target):
            for changed_node in _find_changed(node):
                changed |= _known(inputs[changed_node])
            inputs[node] = _find_shared(node, inputs)
        elif node.op == "call_module":
            if node.users:  # it checks the inputs, and that is all
                raise _UnknownEffectsError
        elif node.op != "output":
            raise _UnknownEffectsError
    if any(node.op != "get_attr" for node in changed):
        raise _UnknownEffectsError
    returned = pytree.tree_leaves(module.graph.output_node().args[0])
    for value in returned:
        is_tensor = (
            isinstance(value, Node) and type(value.meta.get("val")) is FakeTensor
        )
        if not is_tensor or _known(inputs[value]):
            raise _UnknownEffectsError
    if len(set(returned)) < len(returned):
        raise _UnknownEffectsError
    names = frozenset(str(node.target) for node in changed)
    return names, [value.meta["val"] for value in returned]


def _has_hidden_effects(target: Any) -> bool:
    """Return whether an operator contains graphs, or is one that may not be reordered."""
    return isinstance(target, HigherOrderOperator) or has_effects(target)


def _known(inputs: frozenset[Node] | None) -> frozenset[Node]:
    if inputs is None:
        raise _UnknownEffectsError
    return inputs


def _find_changed(node: Node) -> Iterator[Node]:
    """Yield the arguments that a call changes in place."""
    target = node.target
    if isinstance(target, OpOverload) and target._schema.is_mutable:
        name = target.name().split(".")[0]
        if torch.Tag.inplace_view in target.tags or name in _MOVING:
            raise _UnknownEffectsError
        for argument, value in _pair_arguments(node, target):
            if argument.alias_info is not None and argument.alias_info.is_write:
                if not isinstance(value, Node):
                    raise _UnknownEffectsError
                yield value


def _find_shared(
    node: Node, inputs: Mapping[Node, frozenset[Node] | None]
) -> frozenset[Node] | None:
    """Return the inputs that the result of a call shares memory with; None if that is unknown."""
    target = node.target
    sources: Sequence[Any] = node.all_input_nodes
    if target is getitem:
        sources = node.args[:1]
    elif isinstance(target, OpOverload) and _has_true_schema(target):
        if target.name() in _DETACHING:
            return None
        sources = [
            value
            for argument, value in _pair_arguments(node, target)
            if argument.alias_info is not None
        ]
    elif any(inputs[source] != frozenset() for source in sources):
        return None
    shared: set[Node] = set()
    for source in sources:
        if not isinstance(source, Node) or (found := inputs[source]) is None:
            return None
        shared |= found
    return frozenset(shared)


def _has_true_schema(target: OpOverload) -> bool:
    """Return whether an operator's result shares memory exactly as its schema says."""
    return not target._can_decompose() or target.name() in _COMPUTING


def _pair_arguments(node: Node, target: OpOverload) -> Iterator[tuple[Any, Any]]:
    """Yield the arguments of a schema, each with the value that a call gives it."""
    for number, argument in enumerate(target._schema.arguments):
        if argument.name in node.kwargs:
            yield argument, node.kwargs[argument.name]
        elif number < len(node.args):
            yield argument, node.args[number]
