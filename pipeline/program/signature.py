"""Reads a program's signature, and checks whether an input set fits it.

An input set is checked before any run, since ExecuTorch's runtime silently misreads a tensor with
another layout, or with a wrong size that fits into the planned memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

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

Pair = tuple[Argument, Any]  # an argument of the signature, and its value in a call


def signature(program: ExportedProgram) -> list[Argument]:
    """Return a program's user inputs as flat Arguments, in the order of its placeholders.

    Their values are fake tensors, SymInts, and constants.
    """
    placeholders = program.graph.find_nodes(op="placeholder")
    values = {node.name: node.meta.get("val") for node in placeholders}
    specs = program.graph_signature.input_specs
    user_inputs = [spec.arg for spec in specs if spec.kind is InputKind.USER_INPUT]
    args, kwargs = build_plain(user_inputs, call_signature(program).in_spec)
    arg_names, keywords = argument_names(program)
    trees = [*args, *kwargs.values()]
    arguments = []
    for name, tree in zip([*arg_names, *keywords], trees, strict=True):
        leaves, _ = pytree.tree_flatten_with_path(tree)
        for path, leaf in leaves:
            if isinstance(leaf, ConstantArgument):
                value = leaf.value
            else:
                value = values[leaf.name]
            arguments.append(Argument(name + pytree.keystr(path), value))
    return arguments


def leaf_signature(program: ExportedProgram) -> list[Argument]:
    """Return the signature with Leaf values, whose sizes use the program's own symbols."""

    def extent(size: int | torch.SymInt) -> Extent:
        size_expression = expression(size)
        least, greatest = bounds(program, size_expression)
        return Extent(size_expression, least, greatest)

    return [Argument(a.name, make_leaf(a.value, extent)) for a in signature(program)]


_KEPT: WeakKeyDictionary[ExportedProgram, list[Argument]] = WeakKeyDictionary()


def keep_signature(program: ExportedProgram) -> list[Argument]:
    """Return the signature of a program that doesn't change any more, computed only once."""
    if program not in _KEPT:
        _KEPT[program] = signature(program)
    return _KEPT[program]


def call_signature(program: ExportedProgram) -> Any:
    """Return the tree specs of a program's call, and its positional arguments' names.

    torch's `call_spec` makes a new class each time, which takes longer than a small method's call.
    """
    return program.module_call_graph[0].signature


def returned_values(program: ExportedProgram) -> list[tuple[str, Any]]:
    """Return the path (such as `[0]['key']`) and fake value of each leaf that a program returns."""
    nodes: Any = program.graph.output_node().args[0]
    output_specs = program.graph_signature.output_specs
    kinds = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    pairs = zip(output_specs, nodes, strict=True)
    returned = [node for output_spec, node in pairs if output_spec.kind in kinds]
    tree = build_plain(range(len(returned)), call_signature(program).out_spec)
    paths, _ = pytree.tree_flatten_with_path(tree)
    values = []
    for (path, _), node in zip(paths, returned, strict=True):
        value = node.meta["val"] if isinstance(node, Node) else node
        values.append((pytree.keystr(path), value))
    return values


def find_changed_inputs(functional: ExportedProgram) -> list[int]:
    """Return the positions of the user inputs that a functional (e.g. lowered) program changes."""
    specs = functional.graph_signature
    inputs = [s.arg.name for s in specs.input_specs if s.kind is InputKind.USER_INPUT]
    mutations = [
        s for s in specs.output_specs if s.kind is OutputKind.USER_INPUT_MUTATION
    ]
    return [inputs.index(mutation.target) for mutation in mutations]


def iter_dynamic_sizes(
    arguments: Iterable[Argument],
) -> Iterator[tuple[str, torch.SymInt]]:
    """Yield the name and value of each dynamic size or int: `x.shape[0]` and its SymInt."""
    for argument in arguments:
        if isinstance(argument.value, torch.SymInt):
            yield argument.name, argument.value
        elif isinstance(argument.value, torch.Tensor):
            for dimension, size in enumerate(argument.value.shape):
                if isinstance(size, torch.SymInt):
                    yield f"{argument.name}.shape[{dimension}]", size


def argument_names(program: ExportedProgram) -> tuple[list[str], list[str]]:
    """Return the names of a program's positional arguments and of its keyword arguments."""
    call = call_signature(program)
    args, kwargs = build_plain(range(call.in_spec.num_leaves), call.in_spec)
    names = (call.forward_arg_names or [])[: len(args)]
    names += [f"args[{number}]" for number in range(len(names), len(args))]
    return names, list(kwargs)


def check_inputs(program: ExportedProgram, inputs: InputSet, method: str = "") -> None:
    """Check that a program accepts an input set.

    Args:
        method: the method's name, which starts each line of the error; "" leaves it out.

    Raises:
        PipelineError: the program doesn't accept it; the error has one line per mistake, such as
            `encode: example 0: argument 'tokens': dtype float32, must be int64`.
    """
    pairs, mistakes = pair_leaves(program, inputs, leaf_signature(program))
    mistakes += check_values(pairs)
    if mistakes:
        label = f"{method}: {inputs.origin}" if method else inputs.origin
        raise PipelineError(*(f"{label}: {mistake}" for mistake in mistakes))


