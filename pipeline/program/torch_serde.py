"""torch's writer and reader of programs, with what they lack for programs that torch exports.

Each function here can go when torch does as it says; `tests/program/test_torch_serde.py` has a
program for each. Source: `torch/_export/serde/serialize.py` of torch 2.13.
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
def mended_writer() -> Iterator[None]:
    """Write programs that return a symbolic bool, which torch's check of what it wrote, a pass
    over all of it whose result it drops, does not know either."""
    with (
        wrapped(_WRITER, "serialize_argument_spec", _write_argument),
        replaced(serialize, "canonicalize", lambda _: lambda *_: None),
    ):
        yield


@contextmanager
def mended_reader() -> Iterator[None]:
    """Read what torch, or `mended_writer`, wrote, and import no class on its word."""
    with (
        replaced(serialize, "treespec_loads", lambda _: load_tree),
        wrapped(_READER, "deserialize_argument_spec", _read_argument),
        wrapped(_READER, "deserialize_outputs", _read_outputs),
        wrapped(_READER, "_parse_sym_expr", _read_size),
    ):
        yield


def read_document(document: dict[str, Any]) -> schema.ExportedProgram:
    """Return the record that torch's reader takes of a program's JSON.

    torch works out what a class of its schema holds for each record again, more than half of the
    time: 50 of 90 ms for a method of 60 operators.
    """
    with replaced(serialize, "typing", lambda _: _TYPING):
        return serialize._dict_to_dataclass(schema.ExportedProgram, document)


def _get_type_hints(kind: Any, globalns: Any = None, **other: Any) -> dict[str, Any]:
    if globalns is not vars(schema) or other:
        return typing.get_type_hints(kind, globalns, **other)
    return _hints_of(kind)


@cache
def _hints_of(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, globalns=vars(schema))


_TYPING = ModuleType("typing")  # stands in for the module `typing`
vars(_TYPING).update(vars(typing), get_type_hints=_get_type_hints)


def _write_argument(write: Callable[..., Argument], own: Any, argument: Any) -> Argument:
    if isinstance(argument, graph_signature.SymBoolArgument):
        return Argument.create(as_sym_bool=SymBoolArgument.create(as_name=argument.name))
    return write(own, argument)


def _read_argument(read: Callable[..., Any], own: Any, argument: Argument) -> Any:
    """Read a symbolic bool as an argument; torch makes a constant of it, whose value is a node."""
    if argument.type == "as_sym_bool":
        return graph_signature.SymBoolArgument(name=argument.as_sym_bool.as_name)
    return read(own, argument)


def _read_outputs(read: Callable[..., None], own: Any, written: Node, node: FxNode) -> None:
    """Read a call of a sub-graph that returns nothing, as of `torch.no_grad()` around a change of a
    buffer; torch refuses a program in which its value is missing."""
    read(own, written, node)
    if isinstance(node.target, HigherOrderOperator):
        node.meta.setdefault("val", ())


def _read_size(read: Callable[..., Any], own: Any, expression: Any, hint: Any = None) -> Any:
    """Read a size, and learn the hint of its symbol: that of `n` from `16*n`, a derived dimension.

    torch's reader knows the hint of the expression alone, and refuses a program that holds another
    one of the same symbol, such as `2*n - 8`, as it can't tell that this is not negative.
    """
    size = read(own, expression, hint)
    hints = own.shape_env.backed_var_to_val
    if hint is None or size.is_Symbol or len(size.free_symbols) != 1:
        return size
    (symbol,) = size.free_symbols
    if symbol not in hints and (slope := size.diff(symbol)).is_Integer:
        hints[symbol] = (sympy.Integer(hint) - size.xreplace({symbol: sympy.Integer(0)})) / slope
    return size


def unwrap_subclasses(program: ExportedProgram) -> ExportedProgram:
    """Return a program without tensor subclasses among its weights, which torch pickles.

    Those that hold tensors, as torchao's quantized weights, are taken apart by decomposing, which
    lowering does first (with the same bytes); others are the tensors that they are.
    """
    weights = [*program.state_dict.values(), *program.constants.values()]
    tensors = [each for each in weights if isinstance(each, Tensor)]
    if any(map(is_traceable_wrapper_subclass, tensors)):
        return program.run_decompositions({})
    if not any(map(_package._should_use_pickle, tensors)):
        return program
    own = {
        kind: {name: _as_tensor(value) for name, value in getattr(program, kind).items()}
        for kind in ("state_dict", "constants")
    }
    return program._update(program.graph_module, program.graph_signature, **own)


def _as_tensor(value: Any) -> Any:
    if not isinstance(value, Tensor) or not _package._should_use_pickle(value):
        return value
    tensor = value.detach().as_subclass(Tensor)
    if isinstance(value, Parameter):
        return Parameter(tensor, value.requires_grad)
    return tensor.requires_grad_(value.requires_grad)


def forget_derived_sizes(program: ExportedProgram) -> None:
    """Leave symbols alone among the sizes that a loaded program has ranges and hints of.

    torch's reader adds expressions, such as the `2*s0` of a derived dimension, of which an exported
    program holds none, and on which decomposing fails (`_parse_sym_expr`).
    """
    mode = detect_fake_mode([node.meta.get("val") for node in program.graph.nodes])
    environment = mode.shape_env if mode is not None else None
    if environment is None:
        return
    tables = (
        environment.var_to_range,
        environment.var_to_range_sloc,
        environment.backed_var_to_val,
    )
    for known in tables:
        for size in [size for size in known if not size.is_Symbol]:
            del known[size]
