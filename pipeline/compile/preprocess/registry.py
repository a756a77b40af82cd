"""The registry of preprocess functions, by backend id.

A function takes a partition, which is a program in edge dialect, and its compile specs, and returns
the result for the backend's runtime. A build machine needs nothing else of a backend. A function
that `register_preprocess` registered in this process comes first, then the function that the
backend's entry in the catalogue names (`Preprocessing.function`), then a `BackendDetails` class, as
ExecuTorch's backends ship it.

Only `find_function` imports torch, along with the function.
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

# Functions registered in this process (`features/to_backend/registration.py`).
REGISTERED: dict[str, Preprocess] = {}


class UnknownBackendError(PipelineError, NotImplementedError):
    """The error for a backend that has neither a preprocess function nor a class.

    It is also a NotImplementedError, which ExecuTorch raises in this case.
    """


def registered() -> Mapping[str, str]:
    """Return the `module:name` of the function or class that preprocesses for each backend.

    These are the functions and classes that the catalogue names or this process knows, sorted by
    backend.
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
    """Make the error for a backend that has neither a preprocess function nor a class."""
    return UnknownBackendError(
        f"Backend {backend_id} was not found; {did_you_mean(backend_id, registered())}"
    )


def find_function(backend_id: str) -> Preprocess | None:
    """Return the preprocess function of a backend, or None if it has none apart from a class.

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


def find_entry(backend_id: str) -> Backend | None:
    """Return the catalogue entry that says what a backend's results depend on, or None.

    An entry with a function takes precedence. Entries that nothing lowers to, such as a vendor's
    backend, are skipped, and a function that this process registered has no entry.
    """
    if backend_id in REGISTERED:
        return None
    lowering = None
    for entry in BACKENDS.values():
        if entry.backend_id != backend_id:
            continue
        # Several entries may have the same id; one of them says how to preprocess.
        if entry.preprocessing.function:
            return entry
        if entry.lowers and lowering is None:
            lowering = entry
    return lowering


def reference(function: Any) -> str:
    """Return the `module:name` of a function or a class, for messages."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{name}"


def functions() -> dict[str, str]:
    """Return references to the preprocess functions that aren't from a class, sorted by backend."""
    references = {}
    for entry in BACKENDS.values():
        if entry.preprocessing.function:
            references[entry.backend_id] = entry.preprocessing.function
    for name, function in REGISTERED.items():
        references[name] = reference(function)
    return dict(sorted(references.items()))


def loaded_details() -> dict[str, type[BackendDetails]]:
    """Return the backend classes that are imported, by name.

    Like ExecuTorch, this finds only direct subclasses of `BackendDetails`.
    """
    # Not imported here: no backend class exists until something else imports the module.
    module = sys.modules.get(_DETAILS)
    classes: Sequence[Any] = (
        module.BackendDetails.__subclasses__() if module is not None else ()
    )
    return {details_class.__name__: details_class for details_class in classes}


def import_named(target: str, description: str) -> Any:
    """Import a function or class by its reference.

    `description` names it in the PipelineError that is raised if that fails.
    """
    try:
        imported = resolve_name(target)
    except (ImportError, AttributeError) as error:
        raise PipelineError(
            f"{description}, {target}, can't be imported: {error}"
        ) from error
    if not callable(imported):
        raise PipelineError(f"{description}, {target}, can't be called")
    return imported
