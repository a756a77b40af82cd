"""The preprocess cache: around every backend's preprocess function, results by partition.

A result may serve a partition that differs in what the backend does not depend on (`CacheScope`);
debug handles are then exchanged. A joint backend's results are kept by all partitions of all
methods. Backends of which it is not known what their output depends on, and partitions that have no
digest, are preprocessed every time.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeAlias

import torch
from executorch.exir.backend import backend_api
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from pipeline.backends import CacheScope
from pipeline.compile.preprocess.key import Partition, UndescribableError, describe
from pipeline.compile.preprocess.records import from_json, to_json
from pipeline.compile.preprocess.registry import (
    find_entry,
    find_function,
    functions,
    is_registered_here,
    loaded_details,
    make_unknown_backend_error,
    reference,
)
from pipeline.compile.preprocess.spill import spilled_data
from pipeline.compile.ranges import copy_ranges
from pipeline.program.kept_state import kept_state
from pipeline.program.patching import replaced
from pipeline.store import digest
from pipeline.store.errors import PipelineError
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.toolchain import code, toolchain

Programs = Mapping[str, Sequence[ExportedProgram]]
Specs = Mapping[str, Sequence[list[CompileSpec]]]
Results = dict[str, list[PreprocessResult]]
_Given: TypeAlias = tuple[ExportedProgram, list[CompileSpec]]
_Make: TypeAlias = Callable[[], list[PreprocessResult]]
_MakeKey: TypeAlias = Callable[[Sequence[Partition]], Mapping[str, Any]]
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_NOT_FOUND = re.compile(r"Backend (.+) was not found\.")  # as ExecuTorch says it
_log = logging.getLogger(__name__)


@dataclass
class PreprocessCounts:
    """Counts of partitions that were found in the store, preprocessed and kept, or never cached.

    `seconds` are the wall time that backends took, `saved` what they once took for the hits.
    """

    hits: int = 0
    misses: int = 0
    uncached: int = 0
    seconds: float = 0.0
    saved: float = 0.0


_counts: ContextVar[PreprocessCounts | None] = ContextVar("preprocess counts", default=None)


@contextmanager
def counted_preprocess() -> Iterator[PreprocessCounts]:
    """Count over every `cached_preprocess` within it, in this process."""
    counts = PreprocessCounts()
    token = _counts.set(counts)
    try:
        yield counts
    finally:
        _counts.reset(token)


_more_key: ContextVar[Mapping[str, Any]] = ContextVar("more of the keys", default=_NOTHING)


@contextmanager
def keyed_preprocess(more: Mapping[str, Any]) -> Iterator[None]:
    """Add to the keys of results within it: what else of this process can change what backends
    make, such as the code of others that it has loaded."""
    token = _more_key.set(more)
    try:
        yield
    finally:
        _more_key.reset(token)


@contextmanager
def cached_preprocess(store: Store | None) -> Iterator[None]:
    """Let ExecuTorch's lowering find known results in the store instead of making them.

    `backend_api` finds backends through `BackendDetails.__subclasses__()` and takes no others, so a
    stand-in gives it each backend of the registry behind its cache. This can go when it has a
    registry.
    """
    stand_in = SimpleNamespace(__subclasses__=_Cache(store).backends)
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
    for backend in _Cache(store).backends():
        if backend.__name__ == backend_id:
            return backend.preprocess_multimethod(programs, specs)
    raise make_unknown_backend_error(backend_id)


def sees_all_methods(backend_id: str) -> bool:
    """Tell whether a backend has no function, and a class that is given all methods at once."""
    details = loaded_details().get(backend_id)
    return backend_id not in functions() and details is not None and _is_joint(details)


def _is_joint(details: type[BackendDetails]) -> bool:
    """Tell whether a class sees all methods at once instead of partition by partition."""
    parents = details.__mro__[: details.__mro__.index(BackendDetails)]
    return any("preprocess_multimethod" in vars(parent) for parent in parents)


class _Cache:
    """The store of one lowering, or none, and what is counted and said meanwhile."""

    def __init__(self, store: Store | None) -> None:
        self.store = store
        self.counts = _counts.get() or PreprocessCounts()
        self._warned: set[str] = set()

    def backends(self) -> list[CachedBackend]:
        """Return all that can be lowered to; a function goes before a class of the same name."""
        classes, own = loaded_details(), functions()
        for name in sorted(own.keys() & classes.keys()):
            other = reference(classes[name])
            self.warn(f"{name} is preprocessed by {own[name]}, and not by {other}")
        found = {**classes, **dict.fromkeys(own)}
        return [CachedBackend(name, details, self) for name, details in found.items()]

    def warn(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("%s", what)


class CachedBackend:
    """A backend behind the store, as ExecuTorch's lowering takes its class.

    `details` is that class, None for a backend that is only a function. Without a store, each
    partition is preprocessed in the context that the backend's entry wants.
    """

    def __init__(
        self, backend_id: str, details: type[BackendDetails] | None, cache: _Cache
    ) -> None:
        self.__name__ = backend_id
        self._details = details
        self._cache = cache
        self._entry = find_entry(backend_id)
        self._joint = details if details is not None and _is_joint(details) else None

    def preprocess(self, program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        """Preprocess one partition: all that `to_backend` with a backend's name calls."""
        (result,) = self.find_or_make(
            [(program, specs)],
            lambda: [self._call(program, specs)],
            lambda partitions: partitions[0].to_json(),
        )
        return result

    def preprocess_multimethod(self, programs: Programs, specs: Specs) -> Results:
        """Preprocess partitions by method; a result of a joint backend may depend on all others."""
        given = {name: list(zip(own, specs[name], strict=True)) for name, own in programs.items()}
        joint = self._joint
        if joint is None or self._are_apart(specs):
            return {name: [self.preprocess(*each) for each in own] for name, own in given.items()}

        def by_method(values: Sequence[Any]) -> dict[str, list[Any]]:
            rest = iter(values)
            return {name: list(islice(rest, len(own))) for name, own in given.items()}

        def make() -> list[PreprocessResult]:
            made = joint.preprocess_multimethod(programs, specs)
            return [result for name in programs for result in made[name]]

        def make_key(partitions: Sequence[Partition]) -> dict[str, Any]:
            records = by_method([each.to_json() for each in partitions])
            return {"methods": [[name, own] for name, own in records.items()]}

        every = [each for own in given.values() for each in own]
        return by_method(self.find_or_make(every, make, make_key))

    def _are_apart(self, specs: Specs) -> bool:
        """Tell whether a joint backend would preprocess each of these partitions by itself."""
        if self._entry is None:
            return False
        is_apart = self._entry.preprocessing.specs_apart
        return all(is_apart(each) for own in specs.values() for each in own)

    def _call(self, program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        if self._details is not None:
            return self._details.preprocess(program, specs)
        function = find_function(self.__name__)
        assert function is not None, self.__name__
        result = function(program, specs)
        if not isinstance(result, PreprocessResult):
            raise PipelineError(
                f"{self.__name__}: the preprocess function {reference(function)} must return a "
                f"PreprocessResult, not {type(result).__name__}"
            )
        return result

    def find_or_make(
        self, given: Sequence[_Given], make: _Make, make_key: _MakeKey
    ) -> list[PreprocessResult]:
        """Return results of partitions in one call; `make_key` makes their part of its key."""
        place = self._locate(given, make_key)
        if place is None:
            return self._make(given, make)
        found = place.find(self._cache.counts)
        if found is None:
            with place.store.lock(digest.hash_json(place.key)):  # others may be making it
                found = place.find(self._cache.counts) or self._make(given, make, place)
        return found

    def _make(
        self, given: Sequence[_Given], make: _Make, place: _Place | None = None
    ) -> list[PreprocessResult]:
        """Make results, and keep them where they have a place, and are all that came of it."""
        entry, counts, started = self._entry, self._cache.counts, time.perf_counter()
        plugin = f"plugin {entry.plugin}" if entry is not None and entry.plugin else ""
        before = copy_ranges(program for program, _ in given)
        with (
            entry.preprocessing.around() if entry is not None else nullcontext(),
            spilled_data(entry.preprocessing.names_data if entry else "", self._cache.store),
            kept_state(plugin) if plugin else nullcontext(),
        ):
            results = make()
        seconds = time.perf_counter() - started
        counts.seconds += seconds
        # A result that is found would not narrow the method's sizes as making it does.
        narrows = copy_ranges(program for program, _ in given) != before
        if place is None or narrows:
            counts.uncached += len(results)
            return results
        counts.misses += len(results)
        if not place.keep(results, seconds):
            self._cache.warn(f"a result of {self.__name__} can't be kept, so it is not cached")
        return results

    def _locate(self, given: Sequence[_Given], make_key: _MakeKey) -> _Place | None:
        """Return the place of results in the store; None where they can't be cached."""
        name, entry, store = self.__name__, self._entry, self._cache.store
        if store is None:
            return None
        if entry is None:
            here = is_registered_here(name)
            what = "was registered in this process" if here else "is not in the catalogue"
            self._cache.warn(f"{name} {what}, so its results are not cached")
            return None
        scope = CacheScope() if self._joint is not None else entry.preprocessing.make_cache_scope()
        try:
            partitions = [describe(*each, scope) for each in given]
        except UndescribableError as reason:
            self._cache.warn(f"a partition of {name} is not cached: it holds {reason}")
            return None
        key = {
            "kind": "preprocess",
            "backend": entry.backend_id,
            "function": entry.preprocessing.function,
            "toolchain": toolchain(entry.host.distributions),
            "facts": entry.machine.get("facts", {}),
            "code": code(),
            **({} if torch.backends.mkldnn.enabled else {"keep_ranges": True}),
            **({"loaded": dict(more)} if (more := _more_key.get()) else {}),
            **make_key(partitions),
        }
        return _Place(store, key, partitions, scope, entry.preprocessing.names_data)


@dataclass(frozen=True)
class _Place:
    """The place of the results of some partitions in the store."""

    store: Store
    key: Mapping[str, Any]
    partitions: Sequence[Partition]
    scope: CacheScope
    names_data: str

    def find(self, counts: PreprocessCounts) -> list[PreprocessResult] | None:
        """Return the results, and count them; None where one is missing."""
        entry = self.store.get_by_key(self.key)
        if entry is None:
            return None
        try:
            results = [
                from_json(record, partition.handles, self.scope, self.store, self.names_data)
                for record, partition in zip(entry.result["results"], self.partitions, strict=True)
            ]
        except MissingBlobError as reason:
            _log.warning("%s; preprocessing again", reason)
            return None
        found = [result for result in results if result is not None]
        if len(found) < len(results):
            return None
        counts.hits += len(found)
        counts.saved += entry.seconds
        return found

    def keep(self, results: Sequence[PreprocessResult], seconds: float) -> bool:
        """Keep the results; False where one has no record."""
        records = [
            to_json(result, partition.handles, self.scope, self.store)
            for result, partition in zip(results, self.partitions, strict=True)
        ]
        if None in records:
            return False
        self.store.put_result(self.key, {"results": records}, seconds=seconds)
        return True
