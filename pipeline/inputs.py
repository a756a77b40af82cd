"""Input sets: the arguments of one call of a method, as examples give them or made up for it.

An input set is checked against the signature of the method's ExportedProgram before anything runs
it: ExecuTorch's runtime reads a tensor of another layout, or of a wrong size that fits into the
planned memory, without a word. Nothing here knows of packages, runtimes or the store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
import sympy
import torch
from safetensors import SafetensorError
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from pipeline.errors import PipelineError

# Where a dynamic dimension of a generated input ends, and how large such an input may become.
LONGEST_DIMENSION = 4096
MOST_ELEMENTS = 1 << 22

_SCALARS = (int, float, str, type(None))  # bool is an int


@dataclass(frozen=True, eq=False)
class InputSet:
    """`args` and `kwargs` may nest lists, tuples and dicts with str keys; leaves are tensors,
    numbers, bools, strings or None. `origin` says where the set is from, for messages."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    origin: str = "input"


def as_input_sets(value: Any, origin: str) -> list[InputSet]:
    """What an exporter returns, as numbered input sets: `example 0`, `example 1`, ...

    `value` is one tuple of arguments, or a list whose elements are each a tuple of arguments or an
    (args, kwargs) pair, that is a tuple and a dict. Raises PipelineError with all that is wrong.
    """
    calls = value if isinstance(value, list) else [value]
    sets: list[InputSet] = []
    mistakes = [] if calls else [f"{origin}: an empty list, must hold at least one input set"]
    for number, call in enumerate(calls):
        where = f"{origin} {number}"
        args, kwargs = call if _is_pair(call) else (call, {})
        if type(args) is tuple:
            mistakes += [f"{where}: {m}" for m in (*_foreign(args, "args"), *_foreign(kwargs, ""))]
            sets.append(InputSet(args, kwargs, where))
        else:
            wanted = "must be a tuple of arguments or an (args, kwargs) pair"
            mistakes.append(f"{where}: {_kind(args)}, {wanted}")
    if mistakes:
        raise PipelineError("\n".join(mistakes))
    return sets


def _is_pair(call: Any) -> bool:
    return type(call) is tuple and [type(part) for part in call] == [tuple, dict]


def _foreign(value: Any, path: str) -> Iterator[str]:
    """What an input set cannot hold, each with its path."""
    if type(value) in (tuple, list):
        for index, element in enumerate(value):
            yield from _foreign(element, f"{path}[{index}]")
    elif type(value) is dict:
        for key, element in value.items():
            if type(key) is str:
                yield from _foreign(element, f"{path}[{key!r}]" if path else key)
            else:
                yield f"{path or 'kwargs'} has the key {key!r}, must be a str"
    elif not isinstance(value, (torch.Tensor, *_SCALARS)):
        known = "a tensor, number, bool, str or None, or a tuple, list or dict of them"
        yield f"{path} is of type {type(value).__name__}, must be {known}"


def _kind(value: Any) -> str:
    """A value's type for a message, with its length where that can be what is wrong."""
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    size = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}{size}"


@dataclass(frozen=True)
class Argument:
    """A leaf of a program's signature. `name` is what a person writes: `states[0]['key']`;
    `value` is a fake tensor, a SymInt, or the constant that the program was exported with."""

    name: str
    value: Any


