"""A program's signature, and whether an input set fits it.

An input set is checked before anything runs it: ExecuTorch's runtime reads a tensor of another
layout, or of a wrong size that fits into the planned memory, without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from pipeline.program.argument_specs import Argument, Extent, check_values, make_leaf
from pipeline.program.containers import build_plain
from pipeline.program.inputs import InputSet, describe_type
from pipeline.store.errors import PipelineError


def signature(program: ExportedProgram) -> list[Argument]:
    """Return the user's inputs of a program, flat, in the order of its placeholders.

    Their values are fake tensors, SymInts, and constants.
    """
    values = {n.name: n.meta.get("val") for n in program.graph.find_nodes(op="placeholder")}
    kept = [s.arg for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    trees = build_plain(kept, program.call_spec.in_spec)
    names = [name for kind in argument_names(program) for name in kind]
    arguments = []
    for name, tree in zip(names, [*trees[0], *trees[1].values()], strict=True):
        for path, arg in pytree.tree_flatten_with_path(tree)[0]:
            value = arg.value if isinstance(arg, ConstantArgument) else values[arg.name]
            arguments.append(Argument(name + pytree.keystr(path), value))
    return arguments


def leaf_signature(program: ExportedProgram) -> list[Argument]:
    """Return the signature with Leafs as values, whose sizes are in the program's own symbols."""

    def extent(size: int | torch.SymInt) -> Extent:
        found = expression(size)
        return Extent(found, *bounds(program, found))

    return [Argument(a.name, make_leaf(a.value, extent)) for a in signature(program)]


def returned_values(program: ExportedProgram) -> list[tuple[str, Any]]:
    """Return what a program returns, flat: paths such as `[0]['key']`, and fake values."""
    nodes: Any = program.graph.output_node().args[0]
    returned = [
        node
        for spec, node in zip(program.graph_signature.output_specs, nodes, strict=True)
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    ]
    spec = program.call_spec.out_spec
    paths = pytree.tree_flatten_with_path(build_plain(range(len(returned)), spec))[0]
    return [
        (pytree.keystr(path), node.meta["val"] if isinstance(node, Node) else node)
        for (path, _), node in zip(paths, returned, strict=True)
    ]


def find_changed_inputs(functional: ExportedProgram) -> list[int]:
    """Return the places of the inputs that a functional program, as a lowered one, changes."""
    specs = functional.graph_signature
    inputs = [s.arg.name for s in specs.input_specs if s.kind is InputKind.USER_INPUT]
    changed = [s.target for s in specs.output_specs if s.kind is OutputKind.USER_INPUT_MUTATION]
    return [inputs.index(name) for name in changed]


def iter_dynamic_sizes(arguments: Iterable[Argument]) -> Iterator[tuple[str, torch.SymInt]]:
    """Yield the dynamic sizes and ints of a program's signature: `x.shape[0]` and its value."""
    for argument in arguments:
        if isinstance(argument.value, torch.SymInt):
            yield argument.name, argument.value
        elif isinstance(argument.value, torch.Tensor):
            for dimension, size in enumerate(argument.value.shape):
                if isinstance(size, torch.SymInt):
                    yield f"{argument.name}.shape[{dimension}]", size


def argument_names(program: ExportedProgram) -> tuple[list[str], list[str]]:
    """Return the names of a program's positional arguments, and of those given by keyword."""
    spec = program.call_spec.in_spec
    args, kwargs = build_plain(range(spec.num_leaves), spec)
    called = program.module_call_graph[0].signature if program.module_call_graph else None
    known = (called.forward_arg_names if called is not None else None) or []
    return [*known[: len(args)], *(f"args[{i}]" for i in range(len(known), len(args)))], [*kwargs]


def check_inputs(program: ExportedProgram, inputs: InputSet, method: str = "") -> None:
    """Check that a program takes an input set.

    Args:
        method: begins each mistake, unless the caller names the method.

    Raises:
        PipelineError: it does not: one line a mistake, such as
            `encode: example 0: argument 'tokens': dtype float32, must be int64`.
    """
    mistakes: list[str] = []
    mistakes += check_values([*pair_leaves(program, inputs, mistakes, leaf_signature(program))])
    if mistakes:
        where = f"{method}: {inputs.origin}" if method else inputs.origin
        raise PipelineError(*(f"{where}: {m}" for m in mistakes))


