"""Lowering and quantizing without what torch does again and again for nothing: two fifths of the
time of a small program, nine tenths of quantizing one. What they compute is the same."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Hashable
from functools import wraps
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

_replaced: list[tuple[Any, str, Any]] = []
_QUICK = ("_collect_all_valid_cia_ops", "_override_composite_implicit_decomp", "Callable")
_EXPORT_PATTERN = "_get_aten_graph_module_for_pattern"


def make_torch_quick() -> None:
    """Mend, in this process and its forks, three functions that each lowering calls a few times, as
    workers do, and one of quantizing; the others stay as they are, for oracles."""
    from torchao.quantization.pt2e import utils

    from pipeline.features.speedups.patches import PATCHES

    for patch in PATCHES:
        if patch.name in _QUICK and patch.is_known:
            _replace(patch.owner, patch.name, patch.make(patch.original))
    _once(utils, _EXPORT_PATTERN, remember_patterns)


def _once(module: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of a module, and of all that imported it, if it isn't replaced yet."""
    if any(replaced == name for _, replaced, _ in _replaced):
        return
    original = vars(module)[name]
    replacement = make(original)
    for each in list(sys.modules.values()):
        if getattr(each, "__dict__", {}).get(name) is original:
            _replace(each, name, replacement)


def make_torch_its_own() -> None:
    """Undo it in this process, which thereby runs no code of this pipeline: for oracles."""
    for owner, name, original in _replaced:
        setattr(owner, name, original)


def _replace(owner: Any, name: str, replacement: Any) -> None:
    _replaced.append((owner, name, vars(owner)[name]))
    setattr(owner, name, replacement)


# Quantizers look for patterns (convolutions with batch norm, dropout), which are functions that
# torchao exports again for each program, 18 of them for XNNPACK.


def remember_patterns(export: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that exports equal patterns once, and copies of what came of it after."""
    exported: dict[Hashable, Any] = {}

    @wraps(export)
    def remember(pattern: Any, inputs: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        try:
            key = _identify((pattern, args, *map(_identify_input, (*inputs, kwargs))))
        except _UnknownError:
            return export(pattern, inputs, *args, **kwargs)
        if key not in exported:
            exported[key] = pattern, export(pattern, inputs, *args, **kwargs)
        return copy.deepcopy(exported[key][1])

    return remember


class _UnknownError(Exception):
    """It is not known what of a value counts."""


def _identify_input(value: Any) -> Any:
    """Return what an export can depend on of an input, which isn't what a tensor holds."""
    match value:
        case torch.Tensor():
            return value.dtype, value.shape, value.stride(), value.device, value.requires_grad
        case dict():
            return {name: _identify_input(each) for name, each in value.items()}
    return value


def _identify(value: Any) -> Hashable:
    """Return what an export can depend on of a pattern: its code, and all that it closes over."""
    match value:
        case set() if not value:
            return set
        case tuple() | list():
            return type(value), *map(_identify, value)
        case dict():
            return dict, *((name, _identify(each)) for name, each in value.items())
        case torch.nn.Module():
            kind = type(value)
            own = [each for each in vars(kind).values() if isinstance(each, FunctionType)]
            alone = own == [kind.forward]  # a class may be made anew with each pattern
            return (
                kind.__bases__,
                _identify(kind.forward) if alone else kind,
                _identify(vars(value)),
            )
        case FunctionType():
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            outside = cells, value.__defaults__, value.__kwdefaults__, vars(value)
            return id(value.__code__), _identify(outside)  # the code lives as long as the key
    if not isinstance(value, _PLAIN):
        raise _UnknownError
    return type(value), value


_PLAIN = (
    BuiltinFunctionType, bool, int, float, str, type, type(None),
    torch.dtype, torch.device, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
)  # fmt: skip
