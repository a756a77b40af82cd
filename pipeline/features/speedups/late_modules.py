"""Imports torch's tracers, and torchao's quantizers, when they are first used.

ExecuTorch imports them for a few names. Together they take more than half of the CPU time of its
import, and 40 MiB in each worker.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from torch import _weights_only_unpickler

from pipeline.features.speedups.late_sharding import import_rules_late, load_rules
from pipeline.features.speedups.late_tracer import (
    TRACER_MODULES,
    DeferredModule,
    LateFinder,
    execute,
    place,
)

_Function = Callable[..., Any]
DECOMPOSITIONS = "torch._inductor.decomposition"
# Reading an archive asks for this module's file only.
_EXPORTER = "torch.export._trace"
# Packages whose modules work without what the package itself imports.
_QUANTIZERS = ("torchao", "torchao.quantization", "torchao.quantization.pt2e")


class _Decompositions(LateFinder):
    """The decompositions that torchao registers with torch's compiler, until that is imported."""

    def __init__(self) -> None:
        super().__init__(DECOMPOSITIONS)
        self._registered: list[tuple[Any, _Function]] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Within the context, record what is registered instead of importing the compiler."""
        if DECOMPOSITIONS in sys.modules:
            yield
            return
        stand_in: Any = ModuleType(DECOMPOSITIONS)
        stand_in.register_decomposition = self._record
        sys.modules[DECOMPOSITIONS] = stand_in
        try:
            yield
        finally:
            del sys.modules[DECOMPOSITIONS]
            last = sys.meta_path.index(PathFinder)
            sys.meta_path.insert(last, self)  # type: ignore[arg-type]

    def _record(self, packets: Any) -> Callable[[_Function], _Function]:
        def record(function: _Function) -> _Function:
            self._registered.append((packets, function))
            return function

        return record

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: Any) -> None:
        self.loader.exec_module(module)
        # Its registration refuses operators that exist by now, and so are in its table.
        for packets, function in self._registered:
            for packet in packets:
                for overload in packet.overloads():
                    module.decompositions[getattr(packet, overload)] = function


_decompositions = _Decompositions()


@cache
def import_late() -> None:
    """Import these modules when they are first used, unless they are imported already."""
    TRACER_MODULES.install()
    import_rules_late()
    if _EXPORTER not in sys.modules:
        _place_late(_EXPORTER)
    if "torchao" not in sys.modules and importlib.util.find_spec("torchao") is not None:
        for name in _QUANTIZERS:
            _place_late(name)
        # It defines the operators that ExecuTorch looks up on import.
        with _decompositions.recorded():
            importlib.import_module("torchao.quantization.quant_primitives")
        unpickler: Any = _weights_only_unpickler
        allowed = unpickler._get_user_allowed_globals

        def allow_all() -> Any:
            """Return the classes to unpickle, including those that torchao allows."""
            _load_modules()
            return allowed()

        unpickler._get_user_allowed_globals = allow_all
    # What the parent imports, forks need not import themselves. They run user code.
    os.register_at_fork(before=load_all)


def load_all() -> None:
    """Import everything that is still to be imported."""
    TRACER_MODULES.load()
    load_rules()
    _load_modules()
    importlib.import_module(DECOMPOSITIONS)


def _place_late(name: str) -> None:
    spec = importlib.util.find_spec(name)
    if spec is not None:
        place(DeferredModule(name), spec)


def _load_modules() -> None:
    """Run the code of the late modules, which also allows to unpickle classes of the quantizers."""
    for name in (_EXPORTER, *_QUANTIZERS):
        module = sys.modules.get(name)
        if isinstance(module, DeferredModule):  # executing one may execute others
            execute(module)
