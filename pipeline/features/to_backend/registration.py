"""Preprocess functions that this process registers, and asks for by their backend."""

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
    """Tell whether a backend can be preprocessed."""
    return backend_id in registered()


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
            details = import_named(target, f"the BackendDetails class of {entry.name}")
            break
    if details is None:
        raise make_unknown_backend_error(backend_id)
    preprocess: Preprocess = details.preprocess
    return preprocess
