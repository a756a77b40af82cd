"""Imports torch's tracer of Python bytecode and its compiler when something first uses them.

Modules that lower import a few names of them (`torch._dynamo`, `torch._inductor`), most of them for
annotations, but they take a quarter of the CPU time of all imports. Until something uses them,
stand-ins take the place of most of their modules: a name that is imported from one is found when it
is first used.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

TRACER = "torch._dynamo"
_COMPILER = "torch._inductor"
_BUILDER = f"{_COMPILER}.cpp_builder"
_CODE = f"{_COMPILER}.codecache"
_LOWERINGS = f"{_COMPILER}.lowering"
# Modules that import parts of the compiler: one splits training graphs in two, the others keep what
# is compiled.
_LATE = (
    "torch._functorch.partitioners",
    "torch._functorch._aot_autograd.aot_autograd_result",
    "torch._functorch._aot_autograd.autograd_cache",
    _CODE,
    _BUILDER,
    f"{_COMPILER}.utils",
)
# Modules of the tracer that others use, and that import none of the rest.
_USED = frozenset(
    f"{TRACER}.{name}"
    for name in (
        "_trace_wrapped_higher_order_op",
        "aot_compile_types",
        "callback",
        "compiled_autograd",
        "config",
        "device_interface",
        "dynamo_profiler",
        "exc",
        "external_utils",
        "graph_break_hints",
        "graph_utils",
        "logging",
        "metrics_context",
        "precompile_context",
        "source",
        "types",
        "utils",
    )
)
# Modules of the compiler that others use, and that import none of the rest.
_COMPILER_USED = frozenset(
    f"{_COMPILER}.{name}"
    for name in (
        "compiler_bisector",
        "config",
        "custom_graph_pass",
        "fx_passes",
        "fx_passes.dedupe_symint_uses",
        "ops_handler",
        "runtime",
        "runtime.cache_dir_utils",
        "runtime.runtime_utils",
        "sizevars",
        "virtualized",
    )
)
# Its import fails unless the compiler, which imports it in a circle, is imported first.
_PICKLER = "torch.fx._graph_pickler"
_LOOKS_UP_OPERATORS = "torch._functorch._aot_autograd.streams"


class LateFinder:
    """A finder of one module that steps aside once asked, and loads it in its own way.

    Attributes:
        loader: the loader that the module has without this finder.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.loader: Any = None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = PathFinder.find_spec(name, path)
        if spec is not None:
            self.loader, spec.loader = spec.loader, self  # type: ignore[assignment]
        return spec


