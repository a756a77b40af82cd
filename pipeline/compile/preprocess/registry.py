"""The registry of preprocess functions, keyed by backend id.

A function takes a partition (a program in edge dialect) and its compile specs, and returns the
payload for the backend's runtime. It is all that a build machine needs from a backend. A backend's
function comes from the first of these sources that has one: `register_preprocess`, in this process;
its catalogue entry (`Preprocessing.function`); a `BackendDetails` class, which ExecuTorch's
backends ship.

Only `find_function` imports torch, along with the function's module.
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

# The functions that this process registered (`features/to_backend/registration.py`).
REGISTERED: dict[str, Preprocess] = {}


class UnknownBackendError(PipelineError, NotImplementedError):
    """An unknown backend: it has no preprocess function and no class.

    It is a NotImplementedError because ExecuTorch raises that error in this case.
    """


def registered() -> Mapping[str, str]:
    """Return `module:name` of the function or class that preprocesses for each backend.

    The catalogue names it, or this process knows it. The mapping is sorted by backend id.
    """
    references = {}
    for entry in BACKENDS.values():
        if entry.preprocessing.details:
            references[entry.backend_id] = entry.preprocessing.details
    for name, details in loaded_details().items():
        references[name] = reference(details)
    # Last, since a function takes precedence over a class of the same name.
    references |= functions()
    return dict(sorted(references.items()))


def make_unknown_backend_error(backend_id: str) -> UnknownBackendError:
    """Return the error for a backend without a preprocess function or class."""
    return UnknownBackendError(
        f"Backend {backend_id} was not found; {did_you_mean(backend_id, registered())}"
    )


def find_function(backend_id: str) -> Preprocess | None:
    """Return a backend's preprocess function, or None if it has at most a class.

    Raises PipelineError if the function can't be imported.
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
    """Return whether a backend's function comes from `register_preprocess`, not the catalogue."""
    return backend_id in REGISTERED


def find_entry(backend_id: str) -> Backend | None:
    """Return the catalogue entry that says what a backend's results depend on, or None.

    An entry with a function takes precedence. Entries of vendors' backends to which nothing lowers
    don't count, and a function that this process registered has no entry.
    """
    if backend_id in REGISTERED:
        return None
    lowering = None
    for entry in BACKENDS.values():
        if entry.backend_id != backend_id:
            continue
        # Several entries may have the same id, but only one of them says how to preprocess.
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
    """Return references to the preprocess functions of backends (not classes), sorted by id."""
    references = {}
    for entry in BACKENDS.values():
        if entry.preprocessing.function:
            references[entry.backend_id] = entry.preprocessing.function
    for name, function in REGISTERED.items():
        references[name] = reference(function)
    return dict(sorted(references.items()))


def loaded_details() -> dict[str, type[BackendDetails]]:
    """Return the imported backend classes by name: the direct subclasses of `BackendDetails`."""
    # Don't import the module here: until something else does, no backend class exists.
    module = sys.modules.get(_DETAILS)
    classes: Sequence[Any] = (
        module.BackendDetails.__subclasses__() if module is not None else ()
    )
    return {details_class.__name__: details_class for details_class in classes}


def import_named(target: str, description: str) -> Any:
    """Import a function or class by its reference. Raises PipelineError if that fails."""
    try:
        imported = resolve_name(target)
    except (ImportError, AttributeError) as error:
        raise PipelineError(
            f"{description}, {target}, can't be imported: {error}"
        ) from error
    if not callable(imported):
        raise PipelineError(f"{description}, {target}, can't be called")
    return imported
