"""The registry of preprocess functions, by the id of their backend.

A function takes a partition, a program in edge dialect, and its compile specs, and returns what the
backend's runtime is to be given. It is all that a build machine needs of a backend. A backend has
it from the first of `register_preprocess`, in this process; its entry in the catalogue, which names
one (`Preprocessing.function`); and a `BackendDetails` class, as ExecuTorch's backends ship.

Only `find_function` imports torch, with what it gives.
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

# What this process registered (`features/to_backend/registration.py`).
REGISTERED: dict[str, Preprocess] = {}


class UnknownBackendError(PipelineError, NotImplementedError):
    """A backend has no preprocess function and no class; ExecuTorch raises the latter error."""


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
    # Last, since a function goes before a class of the same name.
    references |= functions()
    return dict(sorted(references.items()))


def make_unknown_backend_error(backend_id: str) -> UnknownBackendError:
    """Make the error for a backend that nothing preprocesses for."""
    return UnknownBackendError(
        f"Backend {backend_id} was not found; {did_you_mean(backend_id, registered())}"
    )


def find_function(backend_id: str) -> Preprocess | None:
    """Return the function that a backend has apart from any class; None where it has none.

    Raises PipelineError for one that can't be imported.
    """
    if backend_id in REGISTERED:
        return REGISTERED[backend_id]
    entry = find_entry(backend_id)
    if entry is None or not entry.preprocessing.function:
        return None
    description = f"the preprocess function of {entry.name}"
    function: Preprocess = import_named(entry.preprocessing.function, description)
    return function


def is_registered_here(backend_id: str) -> bool:
    """Tell whether its function comes from `register_preprocess` and not from the catalogue."""
    return backend_id in REGISTERED


def find_entry(backend_id: str) -> Backend | None:
    """Return the entry of the catalogue that says what a backend's results depend on.

    An entry with a function goes first. A row of a vendor's backend, to which nothing lowers, does
    not say it, and nothing does of a function that this process registered.
    """
    if backend_id in REGISTERED:
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
    for name, function in REGISTERED.items():
        references[name] = reference(function)
    return dict(sorted(references.items()))


def loaded_details() -> dict[str, type[BackendDetails]]:
    """Return the classes that are imported; ExecuTorch's are direct subclasses."""
    # Not imported for this: until something else does, no backend class exists.
    module = sys.modules.get(_DETAILS)
    classes: Sequence[Any] = (
        module.BackendDetails.__subclasses__() if module is not None else ()
    )
    return {details_class.__name__: details_class for details_class in classes}


def import_named(target: str, description: str) -> Any:
    """Import a function or class by its reference. Raises PipelineError."""
    try:
        imported = resolve_name(target)
    except (ImportError, AttributeError) as error:
        raise PipelineError(
            f"{description}, {target}, can't be imported: {error}"
        ) from error
    if not callable(imported):
        raise PipelineError(f"{description}, {target}, can't be called")
    return imported