class LateName:
    """A name of a module that is imported when the name is first used."""

    def __init__(self, module: str, name: str) -> None:
        vars(self).update(_module=module, _name=name)

    def _find(self) -> Any:
        TRACER_MODULES.load()
        return getattr(importlib.import_module(self._module), self._name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._find(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._find()(*args, **kwargs)

    def __contains__(self, value: object) -> bool:
        return value in self._find()

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, self._find())

    def __getitem__(self, parameters: Any) -> LateName:
        return self  # in an annotation, as below

    def __or__(self, other: Any) -> LateName:
        return self

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        return (self._find(),)


class DeferredModule(ModuleType):
    """A module whose code runs once a name is used that isn't an imported module of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        execute(self)
        return getattr(self, name)


class _DeferredPackage(DeferredModule):
    """A deferred package whose modules are imported when they are first used."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            module = f"{self.__name__}.{name}"
            try:
                return importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name != module:
                    raise
        return super().__getattr__(name)


class _CompiledCode(LateName):
    """The cache of compiled code, which torch asks for source lines when it describes a stack."""

    def stack_frames_for_code(self, path: str, line: int) -> Any:
        if TRACER_MODULES.modules:
            return None  # nothing is compiled yet
        return self._find().stack_frames_for_code(path, line)


class _LateModule(ModuleType):
    """A stand-in for a module of the tracer, or for its package."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        is_loaded = TRACER_MODULES.modules.get(self.__name__) is not self
        if is_loaded:
            return getattr(importlib.import_module(self.__name__), name)
        if self.__name__ != TRACER:
            return LateName(self.__name__, name)
        if importlib.util.find_spec(f"{TRACER}.{name}") is not None:
            return importlib.import_module(f"{TRACER}.{name}")
        TRACER_MODULES.load()
        return getattr(self, name)


class _CompilerFinder:
    """A finder that imports the tracer before the first real module of the compiler.

    The compiler's modules import each other in circles, which only some orders of imports get
    through. Once the lowerings are imported, which ExecuTorch's own imports begin with, any module
    can follow.
    """

    def __init__(self, load_tracer: Callable[[], None]) -> None:
        self._load_tracer = load_tracer

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        is_found_elsewhere = name in _COMPILER_USED or name in _LATE
        if not name.startswith((f"{_COMPILER}.", _PICKLER)) or is_found_elsewhere:
            return None
        self._load_tracer()
        importlib.import_module(_LOWERINGS)
        return _find_imported(name) or PathFinder.find_spec(name, path)


class _Tracer:
    """The stand-ins for the tracer's modules, and the finder that makes them."""

    def __init__(self) -> None:
        self.modules: dict[str, _LateModule] = {}
        self._compiler_finder = _CompilerFinder(self.load)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        of_tracer = name.startswith(f"{TRACER}.") and name not in _USED
        if not of_tracer and name not in _LATE:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return None
        late = ModuleSpec(name, self, origin=spec.origin)  # type: ignore[arg-type]
        late.submodule_search_locations = spec.submodule_search_locations
        late.has_location = True
        return late

    def create_module(self, spec: ModuleSpec) -> _LateModule:
        module = self.modules[spec.name] = _LateModule(spec.name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == f"{TRACER}.guards":
            # The tracer's files, which are looked up in stacks: the tracer is in none of them.
            vars(module)["uninteresting_files"] = set
        if module.__name__ == _BUILDER:
            # It changes paths on Windows only.
            vars(module)["normalize_path_separator"] = str
        if module.__name__ == _CODE:
            vars(module)["PyCodeCache"] = _CompiledCode(_CODE, "PyCodeCache")

    def install(self) -> None:
        spec = importlib.util.find_spec(TRACER)
        if spec is None or spec.loader is None or TRACER in sys.modules:
            return
        compiler = importlib.util.find_spec(_COMPILER)
        if compiler is not None and _COMPILER not in sys.modules:
            place(_DeferredPackage(_COMPILER), compiler)
        package = place(_LateModule(TRACER), spec)
        self.modules[TRACER] = package
        vars(package)["disable"] = _disable
        vars(torch.ops)["streams"] = _NoOperators()
        sys.meta_path[:0] = [self, self._compiler_finder]  # type: ignore[list-item]
        # The reader of archives relies on the tracer's import of it.
        importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")

    def load(self) -> None:
        """Replace all stand-ins by the tracer itself."""
        if not self.modules:
            return
        for finder in (self, self._compiler_finder):
            sys.meta_path.remove(finder)  # type: ignore[arg-type]
        package = self.modules.pop(TRACER)
        late = [name for name in _LATE if name in self.modules]
        for name, module in self.modules.items():
            parent, _, child = name.rpartition(".")
            if sys.modules.get(name) is module:
                del sys.modules[name]
            vars(sys.modules.get(parent, package)).pop(child, None)
        self.modules.clear()
        del vars(torch.ops)["streams"]
        del vars(package)["disable"]
        execute(package)
        for name in late:
            importlib.import_module(name)


TRACER_MODULES = _Tracer()


class _Imported:
    """A loader of a module that was imported while it was being searched for."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__spec__"] = self._spec


def _find_imported(name: str) -> ModuleSpec | None:
    """Return a spec that finds a module in `sys.modules`, or None if it isn't there."""
    module = sys.modules.get(name)
    if module is None:
        return None
    # Python would take the module's own spec instead, and run its code again.
    spec = ModuleSpec(name, _Imported(module))  # type: ignore[arg-type]
    vars(module)["__spec__"] = spec
    return spec


class _NoOperators:
    """A stand-in for operators that the tracer registers and that no lowered graph contains.

    The module that is imported for lowering looks them up to find them in graphs. Any other use
    imports the tracer.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys._getframe(1).f_globals.get("__name__") == _LOOKS_UP_OPERATORS:
            return SimpleNamespace(default=object())
        TRACER_MODULES.load()
        return getattr(torch.ops.streams, name)


def _disable(
    function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any
) -> Callable[..., Any]:
    """Return a function that the tracer, once it is loaded, doesn't trace."""
    if function is None:
        return lambda later: _disable(later, *args, **kwargs)
    untraced: list[Callable[..., Any]] = []

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if TRACER in TRACER_MODULES.modules:
            return function(*arguments, **keywords)
        if not untraced:
            untraced.append(torch._dynamo.disable(function, *args, **kwargs))
        return untraced[0](*arguments, **keywords)

    return call


def place(module: Any, spec: ModuleSpec) -> Any:
    """Put a module or package in the place of the one that a spec describes."""
    module.__spec__, module.__loader__ = spec, spec.loader
    module.__file__, module.__package__ = spec.origin, spec.parent
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    sys.modules[spec.name] = module
    parent, _, child = spec.name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    return module


def execute(package: ModuleType) -> None:
    """Run the code of a module or package in the one that stood in for it."""
    package.__class__ = ModuleType
    try:
        package.__spec__.loader.exec_module(package)  # type: ignore[union-attr]
    except BaseException:
        sys.modules.pop(package.__name__, None)
        raise
