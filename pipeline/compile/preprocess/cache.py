"""The preprocess cache: around every backend's preprocess function, while a lowering lasts.

What it does for one backend is in `cached_backend.py`; here ExecuTorch's lowering is made to find
backends behind it.
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

_NOT_FOUND = re.compile(r"Backend (.+) was not found\.")  # as ExecuTorch says it

_counts: ContextVar[PreprocessCounts | None] = ContextVar(
    "preprocess counts", default=None
)


@contextmanager
def counted_preprocess() -> Iterator[PreprocessCounts]:
    """Count over every `cached_preprocess` within it, in this process."""
    counts = PreprocessCounts()
    token = _counts.set(counts)
    try:
        yield counts
    finally:
        _counts.reset(token)


@contextmanager
def keyed_preprocess(more: Mapping[str, Any]) -> Iterator[None]:
    """Add to the keys of results within it: what else of this process can change what backends
    make, such as the code of others that it has loaded."""
    token = more_key.set(more)
    try:
        yield
    finally:
        more_key.reset(token)


@contextmanager
def cached_preprocess(store: Store | None) -> Iterator[None]:
    """Let ExecuTorch's lowering find known results in the store instead of making them.

    `backend_api` finds backends through `BackendDetails.__subclasses__()` and takes no others, so a
    stand-in gives it each backend of the registry behind its cache. This can go when it has a
    registry.
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
    """Preprocess the partitions of each method, or find them in the store.

    The backend may change the programs. Raises UnknownBackendError.
    """
    for backend in _list_backends(_make_context(store)):
        if backend.__name__ == backend_id:
            return backend.preprocess_multimethod(programs, specs)
    raise make_unknown_backend_error(backend_id)


def sees_all_methods(backend_id: str) -> bool:
    """Tell whether a backend has no function, and a class that is given all methods at once."""
    details = loaded_details().get(backend_id)
    return backend_id not in functions() and details is not None and is_joint(details)


def _make_context(store: Store | None) -> CacheContext:
    return CacheContext(store, _counts.get() or PreprocessCounts())


def _list_backends(context: CacheContext) -> list[CachedBackend]:
    """Return all that can be lowered to; a function goes before a class of the same name."""
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