def flatten(
    program: ExportedProgram, inputs: InputSet, keep_strides: bool = False
) -> list[Any]:
    """Return copies of the leaves of a checked input set, in the order of the placeholders.

    Each tensor has the dim order that the program was exported with. With `keep_strides`, it has
    the strides of the input set's tensor instead, and a copy of that tensor's whole storage.
    """
    pairs, _ = pair_leaves(program, inputs, keep_signature(program))
    if keep_strides:
        return [_copy_storage(value) for _, value in pairs]
    return [in_dim_order(value, argument) for argument, value in pairs]


def _copy_storage(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    storage = value.untyped_storage().clone()
    tensor = torch.empty(0, dtype=value.dtype)
    return tensor.set_(
        storage,
        value.storage_offset(),
        value.shape,
        value.stride(),
    )


def as_exported(program: ExportedProgram, inputs: InputSet) -> InputSet:
    """Return a copy of a checked input set in the layouts and containers of the export."""
    leaves = flatten(program, inputs)
    args, kwargs = pytree.tree_unflatten(leaves, call_signature(program).in_spec)
    return InputSet(args, kwargs, inputs.origin, inputs.generated)


def nest_leaves(
    program: ExportedProgram,
    leaves: Sequence[Any],
    origin: str,
    generated: bool = False,
) -> InputSet:
    """Return the input set that has these leaves, given in the order of the signature."""
    args, kwargs = build_plain(leaves, call_signature(program).in_spec)
    return InputSet(args, kwargs, origin, generated)


def in_dim_order(value: Any, argument: Argument) -> Any:
    """Return a copy of a tensor in the dim order of an argument, whose value has the same rank.

    Any other value is returned unchanged.
    """
    if isinstance(value, torch.Tensor):
        return lay_out(value, argument.order)
    return value


def lay_out(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Return a copy of a tensor with this dim order, from the outermost to the innermost."""
    order = list(order)
    # The clone is contiguous in the given order; the second permutation restores the sizes, but
    # leaves the memory as it is.
    plain = value.detach().permute(order).clone(memory_format=torch.contiguous_format)
    return plain.permute([order.index(dimension) for dimension in range(len(order))])


def pair_leaves(
    program: ExportedProgram,
    inputs: InputSet,
    arguments: Sequence[Argument] | None = None,
) -> tuple[list[Pair], list[str]]:
    """Pair each argument of the signature with its value in an input set, in the signature's order.

    Args:
        arguments: the signature to use; by default the result of `signature`.

    Returns:
        The pairs, and one line for each place where the input set has another structure.
    """
    leaves = signature(program) if arguments is None else arguments
    args, kwargs = build_plain(leaves, call_signature(program).in_spec)
    pairs: list[Pair] = []
    mistakes: list[str] = []
    if len(args) != len(inputs.args):
        mistakes.append(f"{len(inputs.args)} positional arguments, must be {len(args)}")
    for name in sorted(inputs.kwargs.keys() - kwargs.keys()):
        mistakes.append(
            f"argument '{name}': unknown keyword; known: {', '.join(kwargs) or 'none'}"
        )
    for tree, value in zip(args, inputs.args, strict=False):
        pair_trees(tree, value, pairs, mistakes)
    for name, tree in kwargs.items():
        if name in inputs.kwargs:
            pair_trees(tree, inputs.kwargs[name], pairs, mistakes)
        else:
            mistakes.append(f"argument '{name}': missing, must be given by keyword")
    return pairs, mistakes


def pair_trees(
    expected: Any, value: Any, pairs: list[Pair], mistakes: list[str]
) -> None:
    """Add each Argument of the tree `expected` to `pairs`, with its value in the tree `value`.

    If the structures of the trees differ, a line is added to `mistakes` instead.
    """
    if isinstance(expected, Argument):
        pairs.append((expected, value))
        return
    is_sequence = isinstance(expected, (tuple, list))
    if type(value) is not type(expected):
        fits = False
    elif is_sequence:
        fits = len(value) == len(expected)
    else:
        fits = value.keys() == expected.keys()
    if not fits:
        name = next((argument.name for argument in pytree.tree_leaves(expected)), "")
        must_be = describe_type(expected)
        if not is_sequence:
            must_be += f" with the keys {', '.join(map(str, expected))}"
        mistakes.append(f"argument '{name}': {describe_type(value)}, must be {must_be}")
        return
    for key in range(len(expected)) if is_sequence else expected:
        pair_trees(expected[key], value[key], pairs, mistakes)


def expression(size: int | torch.SymInt) -> sympy.Expr:
    """Return the sympy expression of a size."""
    if isinstance(size, torch.SymInt):
        return size.node.expr
    return sympy.Integer(size)


def bounds(program: ExportedProgram, expr: sympy.Expr) -> tuple[int, int | None]:
    """Return the least and greatest size that a program accepts; None means no greatest size."""
    if expr.is_Integer:
        return int(expr), int(expr)
    allowed = program.range_constraints.get(expr)
    if allowed is None:
        return 0, None
    least = int(allowed.lower) if allowed.lower.is_Integer else 0
    greatest = int(allowed.upper) if allowed.upper.is_Integer else None
    return least, greatest
