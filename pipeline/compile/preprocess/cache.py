"""The preprocess cache, which wraps each backend's preprocess function during a lowering.

`cached_backend.py` caches the results of one backend. This module makes ExecuTorch's lowering find
the backends behind their caches.
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
    """Count the partitions of each `cached_preprocess` within the context, in this process."""
    counts = PreprocessCounts()
    token = _counts.set(counts)
    try:
        yield counts
    finally:
        _counts.reset(token)


@contextmanager
def keyed_preprocess(more: Mapping[str, Any]) -> Iterator[None]:
    """Add `more` to the keys of results within the context.

    It describes anything else in this process that can change the results of backends, such as
    loaded third-party code.
    """
    token = more_key.set(more)
    try:
        yield
    finally:
        more_key.reset(token)


@contextmanager
def cached_preprocess(store: Store | None) -> Iterator[None]:
    """Let ExecuTorch's lowering find known results in the store instead of making them.

    `backend_api` finds backends only through `BackendDetails.__subclasses__()`, so a stand-in for
    that class returns each backend of the registry behind its cache. This can go when `backend_api`
    has a registry.

    Raises UnknownBackendError.
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
    """Preprocess the partitions of each method, or find their results in the store.

    The backend may change the programs. Raises UnknownBackendError.
    """
    for backend in _list_backends(_make_context(store)):
        if backend.__name__ == backend_id:
            return backend.preprocess_multimethod(programs, specs)
    raise make_unknown_backend_error(backend_id)


def sees_all_methods(backend_id: str) -> bool:
    """Return whether a backend has no function, and its class is given all methods at once."""
    details = loaded_details().get(backend_id)
    return backend_id not in functions() and details is not None and is_joint(details)


def _make_context(store: Store | None) -> CacheContext:
    return CacheContext(store, _counts.get() or PreprocessCounts())


def _list_backends(context: CacheContext) -> list[CachedBackend]:
    """Return all backends that can be lowered to.

    A function takes precedence over a class of the same name.
    """
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
