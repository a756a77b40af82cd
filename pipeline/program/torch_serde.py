"""Patches torch's writer and reader of programs, which fail on some programs that torch exports.

Each function here can be removed once torch behaves as its docstring says;
`tests/program/test_torch_serde.py` has a program for each. Source:
`torch/_export/serde/serialize.py` of torch 2.13.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import sympy
from torch import Tensor
from torch._export.serde import schema, serialize
from torch._export.serde.schema import Argument, Node, SymBoolArgument
from torch._guards import detect_fake_mode
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram, graph_signature
from torch.export.pt2_archive import _package
from torch.fx import Node as FxNode
from torch.nn import Parameter
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pipeline.program.containers import load_tree
from pipeline.program.patching import replaced, wrapped

_READER, _WRITER = serialize.GraphModuleDeserializer, serialize.GraphModuleSerializer


@contextmanager
def patched_writer() -> Iterator[None]:
    """Make torch's writer accept programs that return a symbolic bool.

    torch's canonicalization doesn't know symbolic bools either. It is skipped: torch runs it only
    as a check, and discards its result.
    """
    with (
        wrapped(_WRITER, "serialize_argument_spec", _write_argument),
        replaced(serialize, "canonicalize", lambda _: lambda *_: None),
    ):
        yield


@contextmanager
def patched_reader() -> Iterator[None]:
    """Make torch's reader accept what torch or `patched_writer` wrote, and import no classes."""
    with (
        replaced(serialize, "treespec_loads", lambda _: load_tree),
        wrapped(_READER, "deserialize_argument_spec", _read_argument),
        wrapped(_READER, "deserialize_outputs", _read_outputs),
        wrapped(_READER, "_parse_sym_expr", _read_size),
    ):
        yield


def read_document(document: dict[str, Any]) -> schema.ExportedProgram:
    """Parse a program's JSON into torch's schema record.

    torch resolves the type hints of its schema classes again for each record, which takes more than
    half of the time: 50 of 90 ms for a method of 60 operators. Here the hints are cached.
    """
    with replaced(serialize, "typing", lambda _: _TYPING):
        return serialize._dict_to_dataclass(schema.ExportedProgram, document)


def _get_type_hints(kind: Any, globalns: Any = None, **options: Any) -> dict[str, Any]:
    if globalns is not vars(schema) or options:
        return typing.get_type_hints(kind, globalns, **options)
    return _hints_of(kind)


@cache
def _hints_of(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, globalns=vars(schema))


_TYPING = ModuleType("typing")  # a copy of the module `typing` with cached hints
vars(_TYPING).update(vars(typing), get_type_hints=_get_type_hints)


def _write_argument(
    write: Callable[..., Argument], writer: Any, argument: Any
) -> Argument:
    if isinstance(argument, graph_signature.SymBoolArgument):
        return Argument.create(
            as_sym_bool=SymBoolArgument.create(as_name=argument.name)
        )
    return write(writer, argument)


def _read_argument(read: Callable[..., Any], reader: Any, argument: Argument) -> Any:
    """Read an argument spec; torch would make a symbolic bool a constant whose value is a node."""
    if argument.type == "as_sym_bool":
        return graph_signature.SymBoolArgument(name=argument.as_sym_bool.as_name)
    return read(reader, argument)


def _read_outputs(
    read: Callable[..., None], reader: Any, serialized: Node, node: FxNode
) -> None:
    """Read the outputs of a node, and give a sub-graph call that returns nothing an empty value.

    `torch.no_grad()` around the change of a buffer makes such a call, and torch refuses a program
    in which its value is missing.
    """
    read(reader, serialized, node)
    if isinstance(node.target, HigherOrderOperator):
        node.meta.setdefault("val", ())


def _read_size(
    read: Callable[..., Any], reader: Any, expression: Any, hint: Any = None
) -> Any:
    """Read a size; for a derived dimension such as `16*n`, also compute the hint of `n`.

    torch's reader knows only the hint of the whole expression. It refuses a program with another
    expression of the symbol, such as `2*n - 8`, since it can't tell that this isn't negative.
    Each size is read once for all tensors that have it.
    """
    sizes = vars(reader).setdefault("sizes", {})
    if (expression, hint) not in sizes:
        sizes[expression, hint] = _read_new_size(read, reader, expression, hint)
    return sizes[expression, hint]


def _read_new_size(
    read: Callable[..., Any], reader: Any, expression: Any, hint: Any
) -> Any:
    size = read(reader, expression, hint)
    hints = reader.shape_env.backed_var_to_val
    if hint is None or size.is_Symbol or len(size.free_symbols) != 1:
        return size
    (symbol,) = size.free_symbols
    slope = size.diff(symbol)
    if symbol not in hints and slope.is_Integer:
        offset = size.xreplace({symbol: sympy.Integer(0)})
        hints[symbol] = (sympy.Integer(hint) - offset) / slope
    return size


def unwrap_subclasses(program: ExportedProgram) -> ExportedProgram:
    """Return a program whose weights include no tensor subclasses, which torch would pickle.

    Subclasses that wrap tensors, such as torchao's quantized weights, are decomposed; lowering
    starts with this step anyway, and gives the same bytes. Other subclasses become plain tensors
    that share their memory.
    """
    values = [*program.state_dict.values(), *program.constants.values()]
    tensors = [value for value in values if isinstance(value, Tensor)]
    if any(map(is_traceable_wrapper_subclass, tensors)):
        return program.run_decompositions({})
    if not any(map(_package._should_use_pickle, tensors)):
        return program
    return program._update(
        program.graph_module,
        program.graph_signature,
        state_dict={
            name: _as_tensor(value) for name, value in program.state_dict.items()
        },
        constants={
            name: _as_tensor(value) for name, value in program.constants.items()
        },
    )


def _as_tensor(value: Any) -> Any:
    if not isinstance(value, Tensor) or not _package._should_use_pickle(value):
        return value
    tensor = value.detach().as_subclass(Tensor)
    if isinstance(value, Parameter):
        return Parameter(tensor, value.requires_grad)
    return tensor.requires_grad_(value.requires_grad)


def forget_derived_sizes(program: ExportedProgram) -> None:
    """Remove the ranges and hints of expressions from a loaded program, but keep those of symbols.

    torch's reader (`_parse_sym_expr`) adds some for expressions, such as the `2*s0` of a derived
    dimension. A freshly exported program has none, and decomposing fails on them.
    """
    mode = detect_fake_mode([node.meta.get("val") for node in program.graph.nodes])
    environment = None if mode is None else mode.shape_env
    if environment is None:
        return
    tables = (
        environment.var_to_range,
        environment.var_to_range_sloc,
        environment.backed_var_to_val,
    )
    for table in tables:
        expressions = [size for size in table if not size.is_Symbol]
        for size in expressions:
            del table[size]
