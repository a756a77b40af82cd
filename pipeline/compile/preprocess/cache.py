"""The preprocess cache: it wraps every backend's preprocess function during a lowering.

`cached_backend.py` wraps a single backend; this module makes ExecuTorch's lowering find the wrapped
backends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any

from executorch.exir.backend import backend_api

from pipeline.compile.preprocess.cached_backend import (
    CacheContext,
    CachedBackend,
    PreprocessCounts,
    Programs,
    Results,
    Specs,
    is_joint,
    more_key,
)
from pipeline.compile.preprocess.registry import (
    functions,
    loaded_details,
    make_unknown_backend_error,
    reference,
)
from pipeline.program.patching import replaced
from pipeline.store.store import Store

_NOT_FOUND = re.compile(r"Backend (.+) was not found\.")  # ExecuTorch's message

_counts: ContextVar[PreprocessCounts | None] = ContextVar(
    "preprocess counts", default=None
)


@contextmanager
def counted_preprocess() -> Iterator[PreprocessCounts]:
    """Count the partitions of every `cached_preprocess` within the context, in this process."""
    counts = PreprocessCounts()
    token = _counts.set(counts)
    try:
        yield counts
    finally:
        _counts.reset(token)


@contextmanager
def keyed_preprocess(more: Mapping[str, Any]) -> Iterator[None]:
    """Add to the keys of results within the context.

    Args:
        more: anything else in this process that can change the results of backends, such as loaded
            third-party code.
    """
    token = more_key.set(more)
    try:
        yield
    finally:
        more_key.reset(token)


@contextmanager
def cached_preprocess(store: Store | None) -> Iterator[None]:
    """Make ExecuTorch's lowering find known results in the store instead of computing them.

    `backend_api` only accepts backends from `BackendDetails.__subclasses__()`, so a stand-in
    provides each backend of the registry, wrapped in the cache. This can be removed once
    `backend_api` has a registry.
    """
    stand_in = SimpleNamespace(
        __subclasses__=partial(_list_backends, _make_context(store))
    )
    try:
        with replaced(backend_api, "BackendDetails", lambda original: stand_in):
            yield
    except NotImplementedError as error:
        missing = _NOT_FOUND.fullmatch(str(error))
        if missing is None:
            raise
        raise make_unknown_backend_error(missing[1]) from error


def preprocess_programs(
    backend_id: str, programs: Programs, specs: Specs, store: Store | None
) -> Results:
    """Return the results of preprocessing each method's partitions, from the store if possible.

    The backend may change the programs. Raises UnknownBackendError if there is no such backend.
    """
    for backend in _list_backends(_make_context(store)):
        if backend.__name__ == backend_id:
            return backend.preprocess_multimethod(programs, specs)
    raise make_unknown_backend_error(backend_id)


def sees_all_methods(backend_id: str) -> bool:
    """Return whether a backend has no function, and its class receives all methods at once."""
    details = loaded_details().get(backend_id)
    return backend_id not in functions() and details is not None and is_joint(details)


def _make_context(store: Store | None) -> CacheContext:
    return CacheContext(store, _counts.get() or PreprocessCounts())


def _list_backends(context: CacheContext) -> list[CachedBackend]:
    """Return all backends, wrapped; a function takes precedence over a class of the same name."""
    classes = loaded_details()
    references = functions()
    for name in sorted(references.keys() & classes.keys()):
        class_name = reference(classes[name])
        context.warn(
            f"{name} is preprocessed by {references[name]}, not by {class_name}"
        )
    details_by_name = {**classes, **dict.fromkeys(references)}
    return [
        CachedBackend(name, details, context)
        for name, details in details_by_name.items()
    ]
