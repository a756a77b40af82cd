"""Patterns of quantizers: none is exported that a graph can't hold, and none twice by one process.

torchao and ExecuTorch's quantizers search graphs for small programs, which they export anew for
each method: 18 for one method of convolutions, each as slowly as a small model. `patches.py` puts
these functions in place while a worker quantizes, for the texts that they were written for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from pipeline.program.operators import base_name
from pipeline.program.patching import replaced

_Function = Callable[..., Any]
_PLAIN = (
    bool,
    int,
    str,
    type,
    type(None),
    torch.dtype,
    torch.device,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    BuiltinFunctionType,
)
_MOST_KEPT = 500  # programs; QAT and Core ML know 100 and 400


# Patterns that can't match


# Operators that all patterns of a function have. `prepare_pt2e` has folded the batch norms behind
# convolutions by then, and only quantization-aware training divides what a convolution gives.
NEEDED = {
    "_replace_dropout": {"dropout"},
    "_replace_batchnorm": {"batch_norm"},
    "_do_annotate_conv_bn": {"batch_norm"},
    "_fold_conv_bn_qat_helper": {"batch_norm", "div"},
}


def make_search(owner: ModuleType) -> Callable[[_Function], _Function]:
    """Return what makes a function search for blank patterns in a graph that lacks an operator
    which all of its patterns have.

    Args:
        owner: the module by whose global the function exports patterns.
    """

    def make(original: _Function) -> _Function:
        needed = NEEDED[original.__name__]

        def search(module: GraphModule, *args: Any, **options: Any) -> Any:
            operators = {base_name(node) for node in module.graph.nodes}
            if needed <= operators:
                return original(module, *args, **options)
            with replaced(owner, "_get_aten_graph_module_for_pattern", _make_blank):
                return original(module, *args, **options)

        return search

    return make


def _make_blank(original: _Function) -> _Function:
    """Return a pattern that is in no graph, whatever is asked for."""
    return lambda *args, **options: _export_blank().module()


class _Blank(torch.nn.Module):
    def forward(self, value: torch.Tensor) -> Any:
        result = value.relu()
        return result, {"output": result}


def _call_nothing(value: torch.Tensor) -> torch.Tensor:
    """Stand in a blank pattern for an operator: no graph calls this."""
    return value


@cache
def _export_blank() -> ExportedProgram:
    program = torch.export.export(_Blank(), (torch.zeros(1),))
    for node in program.graph.find_nodes(
        op="call_function", target=torch.ops.aten.relu.default
    ):
        node.target = _call_nothing
    return program


# Patterns that were exported before


class _Standin:
    """Has the attributes of a module of torch's, but for those that are replaced."""

    def __init__(self, module: ModuleType, **attributes: Any) -> None:
        self._module = module
        self.__dict__ |= attributes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def make_torch(original: ModuleType) -> Any:
    """Return what stands in place of `torch` in torchao's function that exports patterns, which
    others import by value: each call makes a module of its own from a program that is kept."""
    return _Standin(original, export=_Standin(original.export, export=export_once))


def export_once(
    pattern: Any, inputs: tuple[Any, ...], options: dict[str, Any], **settings: Any
) -> ExportedProgram:
    """Export a pattern, or return the program of an equal one with inputs of the same form."""
    program: ExportedProgram
    try:
        values = (*inputs, *options.items(), *settings.items())
        key = _describe(pattern), *map(_describe_input, pytree.tree_leaves(values))
    except _UnknownError:
        return torch.export.export(pattern, inputs, options, **settings)
    key = key, torch.is_grad_enabled(), torch.get_default_dtype()
    if key not in _kept:
        program = torch.export.export(pattern, inputs, options, **settings)
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        _kept[key] = program
    return _kept[key]


_kept: dict[Hashable, ExportedProgram] = {}


class _UnknownError(Exception):
    """Of a value of which it isn't known what a program takes from it."""


def _describe(value: Any) -> Hashable:
    """Return all that a program can depend on of its pattern: the code, and what it closes over.

    Raises _UnknownError.
    """
    match value:
        case float():
            return value.hex()  # 0.0 is equal to -0.0
        case set() if not value:
            return set
        case tuple() | list():
            return type(value), *map(_describe, value)
        case dict():
            return dict, *((name, _describe(item)) for name, item in value.items())
        case torch.nn.Module():
            return _describe_class(type(value)), _describe(vars(value))
        case FunctionType():
            return _describe_function(value)
    if not isinstance(value, _PLAIN):
        raise _UnknownError
    return type(value), value


def _describe_class(kind: Any) -> Hashable:
    """Return what a class is but for its name: each call of a function makes its own anew."""
    functions = []
    for value in vars(kind).values():
        if isinstance(value, FunctionType):
            functions.append(value)
    if functions != [kind.forward]:
        return kind
    return kind.__bases__, _describe(kind.forward)


def _describe_function(function: FunctionType) -> Hashable:
    try:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # one that is not filled yet
        raise _UnknownError from None
    context = cells, function.__defaults__, function.__kwdefaults__, vars(function)
    code = function.__code__
    return code, code.co_filename, _describe(context)


def _describe_input(value: Any) -> Hashable:
    """Return what export sees of an input: a tensor has no values there."""
    if not isinstance(value, torch.Tensor):
        return _describe(value)
    if type(value) is not torch.Tensor:
        raise _UnknownError
    strides = value.stride()
    return value.dtype, value.shape, strides, value.device, value.requires_grad