def signature(program: ExportedProgram) -> list[Argument]:
    """The user's inputs of a program, flat, in the order of its placeholders."""
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    kept = [s.arg for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    return [
        Argument(name, arg.value if isinstance(arg, ConstantArgument) else values[arg.name])
        for name, arg in zip(_names(program), kept, strict=True)
    ]


def _names(program: ExportedProgram) -> Iterator[str]:
    spec = program.call_spec.in_spec
    args, kwargs = pytree.tree_unflatten(range(spec.num_leaves), spec)
    called = program.module_call_graph[0].signature if program.module_call_graph else None
    known = (called.forward_arg_names if called is not None else None) or []
    names = [*known[: len(args)], *(f"args[{i}]" for i in range(len(known), len(args))), *kwargs]
    for name, tree in zip(names, [*args, *kwargs.values()], strict=True):
        for path, _ in pytree.tree_flatten_with_path(tree)[0]:
            yield name + pytree.keystr(path)


def check_inputs(program: ExportedProgram, inputs: InputSet, method: str = "forward") -> None:
    """Raises PipelineError where a program does not take an input set: one line a mistake, such
    as `encode: example 0: argument 'tokens': dtype float32, must be int64`."""
    mistakes: list[str] = []
    leaves = list(_pairs(program, inputs, mistakes))
    mistakes += [f"argument '{a.name}': {m}" for a, v in leaves for m in _leaf_mistakes(a.value, v)]
    mistakes += _size_mistakes(program, leaves)
    if mistakes:
        raise PipelineError("\n".join(f"{method}: {inputs.origin}: {m}" for m in mistakes))


def flatten(program: ExportedProgram, inputs: InputSet) -> list[Any]:
    """Copies of the leaves of a checked input set, in the order of the program's placeholders,
    each tensor with the dim order that the program was exported with."""
    return [_copy(value, a.value) for a, value in _pairs(program, inputs, [])]


def _copy(value: Any, like: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    order = like.dim_order()
    plain = value.detach().permute(order).clone(memory_format=torch.contiguous_format)
    return plain.permute([order.index(dimension) for dimension in range(len(order))])


def _pairs(
    program: ExportedProgram, inputs: InputSet, mistakes: list[str]
) -> Iterator[tuple[Argument, Any]]:
    """Each argument of the signature with what is given for it, in the signature's order; where
    the given structure differs, a mistake instead."""
    args, kwargs = pytree.tree_unflatten(signature(program), program.call_spec.in_spec)
    if len(args) != len(inputs.args):
        mistakes.append(f"{len(inputs.args)} positional arguments, must be {len(args)}")
    for name in sorted(inputs.kwargs.keys() - kwargs.keys()):
        mistakes.append(f"argument '{name}': unknown keyword; known: {', '.join(kwargs) or 'none'}")
    for expected, given in zip(args, inputs.args, strict=False):
        yield from _walk(expected, given, mistakes)
    for name, expected in kwargs.items():
        if name in inputs.kwargs:
            yield from _walk(expected, inputs.kwargs[name], mistakes)
        else:
            mistakes.append(f"argument '{name}': missing, must be given by keyword")


def _walk(expected: Any, given: Any, mistakes: list[str]) -> Iterator[tuple[Argument, Any]]:
    if isinstance(expected, Argument):
        yield expected, given
        return
    ordered = isinstance(expected, (tuple, list))
    fits = type(given) is type(expected) and len(given) == len(expected)
    if not fits or not (ordered or given.keys() == expected.keys()):
        name = next((a.name for a in pytree.tree_leaves(expected)), "")
        keys = "" if ordered else f" with the keys {', '.join(map(str, expected))}"
        mistakes.append(f"argument '{name}': {_kind(given)}, must be {_kind(expected)}{keys}")
        return
    for key in range(len(expected)) if ordered else expected:
        yield from _walk(expected[key], given[key], mistakes)


def _leaf_mistakes(expected: Any, given: Any) -> Iterator[str]:
    """What is wrong with a leaf, sizes aside."""
    if isinstance(expected, torch.Tensor):
        if not isinstance(given, torch.Tensor):
            yield f"{_kind(given)}, must be a tensor"
            return
        if given.dtype != expected.dtype:
            yield f"dtype {_plain(given.dtype)}, must be {_plain(expected.dtype)}"
        if given.ndim != expected.ndim:
            yield f"rank {given.ndim}, must be {expected.ndim}"
    elif isinstance(expected, torch.SymInt):
        if type(given) is not int:
            yield f"{_kind(given)}, must be an int"
    elif type(given) is not type(expected) or given != expected:
        shown = _kind(given) if isinstance(given, torch.Tensor) else repr(given)
        yield f"{shown}, must be {expected!r}, the value that the program was exported with"


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class _Size:
    """A size, or a dynamic int, that an input set gives for an expression of the signature."""

    shown: str
    expression: sympy.Expr
    given: int


def _sizes(leaves: Iterable[tuple[Argument, Any]]) -> Iterator[_Size]:
    for argument, given in leaves:
        if isinstance(argument.value, torch.SymInt):
            if type(given) is int:
                shown = f"argument '{argument.name}': {given}"
                yield _Size(shown, expression(argument.value), given)
        elif isinstance(argument.value, torch.Tensor) and isinstance(given, torch.Tensor):
            # A wrong rank is a mistake of its own, and leaves no sizes to compare.
            shape = argument.value.shape if given.ndim == argument.value.ndim else ()
            for dimension, size in enumerate(shape):
                actual = given.shape[dimension]
                shown = f"argument '{argument.name}': size {actual} at dimension {dimension}"
                yield _Size(shown, expression(size), actual)


def expression(size: int | torch.SymInt) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _bind(sizes: Sequence[tuple[sympy.Expr, int]]) -> dict[sympy.Symbol, int]:
    """The symbols' values: where a symbol stands alone, then where it is the only unknown."""
    bound = {e: given for e, given in reversed(sizes) if isinstance(e, sympy.Symbol)}
    for expr, given in sizes:
        unknown = expr.free_symbols - bound.keys()
        if len(unknown) == 1 and expr.is_polynomial(*unknown):
            symbol = unknown.pop()
            solutions = sympy.solve(expr.xreplace(_integers(bound)) - given, symbol)
            if solutions and solutions[0].is_Integer:
                bound[symbol] = int(solutions[0])
    return bound


def _integers(bound: dict[sympy.Symbol, int]) -> dict[sympy.Symbol, sympy.Integer]:
    return {symbol: sympy.Integer(value) for symbol, value in bound.items()}


def bounds(program: ExportedProgram, expr: sympy.Expr) -> tuple[int, int | None]:
    """The least and the greatest value that a program takes for a size; None has no limit."""
    if expr.is_Integer:
        return int(expr), int(expr)
    allowed = program.range_constraints.get(expr)
    if allowed is None:
        return 0, None
    lower, upper = allowed.lower, allowed.upper
    return int(lower) if lower.is_Integer else 0, int(upper) if upper.is_Integer else None


def _size_mistakes(
    program: ExportedProgram, leaves: Iterable[tuple[Argument, Any]]
) -> Iterator[str]:
    sizes = list(_sizes(leaves))
    bound = _bind([(size.expression, size.given) for size in sizes])
    for size in sizes:
        value = size.expression.xreplace(_integers(bound))
        least, greatest = bounds(program, size.expression)
        if value.is_Integer and int(value) != size.given:
            names = sorted(f"{s} = {bound[s]}" for s in size.expression.free_symbols)
            why = f" ({size.expression}, where {', '.join(names)})" if names else ""
            yield f"{size.shown}, must be {value}{why}"
        elif len(value.free_symbols) == 1 and value.is_polynomial():
            yield f"{size.shown}, must be {value} for a whole number"
        elif size.given < least or (greatest is not None and size.given > greatest):
            limit = "" if greatest is None else f" and at most {greatest}"
            yield f"{size.shown}, must be at least {least}{limit}"


def generate_inputs(
    program: ExportedProgram, count: int, seed: int, examples: Sequence[InputSet] = ()
) -> list[InputSet]:
    """Input sets from the signature alone, the same for the same seed.

    Floating-point tensors are standard normal, bools fair. An integer may be an index, so integer
    tensors stay between the least and greatest value that the same argument has in the examples,
    or in {0, 1} without one. Where sizes are dynamic, set 0 has the least of each (1 rather than
    0), set 1 the greatest, set 2 something between, and so on in turn; a symbol has one size
    everywhere. The greatest is the export's bound, up to LONGEST_DIMENSION, or where there is none
    the largest example: ExecuTorch plans memory for that size. Python numbers are the examples'.
    """
    if not examples and program.example_inputs is not None:
        args, kwargs = program.example_inputs
        examples = [InputSet(args, kwargs, "export")]
    for example in examples:
        check_inputs(program, example)
    given = [[value for _, value in _pairs(program, example, [])] for example in examples]
    arguments = signature(program)
    symbols = _symbols(program, arguments, given)
    return [_generate(program, arguments, symbols, given, seed, n) for n in range(count)]


@dataclass(frozen=True)
class _Symbol:
    """The sizes to choose from for a symbol, and where a person finds it in the signature."""

    symbol: sympy.Symbol
    least: int
    greatest: int
    shown: str


def _symbols(
    program: ExportedProgram, arguments: Sequence[Argument], given: Sequence[Sequence[Any]]
) -> list[_Symbol]:
    exported = list(_shapes(arguments))
    hints = [_bind([(expression(s), s.node.hint) for _, s in exported if s.node.has_hint()])]
    hints += [
        _bind([(s.expression, s.given) for s in _sizes(zip(arguments, values, strict=True))])
        for values in given
    ]
    fixed = [a.value.node.expr for a in arguments if isinstance(a.value, torch.SymInt)]
    names = {expression(size): name for name, size in reversed(exported)}
    free = {symbol for _, size in exported for symbol in expression(size).free_symbols}
    chosen = []
    for symbol in sorted(free, key=str):
        least, greatest = bounds(program, symbol)
        seen = [hint[symbol] for hint in hints if symbol in hint] or [max(least, 1)]
        if symbol in fixed:
            least = greatest = seen[-1]
        least = max(least, 1) if greatest != 0 else 0
        greatest = max(seen) if greatest is None else min(greatest, LONGEST_DIMENSION)
        chosen.append(_Symbol(symbol, least, max(least, greatest), names.get(symbol, str(symbol))))
    return chosen


def _shapes(arguments: Iterable[Argument]) -> Iterator[tuple[str, torch.SymInt]]:
    for argument in arguments:
        if isinstance(argument.value, torch.SymInt):
            yield argument.name, argument.value
        elif isinstance(argument.value, torch.Tensor):
            for dimension, size in enumerate(argument.value.shape):
                if isinstance(size, torch.SymInt):
                    yield f"{argument.name}.shape[{dimension}]", size


def _generate(
    program: ExportedProgram,
    arguments: Sequence[Argument],
    symbols: Sequence[_Symbol],
    given: Sequence[Sequence[Any]],
    seed: int,
    number: int,
) -> InputSet:
    generator = torch.Generator().manual_seed((seed << 20) + number)
    sizes = _choose(arguments, symbols, number, generator)
    leaves = [
        _value(argument.value, sizes, [values[index] for values in given], generator)
        for index, argument in enumerate(arguments)
    ]
    args, kwargs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    shown = ", ".join(f"{s.shown}={sizes[s.symbol]}" for s in symbols)
    return InputSet(args, kwargs, f"generated {number} (seed {seed}){shown and ': '}{shown}")


def _choose(
    arguments: Sequence[Argument],
    symbols: Sequence[_Symbol],
    number: int,
    generator: torch.Generator,
) -> dict[sympy.Symbol, int]:
    sizes = {}
    for s in symbols:
        between = s.greatest - s.least > 1
        low, high = (s.least + 1, s.greatest - 1) if between else (s.least, s.greatest)
        drawn = int(torch.randint(low, high + 1, (), generator=generator))
        sizes[s.symbol] = (s.least, s.greatest, drawn)[number % 3]
    while _elements(arguments, sizes) > MOST_ELEMENTS:
        s = max(symbols, key=lambda s: sizes[s.symbol] - s.least)
        if sizes[s.symbol] == s.least:
            break
        sizes[s.symbol] = max(s.least, sizes[s.symbol] // 2)
    return sizes


def _elements(arguments: Iterable[Argument], sizes: dict[sympy.Symbol, int]) -> int:
    tensors = [a.value for a in arguments if isinstance(a.value, torch.Tensor)]
    return max((torch.Size(_shape(t, sizes)).numel() for t in tensors), default=0)


def _shape(tensor: torch.Tensor, sizes: dict[sympy.Symbol, int]) -> list[int]:
    return [int(expression(size).xreplace(_integers(sizes))) for size in tensor.shape]


def _value(
    like: Any, sizes: dict[sympy.Symbol, int], seen: Sequence[Any], generator: torch.Generator
) -> Any:
    if isinstance(like, torch.SymInt):
        return int(expression(like).xreplace(_integers(sizes)))
    if not isinstance(like, torch.Tensor):
        return like
    shape = _shape(like, sizes)
    if like.dtype.is_floating_point or like.dtype.is_complex:
        kind = torch.complex64 if like.dtype.is_complex else torch.float32
        value = torch.randn(shape, dtype=kind, generator=generator)
    elif like.dtype is torch.bool:
        value = torch.rand(shape, generator=generator) < 0.5
    else:
        ends = [int(end) for tensor in seen if tensor.numel() for end in tensor.aminmax()] or [0, 1]
        top = min(max(ends) + 1, torch.iinfo(torch.int64).max)
        value = torch.randint(min(ends), top, shape, generator=generator)
    return _copy(value.to(like.dtype), like)


def save_inputs(sets: Sequence[InputSet]) -> bytes:
    """Input sets as a safetensors file whose one metadata entry is their tree, as JSON. The same
    values give the same bytes; layouts and shared storage are not kept."""
    tensors: dict[str, torch.Tensor] = {}
    trees = []
    for inputs in sets:
        if wrong := [*_foreign(inputs.args, "args"), *_foreign(inputs.kwargs, "")]:
            raise PipelineError("\n".join(f"{inputs.origin}: {mistake}" for mistake in wrong))
        tree = [_encode(inputs.args, tensors), _encode(inputs.kwargs, tensors), inputs.origin]
        trees.append(tree)
    text = json.dumps(trees, separators=(",", ":"))
    try:
        return bytes(safetensors.torch.save(tensors, {"inputs": text}))
    except (KeyError, ValueError, SafetensorError) as error:
        raise PipelineError(f"input sets cannot be stored: {error}") from error


def load_inputs(data: bytes) -> list[InputSet]:
    """The inverse of `save_inputs`. Raises PipelineError for anything else."""
    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        trees = json.loads(header["__metadata__"]["inputs"])
        return [
            InputSet(_decode(args, tensors), _decode(kwargs, tensors), origin)
            for args, kwargs, origin in trees
        ]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise PipelineError(f"stored input sets cannot be read: {error!r}") from error


def _encode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """A tree as JSON: a scalar is itself, anything else a list that starts with its type."""
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().clone(memory_format=torch.contiguous_format)
        return ["tensor", name]
    if isinstance(value, dict):
        return ["dict", *([key, _encode(v, tensors)] for key, v in value.items())]
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, *(_encode(v, tensors) for v in value)]
    return ["float", value.hex()] if isinstance(value, float) else value


def _decode(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(tree, list):
        return tree
    kind, *rest = tree
    if kind == "tensor":
        return tensors[rest[0]]
    if kind == "float":
        return float.fromhex(rest[0])
    if kind == "dict":
        return {key: _decode(value, tensors) for key, value in rest}
    return {"tuple": tuple, "list": list}[kind](_decode(value, tensors) for value in rest)