def flatten(program: ExportedProgram, inputs: InputSet, as_given: bool = False) -> list[Any]:
    """Return copies of the leaves of a checked input set, in the order of the placeholders.

    Each tensor has the dim order that the program was exported with; or, `as_given`, the given
    tensor's strides, with whatever stands between its values.
    """
    return [
        _copy_storage(value) if as_given else in_dim_order(value, argument.value)
        for argument, value in pair_leaves(program, inputs, [])
    ]


def _copy_storage(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    storage = value.untyped_storage().clone()
    own = torch.empty(0, dtype=value.dtype)
    return own.set_(storage, value.storage_offset(), value.shape, value.stride())


def as_exported(program: ExportedProgram, inputs: InputSet) -> InputSet:
    """Return a copy of a checked input set in the layout, and in the containers, that the program
    was exported with."""
    leaves = flatten(program, inputs)
    args, kwargs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return InputSet(args, kwargs, inputs.origin, inputs.generated)


def nest_leaves(
    program: ExportedProgram, leaves: Sequence[Any], origin: str, generated: bool = False
) -> InputSet:
    """Return the input set with these leaves, in the order of the signature."""
    args, kwargs = build_plain(leaves, program.call_spec.in_spec)
    return InputSet(args, kwargs, origin, generated)


def in_dim_order(value: Any, like: Any) -> Any:
    """Return a copy of a tensor, laid out in the dim order of another one of its rank."""
    return lay_out(value, like.dim_order()) if isinstance(value, torch.Tensor) else value


def lay_out(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Return a copy of a tensor whose dimensions lie in this order, from the outermost on."""
    order = list(order)
    plain = value.detach().permute(order).clone(memory_format=torch.contiguous_format)
    return plain.permute([order.index(dimension) for dimension in range(len(order))])


def pair_leaves(
    program: ExportedProgram,
    inputs: InputSet,
    mistakes: list[str],
    arguments: Sequence[Argument] | None = None,
) -> Iterator[tuple[Argument, Any]]:
    """Yield each argument of the signature with what is given for it, in the signature's order.

    Args:
        mistakes: gets an entry where the given structure differs.
        arguments: by default those of `signature`.
    """
    leaves = signature(program) if arguments is None else list(arguments)
    args, kwargs = build_plain(leaves, program.call_spec.in_spec)
    if len(args) != len(inputs.args):
        mistakes.append(f"{len(inputs.args)} positional arguments, must be {len(args)}")
    for name in sorted(inputs.kwargs.keys() - kwargs.keys()):
        mistakes.append(f"argument '{name}': unknown keyword; known: {', '.join(kwargs) or 'none'}")
    for expected, given in zip(args, inputs.args, strict=False):
        yield from pair_trees(expected, given, mistakes)
    for name, expected in kwargs.items():
        if name in inputs.kwargs:
            yield from pair_trees(expected, inputs.kwargs[name], mistakes)
        else:
            mistakes.append(f"argument '{name}': missing, must be given by keyword")


def pair_trees(expected: Any, given: Any, mistakes: list[str]) -> Iterator[tuple[Argument, Any]]:
    """Yield the leaves of a tree of Arguments, each with the value in its place in another tree."""
    if isinstance(expected, Argument):
        yield expected, given
        return
    ordered = isinstance(expected, (tuple, list))
    fits = type(given) is type(expected) and len(given) == len(expected)
    if not fits or not (ordered or given.keys() == expected.keys()):
        name = next((a.name for a in pytree.tree_leaves(expected)), "")
        keys = "" if ordered else f" with the keys {', '.join(map(str, expected))}"
        mistakes.append(
            f"argument '{name}': {describe_type(given)}, must be {describe_type(expected)}{keys}"
        )
        return
    for key in range(len(expected)) if ordered else expected:
        yield from pair_trees(expected[key], given[key], mistakes)


def expression(size: int | torch.SymInt) -> sympy.Expr:
    """Return the expression of a size."""
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def bounds(program: ExportedProgram, expr: sympy.Expr) -> tuple[int, int | None]:
    """Return the least and the greatest value that a program takes for a size; None is no limit."""
    if expr.is_Integer:
        return int(expr), int(expr)
    allowed = program.range_constraints.get(expr)
    if allowed is None:
        return 0, None
    lower, upper = allowed.lower, allowed.upper
    return int(lower) if lower.is_Integer else 0, int(upper) if upper.is_Integer else None
