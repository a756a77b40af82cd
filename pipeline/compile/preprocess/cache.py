"""The preprocess cache: around every backend's preprocess function, results by partition.

A result is kept as blobs and JSON, and may serve a partition that differs in what the backend does
not depend on (`CacheScope`); debug handles are then exchanged. A joint backend's results are kept
by all partitions of all methods. Backends of which this package does not know what their output
depends on, and partitions that have no digest, are preprocessed every time.
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
from types import SimpleNamespace
from typing import Any, TypeAlias

from executorch.exir.backend import backend_api
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from pipeline.backends import BACKENDS, Backend, CacheScope
from pipeline.compile.preprocess.hashing import UndescribableError
from pipeline.compile.preprocess.key import Partition, describe
from pipeline.compile.preprocess.records import from_json, to_json
from pipeline.compile.preprocess.registry import (
    find_entry,
    find_function,
    is_registered_here,
    list_functions,
    loaded_details,
    make_unknown_backend_error,
    reference,
    registered,
)
from pipeline.store import digest
from pipeline.store.errors import PipelineError
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.toolchain import code, toolchain

Programs = Mapping[str, Sequence[ExportedProgram]]
Specs = Mapping[str, Sequence[list[CompileSpec]]]
Results = dict[str, list[PreprocessResult]]
_NOT_FOUND = re.compile(r"Backend (.+) was not found\.")  # as ExecuTorch says it
_log = logging.getLogger(__name__)


@dataclass
class PreprocessCounts:
    """Counts of partitions that were found in the store, preprocessed and kept, or never cached.

    `seconds` are those of wall time that backends took, `saved` those that they took for what was
    found.
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


@contextmanager
def cached_preprocess(store: Store | None) -> Iterator[PreprocessCounts]:
    """Let ExecuTorch's lowering find known results in the store instead of making them.

    Without a store it makes all of them. `backend_api` finds backends through
    `BackendDetails.__subclasses__()` and takes no others, so a stand-in gives it each backend of
    the registry behind its cache. This can go when it has a registry.
    """
    cache = _Cache(store)
    original = backend_api.BackendDetails
    stand_in = SimpleNamespace(__subclasses__=cache.backends)
    backend_api.BackendDetails = stand_in  # type: ignore[assignment, misc]
    try:
        yield cache.counts
    except NotImplementedError as error:
        missing = _NOT_FOUND.fullmatch(str(error))
        if missing is None:
            raise
        raise make_unknown_backend_error(missing[1]) from error
    finally:
        backend_api.BackendDetails = original  # type: ignore[misc]


def preprocess_programs(
    backend_id: str, programs: Programs, specs: Specs, store: Store | None
) -> Results:
    """Preprocess the partitions of each method, in their order, or find them in the store.

    The backend may change the programs. Raises UnknownBackendError.
    """
    backends = {each.__name__: each for each in _Cache(store).backends()}
    if backend_id not in backends:
        raise make_unknown_backend_error(backend_id)
    results: Results = backends[backend_id].preprocess_multimethod(programs, specs)
    return results


def sees_all_methods(backend_id: str) -> bool:
    """Tell whether a backend is given all methods in one call.

    One that has a function is not, whatever its class does.
    """
    if backend_id in list_functions():
        return False
    details = loaded_details().get(backend_id)
    return details is not None and _is_joint(details)


def _is_joint(backend: _Details) -> bool:
    """Tell whether a class sees all methods at once instead of partition by partition."""
    if not isinstance(backend, type):
        return False
    parents = backend.__mro__[: backend.__mro__.index(BackendDetails)]
    return any("preprocess_multimethod" in vars(parent) for parent in parents)


