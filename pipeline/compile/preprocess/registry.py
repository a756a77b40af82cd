"""The registry of preprocess functions, by the id of their backend.

A function takes a partition, a program in edge dialect, and its compile specs, and returns what the
backend's runtime is to be given. It is all that a build machine needs of a backend: no runtime, and
no class that ExecuTorch knows. A backend has its function from one of three places, the first that
knows it:

1. `register_preprocess`, in this process;
2. its entry in the catalogue, which names one (`Backend.preprocess`);
3. a `BackendDetails` class, as ExecuTorch's backends ship.

Importing this module, registering and asking import no torch; `preprocess_function` imports what it
gives.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from pipeline.backends import BACKENDS, Backend
from pipeline.store.errors import PipelineError, did_you_mean

if TYPE_CHECKING:
    from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from torch.export import ExportedProgram

    Preprocess: TypeAlias = Callable[[ExportedProgram, list[CompileSpec]], PreprocessResult]

_DETAILS = "executorch.exir.backend.backend_details"

_registered: dict[str, Preprocess] = {}


class UnknownBackendError(PipelineError, NotImplementedError):
    """No preprocess function and no `BackendDetails` class is there for a backend. It is what
    ExecuTorch raises then, too."""


class RegisteredTwiceError(PipelineError, ValueError):
    """A backend that has a preprocess function is given another."""


def register_preprocess(backend_id: str, function: Preprocess) -> Preprocess:
    """Gives a backend its preprocess function, in this process.

    A backend that ships a `BackendDetails` class is preprocessed by the function from then on. What
    the function makes is not cached, since nothing is known of what it depends on; a backend whose
    results are to be kept has an entry in the catalogue.

    Args:
        backend_id: by what name a program calls the delegate.
        function: of a program in edge dialect and its compile specs, to a `PreprocessResult`.

    Returns:
        The function.

    Raises:
        TypeError: the name is no text, or the function can't be called.
        RegisteredTwiceError: the backend has a function.
    """
    if not isinstance(backend_id, str) or not backend_id:
        raise TypeError(f"a backend's name must be a text that is not empty, not {backend_id!r}")
    if not callable(function):
        raise TypeError(f"{backend_id}: a preprocess function must be callable, not {function!r}")
    first = _functions().get(backend_id)
    if first is not None:
        raise RegisteredTwiceError(
            f"{backend_id} has a preprocess function: {first}; {reference(function)} can't be "
            "registered as well"
        )
    _registered[backend_id] = function
    return function


def unregister_preprocess(backend_id: str) -> None:
    """Takes back what `register_preprocess` did. Raises UnknownBackendError if it did nothing."""
    if backend_id not in _registered:
        raise UnknownBackendError(
            f"no preprocess function was registered for {backend_id}; "
            f"{did_you_mean(backend_id, sorted(_registered))}"
        )
    del _registered[backend_id]


def is_registered(backend_id: str) -> bool:
    """Whether `preprocess_function` has something to give."""
    return backend_id in registered()


def registered() -> Mapping[str, str]:
    """Every backend that can be preprocessed, sorted, and by what: `module:name` of a function or
    of a `BackendDetails` class. Of the classes, those that the catalogue names and those that this
    process has imported."""
    named = {e.backend_id: e.details for e in BACKENDS.values() if e.details and not e.unsupported}
    loaded = {name: reference(details) for name, details in _loaded_details().items()}
    return dict(sorted({**named, **loaded, **_functions()}.items()))


def preprocess_function(backend_id: str) -> Preprocess:
    """What a backend is preprocessed by; imports it.

    Raises:
        UnknownBackendError: there is nothing.
        PipelineError: the catalogue names something that can't be imported.
    """
    function = own_function(backend_id)
    if function is not None:
        return function
    details = _loaded_details().get(backend_id)
    entry = next((e for e in BACKENDS.values() if e.backend_id == backend_id and e.details), None)
    if details is None and entry is not None and not entry.unsupported:
        details = _import(entry.details, f"the BackendDetails class of {entry.name}")
    if details is None:
        raise unknown_backend(backend_id)
    preprocess: Preprocess = details.preprocess
    return preprocess


def unknown_backend(backend_id: str) -> UnknownBackendError:
    return UnknownBackendError(
        f"Backend {backend_id} was not found; {did_you_mean(backend_id, registered())}"
    )


def own_function(backend_id: str) -> Preprocess | None:
    """The function that a backend has apart from any class; None where it has none. Raises
    PipelineError for one that can't be imported."""
    if backend_id in _registered:
        return _registered[backend_id]
    entry = entry_with_function(backend_id)
    if entry is None:
        return None
    function: Preprocess = _import(entry.preprocess, f"the preprocess function of {entry.name}")
    return function


def own_functions() -> list[str]:
    """The backends that `own_function` has one for, sorted."""
    return sorted(_functions())


def registered_here(backend_id: str) -> bool:
    """Whether its function comes from `register_preprocess` and not from the catalogue."""
    return backend_id in _registered


def entry_with_function(backend_id: str) -> Backend | None:
    """The entry of the catalogue that names a preprocess function for a backend."""
    entries = (e for e in BACKENDS.values() if e.backend_id == backend_id and e.preprocess)
    return next(entries, None)


def reference(function: Any) -> str:
    """`module:name`, as errors call a function or a class."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{name}"


def _functions() -> dict[str, str]:
    """What `own_function` would give, by backend, as text."""
    named = {e.backend_id: e.preprocess for e in BACKENDS.values() if e.preprocess}
    return {**named, **{name: reference(each) for name, each in _registered.items()}}


def _loaded_details() -> dict[str, type[BackendDetails]]:
    """Those that are imported; ExecuTorch's backends are direct subclasses."""
    module = sys.modules.get(_DETAILS)
    classes: Sequence[Any] = module.BackendDetails.__subclasses__() if module is not None else ()
    return {each.__name__: each for each in classes}


def _import(target: str, what: str) -> Any:
    module, _, name = target.partition(":")
    try:
        found = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise PipelineError(f"{what}, {target}, can't be imported: {error}") from error
    if not callable(found):
        raise PipelineError(f"{what}, {target}, can't be called")
    return found
