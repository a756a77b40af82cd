"""Generates the code of a graph module when it is first used, not whenever a module is made."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from torch.fx import GraphModule
from torch.fx.graph import _PyTreeCodeGen

_Function = Callable[..., Any]


class _Late:
    """An attribute of a graph module that `recompile` sets, generated when it is first read.

    It is set on the class, since each graph module has a class of its own, and an attribute of the
    instance takes precedence over it.
    """

    def __init__(self, name: str, recompile: _Function) -> None:
        self._name = name
        self._recompile = recompile

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            return self
        self._recompile(module)
        return getattr(module, self._name)


class _LateCode:
    """The `PythonCode` of a graph module, generated when it is first read."""

    def __init__(self, module: GraphModule, recompile: _Function) -> None:
        self._make = cache(lambda: recompile(module))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)


def make_recompile(original: _Function) -> _Function:
    """Return a `recompile` that defers the code of a graph module until it is run or read.

    Of 7,200 modules in a compile of Whisper-tiny, only a handful are.
    """
    late = {
        name: _Late(name, original)
        for name in ("_code", "_lineno_map", "_prologue_start")
    }
    forward = _Late("forward", original)

    def recompile(self: Any) -> Any:
        code = self._graph._codegen
        if isinstance(code, _PyTreeCodeGen):
            self._in_spec, self._out_spec = (
                code.pytree_info.in_spec,
                code.pytree_info.out_spec,
            )
        kind = type(self)
        for name, attribute in late.items():
            vars(self).pop(name, None)
            setattr(kind, name, attribute)
        kind.forward = forward
        self._recompile_submodules()
        return _LateCode(self, original)

    return recompile


def make_reduce(original: _Function) -> _Function:
    """Return a `__reduce__` that generates the code before it copies the attributes.

    Pickles hold the code.
    """

    def reduce(self: GraphModule, *exporter: Any) -> Any:
        return self.code and original(self, *exporter)

    return reduce


def make_text(original: _Function) -> _Function:
    """Return a `__str__` that names a graph module instead of printing its code.

    `backend_api` formats whole graphs for a debug log at every partition, even if the log is off.
    """

    def text(self: GraphModule) -> str:
        on = logging.getLogger().isEnabledFor(logging.DEBUG)
        return str(original(self)) if on else object.__repr__(self)

    return text
