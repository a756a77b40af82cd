"""Imports ExecuTorch in a worker, without the part of torch that it hardly ever needs."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_COMPILER = "torch._inductor.fx_passes.post_grad"


def import_executorch() -> None:
    """Import ExecuTorch, but not torch's compiler, which is a fifth of the time of both.

    `torch.export._remove_auto_functionalized_pass` (torch 2.13) imports it for one function, which
    changes only graphs that hold higher-order operators. For these it is imported then. Nobody else
    sees the stand-in: it goes when ExecuTorch is there.
    """
    if _COMPILER in sys.modules:
        return
    stand_in: Any = ModuleType(_COMPILER)
    stand_in.decompose_auto_functionalized = _decompose_auto_functionalized
    stand_in.__getattr__ = _find_elsewhere
    sys.modules[_COMPILER] = stand_in
    try:
        import executorch.exir.program  # noqa: F401
    finally:
        if sys.modules.get(_COMPILER) is stand_in:
            del sys.modules[_COMPILER]


def _find_elsewhere(name: str) -> Any:
    """Find what another release of torch takes of the compiler; modules are asked for `__file__`
    and the like by whoever goes through all of them."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_import_compiler(), name)


def _decompose_auto_functionalized(graph: Any) -> None:
    from executorch.exir.delegate import executorch_call_delegate
    from torch._ops import HigherOrderOperator

    targets = {node.target for node in graph.nodes} - {executorch_call_delegate}
    if any(isinstance(target, HigherOrderOperator) for target in targets):
        _import_compiler().decompose_auto_functionalized(graph)


def _import_compiler() -> Any:
    if getattr(sys.modules.get(_COMPILER), "__spec__", None) is None:  # the stand-in
        sys.modules.pop(_COMPILER, None)
    return importlib.import_module(_COMPILER)
