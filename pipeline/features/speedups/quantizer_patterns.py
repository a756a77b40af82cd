"""Avoids exporting quantizer patterns that a graph can't contain or that were already exported.

torchao and ExecuTorch's quantizers search graphs for small programs, which they export again for
each method: 18 for one convolutional method, each as slowly as a small model. `patches.py` installs
these functions while a worker quantizes, if the source code is the one that they were written for.
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
_MOST_KEPT = 500  # programs; QAT has 100 patterns, Core ML 400


# Patterns that can't match


# Operators that all patterns of a function contain. By then, `prepare_pt2e` has folded the batch
# norms behind convolutions, and only quantization-aware training divides a convolution's output.
NEEDED = {
    "_replace_dropout": {"dropout"},
    "_replace_batchnorm": {"batch_norm"},
    "_do_annotate_conv_bn": {"batch_norm"},
    "_fold_conv_bn_qat_helper": {"batch_norm", "div"},
}


def make_search(owner: ModuleType) -> Callable[[_Function], _Function]:
    """Return a patch that makes a function search for blank patterns in graphs without a match.

    A graph can't match if it lacks an operator that all patterns of the function contain.

    Args:
        owner: the module through whose global the function exports patterns.
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
    """Return an exporter that ignores its arguments and gives a pattern that no graph contains."""
    return lambda *args, **options: _export_blank().module()


class _Blank(torch.nn.Module):
    def forward(self, value: torch.Tensor) -> Any:
        result = value.relu()
        return result, {"output": result}


def _call_nothing(value: torch.Tensor) -> torch.Tensor:
    """Take the place of an operator in a blank pattern; no graph calls this function."""
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
    """A stand-in for a module of torch that replaces some of its attributes."""

    def __init__(self, module: ModuleType, **attributes: Any) -> None:
        self._module = module
        self.__dict__ |= attributes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def make_torch(original: ModuleType) -> Any:
    """Return a replacement for `torch` in torchao's function that exports patterns.

    The function itself can't be replaced, since other modules import it by value. Each of its calls
    still makes a new module, from a program that is kept.
    """
    return _Standin(original, export=_Standin(original.export, export=export_once))


def export_once(
    pattern: Any, inputs: tuple[Any, ...], options: dict[str, Any], **settings: Any
) -> ExportedProgram:
    """Export a pattern, or return the kept program of an equal one with inputs of the same form."""
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
    """Raised for a value whose effect on a program isn't known."""


def _describe(value: Any) -> Hashable:
    """Return all that a program can depend on in its pattern: the code, and what it closes over.

    Raises _UnknownError if the effect of a value isn't known.
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
    """Return what defines a class apart from its name, or the class itself if that isn't known.

    Each call of a function that defines a class makes a new one.
    """
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
    except ValueError:  # a cell that is still empty
        raise _UnknownError from None
    context = cells, function.__defaults__, function.__kwdefaults__, vars(function)
    code = function.__code__
    return code, code.co_filename, _describe(context)


def _describe_input(value: Any) -> Hashable:
    """Return what export sees of an input; it doesn't see the values of a tensor."""
    if not isinstance(value, torch.Tensor):
        return _describe(value)
    if type(value) is not torch.Tensor:
        raise _UnknownError
    strides = value.stride()
    return value.dtype, value.shape, strides, value.device, value.requires_grad