class _FunctionDetails:
    """A backend that is nothing but a function, in the place of a `BackendDetails` class."""

    def __init__(self, backend_id: str) -> None:
        self.__name__ = backend_id

    def preprocess(self, program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        function = find_function(self.__name__)
        assert function is not None, self.__name__
        result = function(program, specs)
        if not isinstance(result, PreprocessResult):
            raise PipelineError(
                f"{self.__name__}: the preprocess function {reference(function)} must return a "
                f"PreprocessResult, not {type(result).__name__}"
            )
        return result


_Details: TypeAlias = type[BackendDetails] | _FunctionDetails
_Given: TypeAlias = tuple[ExportedProgram, list[CompileSpec]]


@dataclass(frozen=True)
class _Call:
    """One call of a backend: partitions that it preprocesses together.

    `make_key` makes the part of the key that names the described partitions.
    """

    backend: _Details
    entry: Backend | None
    given: Sequence[_Given]
    make: Callable[[], list[PreprocessResult]]
    make_key: Callable[[Sequence[Partition]], Mapping[str, Any]]


class _Cache:
    """Backends behind the store, or, without one, each in the context that its entry wants."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self.counts = _counts.get() or PreprocessCounts()
        self._warned: set[str] = set()

    def backends(self) -> list[Any]:
        """Return all that can be lowered to, as ExecuTorch is to find them.

        A function goes before a class of the same name.
        """
        classes = loaded_details()
        functions = list_functions()
        for name in functions:
            if name in classes:
                self._warn(
                    f"{name} is preprocessed by {registered()[name]}, and not by "
                    f"{reference(classes[name])}"
                )
        own: dict[str, _Details] = {name: _FunctionDetails(name) for name in functions}
        return [self._stand_in(each) for each in {**classes, **own}.values()]

    def _stand_in(self, backend: _Details) -> Any:
        """Return the object that ExecuTorch's lowering takes for the class of a backend."""

        def preprocess(program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
            return self._preprocess(backend, program, specs)

        def preprocess_multimethod(programs: Programs, specs: Specs) -> Results:
            if _is_joint(backend):
                return self._preprocess_jointly(backend, programs, specs)
            return {
                method: [preprocess(*each) for each in zip(own, specs[method], strict=True)]
                for method, own in programs.items()
            }

        return SimpleNamespace(
            __name__=backend.__name__,
            preprocess=preprocess,  # of `to_backend` with a backend's name
            preprocess_multimethod=preprocess_multimethod,
        )

    def _preprocess(
        self, backend: _Details, program: ExportedProgram, specs: list[CompileSpec]
    ) -> PreprocessResult:
        call = _Call(
            backend,
            _find_entry(backend.__name__),
            [(program, specs)],
            lambda: [backend.preprocess(program, specs)],
            lambda partitions: partitions[0].to_json(),
        )
        return self._run(call)[0]

    def _preprocess_jointly(self, backend: Any, programs: Programs, specs: Specs) -> Results:
        """Preprocess all or nothing: the result of a partition may depend on every other."""

        def make() -> list[PreprocessResult]:
            made = backend.preprocess_multimethod(programs, specs)
            return [result for method in programs for result in made[method]]

        def by_method(values: Sequence[Any]) -> dict[str, list[Any]]:
            rest = iter(values)
            return {method: list(islice(rest, len(programs[method]))) for method in programs}

        def make_key(partitions: Sequence[Partition]) -> dict[str, Any]:
            records = by_method([each.to_json() for each in partitions])
            return {"methods": [[name, own] for name, own in records.items()]}

        given = [
            each
            for method in programs
            for each in zip(programs[method], specs[method], strict=True)
        ]
        return by_method(
            self._run(_Call(backend, _find_entry(backend.__name__), given, make, make_key))
        )

    def _run(self, call: _Call) -> list[PreprocessResult]:
        name, entry, store = call.backend.__name__, call.entry, self._store
        if store is None or entry is None:
            if store is not None:
                here = is_registered_here(name)
                what = "was registered in this process" if here else "is not in the catalogue"
                self._warn(f"{name} {what}, so its results are not cached")
            return self._make_uncached(call)
        joint = _is_joint(call.backend)
        scope = CacheScope() if joint else entry.preprocessing.make_cache_scope()
        try:
            partitions = [describe(*each, scope) for each in call.given]
        except UndescribableError as reason:
            self._warn(f"a partition of {name} is not cached: it holds {reason}")
            return self._make_uncached(call)
        cached = _Results(store, _make_key(entry, call.make_key(partitions)), partitions, scope)
        found = self._find(cached)
        if found is None:
            with store.lock(digest.hash_json(cached.key)):  # others may be making it
                found = self._find(cached) or self._make(call, cached)
        return found

    def _find(self, cached: _Results) -> list[PreprocessResult] | None:
        found = cached.find()
        if found is None:
            return None
        results, seconds = found
        self.counts.hits += len(results)
        self.counts.saved += seconds
        return results

    def _make(self, call: _Call, cached: _Results) -> list[PreprocessResult]:
        results, seconds = _time(call)
        self.counts.misses += len(results)
        self.counts.seconds += seconds
        if not cached.keep(results, seconds):
            self._warn(f"a result of {cached.key['backend']} can't be kept, so it is not cached")
        return results

    def _make_uncached(self, call: _Call) -> list[PreprocessResult]:
        results, seconds = _time(call)
        self.counts.uncached += len(results)
        self.counts.seconds += seconds
        return results

    def _warn(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("%s", what)


@dataclass(frozen=True)
class _Results:
    """The place of the results of some partitions in the store."""

    store: Store
    key: Mapping[str, Any]
    partitions: Sequence[Partition]
    scope: CacheScope

    def find(self) -> tuple[list[PreprocessResult], float] | None:
        """Return the results, and the seconds that they took; None where one is missing."""
        entry = self.store.get_by_key(self.key)
        if entry is None:
            return None
        try:
            results = [
                from_json(record, partition.handles, self.scope, self.store)
                for record, partition in zip(entry.result["results"], self.partitions, strict=True)
            ]
        except MissingBlobError as reason:
            _log.warning("%s; preprocessing again", reason)
            return None
        found = [result for result in results if result is not None]
        return (found, entry.seconds) if len(found) == len(results) else None

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


def _time(call: _Call) -> tuple[list[PreprocessResult], float]:
    started = time.perf_counter()
    with call.entry.preprocessing.around() if call.entry is not None else nullcontext():
        results = call.make()
    return results, time.perf_counter() - started


def _find_entry(backend_id: str) -> Backend | None:
    """Return the entry of the catalogue that says what a backend's results depend on.

    A row of a vendor's backend, to which nothing lowers, does not say it.
    """
    if is_registered_here(backend_id):
        return None
    entries = (
        entry
        for entry in BACKENDS.values()
        if entry.backend_id == backend_id
        and (entry.lowering.make_partitioner or entry.lowering.make_passes)
    )
    return find_entry(backend_id) or next(entries, None)


def _make_key(entry: Backend, partitions: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": "preprocess",
        "backend": entry.backend_id,
        "function": entry.preprocessing.function,
        "toolchain": toolchain(entry.host.distributions),
        "facts": entry.machine.get("facts", {}),
        "code": code(),
        **partitions,
    }
