"""Registers preprocess functions in this process, and finds the one for a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.backends import BACKENDS
from pipeline.compile.preprocess.registry import (
    REGISTERED,
    UnknownBackendError,
    find_function,
    functions,
    import_named,
    loaded_details,
    make_unknown_backend_error,
    reference,
    registered,
)
from pipeline.store.errors import PipelineError, did_you_mean

if TYPE_CHECKING:
    from pipeline.compile.preprocess.registry import Preprocess


class RegisteredTwiceError(PipelineError, ValueError):
    """A preprocess function is registered for a backend that already has one."""


def register_preprocess(backend_id: str, function: Preprocess) -> Preprocess:
    """Register the preprocess function of a backend in this process.

    It takes precedence over the backend's `BackendDetails` class. Its results are not cached, since
    their dependencies are unknown; to be cached, a backend needs an entry in the catalogue.

    Args:
        backend_id: the name by which a program calls the delegate.
        function: takes a program in edge dialect and its compile specs, and returns a
            `PreprocessResult`.

    Returns:
        The function.

    Raises:
        TypeError: the name is not a string, or the function can't be called.
        RegisteredTwiceError: the backend has a function already.
    """
    if not isinstance(backend_id, str) or not backend_id:
        raise TypeError(
            f"a backend's name must be a non-empty string, not {backend_id!r}"
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
    REGISTERED[backend_id] = function
    return function


def unregister_preprocess(backend_id: str) -> None:
    """Undo `register_preprocess`. Raises UnknownBackendError if there is nothing to undo."""
    if backend_id not in REGISTERED:
        raise UnknownBackendError(
            f"no preprocess function was registered for {backend_id}; "
            f"{did_you_mean(backend_id, sorted(REGISTERED))}"
        )
    del REGISTERED[backend_id]


def is_registered(backend_id: str) -> bool:
    """Return whether a backend can be preprocessed."""
    return backend_id in registered()


def preprocess_function(backend_id: str) -> Preprocess:
    """Import and return the function that preprocesses for a backend.

    Raises UnknownBackendError if there is none, or PipelineError if it can't be imported.
    """
    function = find_function(backend_id)
    if function is not None:
        return function
    details = loaded_details().get(backend_id)
    for entry in BACKENDS.values() if details is None else ():
        target = entry.preprocessing.details
        if entry.backend_id == backend_id and target:
            details = import_named(target, f"the BackendDetails class of {entry.name}")
            break
    if details is None:
        raise make_unknown_backend_error(backend_id)
    preprocess: Preprocess = details.preprocess
    return preprocess
