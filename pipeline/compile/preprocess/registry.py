"""The registry of preprocess functions, by the id of their backend.

A function takes a partition, a program in edge dialect, and its compile specs, and returns what the
backend's runtime is to be given. It is all that a build machine needs of a backend. A backend has
it from the first of `register_preprocess`, in this process; its entry in the catalogue, which names
one (`Preprocessing.function`); and a `BackendDetails` class, as ExecuTorch's backends ship.

Only `preprocess_function` and `find_function` import torch, with what they give.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeAlias

from pipeline.backends import BACKENDS, Backend
from pipeline.store.errors import PipelineError, did_you_mean

if TYPE_CHECKING:
    from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from torch.export import ExportedProgram

    Preprocess: TypeAlias = Callable[
        [ExportedProgram, list[CompileSpec]], PreprocessResult
    ]

_DETAILS = "executorch.exir.backend.backend_details"

_registered: dict[str, Preprocess] = {}


class UnknownBackendError(PipelineError, NotImplementedError):
    """A backend has no preprocess function and no class; ExecuTorch raises the latter error."""


class RegisteredTwiceError(PipelineError, ValueError):
    """A backend that has a preprocess function is given another."""


def register_preprocess(backend_id: str, function: Preprocess) -> Preprocess:
    """Give a backend its preprocess function, in this process.

    It goes before a `BackendDetails` class of the backend. What it makes is not cached, since
    nothing is known of what it depends on; for that, a backend has an entry in the catalogue.

    Args:
        backend_id: by what name a program calls the delegate.
        function: of a program in edge dialect and its compile specs, to a `PreprocessResult`; it is
            returned.

    Raises:
        TypeError: the name is not a text, or the function can't be called.
        RegisteredTwiceError: the backend has a function.
    """
    if not isinstance(backend_id, str) or not backend_id:
        raise TypeError(
            f"a backend's name must be a text that is not empty, not {backend_id!r}"
        )
    if not callable(function):
        raise TypeError(
            f"{backend_id}: a preprocess function must be callable, not {function!r}"
        )
    first = functions().get(backend_id)
    if first is not None:
        raise RegisteredTwiceError(
            f"{backend_id} has a preprocess function: {first}; {reference(function)} can't be "
            "registered as well"
        )
    _registered[backend_id] = function
    return function


def unregister_preprocess(backend_id: str) -> None:
    """Undo `register_preprocess`. Raises UnknownBackendError if there is nothing to undo."""
    if backend_id not in _registered:
        raise UnknownBackendError(
            f"no preprocess function was registered for {backend_id}; "
            f"{did_you_mean(backend_id, sorted(_registered))}"
        )
    del _registered[backend_id]


def is_registered(backend_id: str) -> bool:
    """Tell whether a backend can be preprocessed."""
    return backend_id in registered()


def registered() -> Mapping[str, str]:
    """Return `module:name` of what preprocesses for each backend, sorted by the backend.

    It is a function or a class that the catalogue names, or that this process knows.
    """
    references = {}
    for entry in BACKENDS.values():
        if entry.preprocessing.details:
            references[entry.backend_id] = entry.preprocessing.details
    for name, details in loaded_details().items():
        references[name] = reference(details)
    references |= functions()
    return dict(sorted(references.items()))


def preprocess_function(backend_id: str) -> Preprocess:
    """Import and return the function that preprocesses for a backend.

    Raises UnknownBackendError, or PipelineError for one that can't be imported.
    """
    function = find_function(backend_id)
    if function is not None:
        return function
    details = loaded_details().get(backend_id)
    for entry in BACKENDS.values() if details is None else ():
        target = entry.preprocessing.details
        if entry.backend_id == backend_id and target:
            details = _import(target, f"the BackendDetails class of {entry.name}")
            break
    if details is None:
        raise make_unknown_backend_error(backend_id)
    preprocess: Preprocess = details.preprocess
    return preprocess


def make_unknown_backend_error(backend_id: str) -> UnknownBackendError:
    """Make the error for a backend that nothing preprocesses for."""
    return UnknownBackendError(
        f"Backend {backend_id} was not found; {did_you_mean(backend_id, registered())}"
    )


def find_function(backend_id: str) -> Preprocess | None:
    """Return the function that a backend has apart from any class; None where it has none.

    Raises PipelineError for one that can't be imported.
    """
    if backend_id in _registered:
        return _registered[backend_id]
    entry = find_entry(backend_id)
    if entry is None or not entry.preprocessing.function:
        return None
    description = f"the preprocess function of {entry.name}"
    function: Preprocess = _import(entry.preprocessing.function, description)
    return function


def is_registered_here(backend_id: str) -> bool:
    """Tell whether its function comes from `register_preprocess` and not from the catalogue."""
    return backend_id in _registered


def find_entry(backend_id: str) -> Backend | None:
    """Return the entry of the catalogue that says what a backend's results depend on.

    An entry with a function goes first. A row of a vendor's backend, to which nothing lowers, does
    not say it, and nothing does of a function that this process registered.
    """
    if backend_id in _registered:
        return None
    lowering = None
    for entry in BACKENDS.values():
        if entry.backend_id != backend_id:
            continue
        # Several rows may have one id, of which one says how to preprocess.
        if entry.preprocessing.function:
            return entry
        if entry.lowers and lowering is None:
            lowering = entry
    return lowering


def reference(function: Any) -> str:
    """Return `module:name` of a function or a class, for messages."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{name}"


def functions() -> dict[str, str]:
    """Return references to the functions that backends have apart from any class, sorted."""
    references = {}
    for entry in BACKENDS.values():
        if entry.preprocessing.function:
            references[entry.backend_id] = entry.preprocessing.function
    for name, function in _registered.items():
        references[name] = reference(function)
    return dict(sorted(references.items()))


def loaded_details() -> dict[str, type[BackendDetails]]:
    """Return the classes that are imported; ExecuTorch's are direct subclasses."""
    module = sys.modules.get(_DETAILS)
    classes: Sequence[Any] = (
        module.BackendDetails.__subclasses__() if module is not None else ()
    )
    return {details_class.__name__: details_class for details_class in classes}


def _import(target: str, description: str) -> Any:
    try:
        imported = resolve_name(target)
    except (ImportError, AttributeError) as error:
        raise PipelineError(
            f"{description}, {target}, can't be imported: {error}"
        ) from error
    if not callable(imported):
        raise PipelineError(f"{description}, {target}, can't be called")
    return imported
