"""The preprocess cache: around every backend's preprocess function, results by partition.

A result is kept as blobs and JSON, and may serve a partition that differs in what the backend does
not see (`Sight`); debug handles are then exchanged. A joint backend's results are kept by all
partitions of all methods. Backends of which this package does not know what their output depends
on, and partitions that have no digest, are preprocessed every time.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar

from executorch.exir.backend import backend_api
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from pipeline.backends import BACKENDS, Backend, Sight
from pipeline.compile.preprocess.hashing import UndescribableError
from pipeline.compile.preprocess.key import Partition, describe
from pipeline.compile.preprocess.records import from_json, to_json
from pipeline.compile.preprocess.registry import (
    entry_with_function,
    own_function,
    own_functions,
    reference,
    registered,
    registered_here,
    unknown_backend,
)
from pipeline.store import digest
from pipeline.store.errors import PipelineError
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.toolchain import code, toolchain

Programs = Mapping[str, Sequence[ExportedProgram]]
Specs = Mapping[str, Sequence[list[CompileSpec]]]
Results = dict[str, list[PreprocessResult]]
_T = TypeVar("_T")
_NOT_FOUND = re.compile(r"Backend (.+) was not found\.")  # as ExecuTorch says it
_log = logging.getLogger(__name__)


@dataclass
class PreprocessCounts:
    """Partitions found in the store, preprocessed and kept there, and preprocessed without it; the
    seconds of wall time that backends took, and those that they took for what was found."""

    hits: int = 0
    misses: int = 0
    uncached: int = 0
    seconds: float = 0.0
    saved: float = 0.0


_counts: ContextVar[PreprocessCounts | None] = ContextVar("preprocess counts", default=None)


@contextmanager
def counted_preprocess() -> Iterator[PreprocessCounts]:
    """Counts over every `cached_preprocess` within it, in this process."""
    counts = PreprocessCounts()
    token = _counts.set(counts)
    try:
        yield counts
    finally:
        _counts.reset(token)


def overrides_multimethod(backend: type[BackendDetails]) -> bool:
    """Whether a backend sees all methods at once instead of partition by partition."""
    parents = backend.__mro__[: backend.__mro__.index(BackendDetails)]
    return any("preprocess_multimethod" in vars(parent) for parent in parents)


@contextmanager
def cached_preprocess(store: Store | None) -> Iterator[PreprocessCounts]:
    """Within it, ExecuTorch's lowering finds known results in the store instead of making them;
    without a store it makes all of them.

    `backend_api` finds backends through `BackendDetails.__subclasses__()` and takes no others, so
    a stand-in gives it each backend of the registry behind its cache. This can go when it has a
    registry.
    """
    counts = _counts.get() or PreprocessCounts()
    cache = _Cache(store, counts)
    original = backend_api.BackendDetails
    stand_in = SimpleNamespace(__subclasses__=cache.backends)
    backend_api.BackendDetails = stand_in  # type: ignore[assignment, misc]
    try:
        yield counts
    except NotImplementedError as error:
        missing = _NOT_FOUND.fullmatch(str(error))
        if missing is None:
            raise
        raise unknown_backend(missing[1]) from error
    finally:
        backend_api.BackendDetails = original  # type: ignore[misc]


def preprocess_programs(
    backend_id: str, programs: Programs, specs: Specs, store: Store | None
) -> Results:
    """What a backend gives for these partitions, of each method in their order, from the store
    where that has it. The backend may change the programs. Raises UnknownBackendError."""
    cache = _Cache(store, _counts.get() or PreprocessCounts())
    backend = {each.__name__: each for each in cache.backends()}.get(backend_id)
    if backend is None:
        raise unknown_backend(backend_id)
    results: Results = backend.preprocess_multimethod(programs, specs)
    return results


def sees_all_methods(backend_id: str) -> bool:
    """Whether a backend is given all methods in one call. One that has a function is not, whatever
    its class does."""
    if backend_id in own_functions():
        return False
    details = _details().get(backend_id)
    return details is not None and overrides_multimethod(details)


def _details() -> dict[str, type[BackendDetails]]:
    return {each.__name__: each for each in BackendDetails.__subclasses__()}


class _OfFunction:
    """A backend that is nothing but a function, in the place of a `BackendDetails` class."""

    def __init__(self, backend_id: str) -> None:
        self.__name__ = backend_id

    def preprocess(self, program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        function = own_function(self.__name__)
        assert function is not None, self.__name__
        result = function(program, specs)
        if not isinstance(result, PreprocessResult):
            raise PipelineError(
                f"{self.__name__}: the preprocess function {reference(function)} must return a "
                f"PreprocessResult, not {type(result).__name__}"
            )
        return result

    def preprocess_multimethod(self, programs: Programs, specs: Specs) -> Results:
        return {
            method: [
                self.preprocess(p, own)
                for p, own in zip(programs[method], specs[method], strict=True)
            ]
            for method in programs
        }


_Details: TypeAlias = type[BackendDetails] | _OfFunction


class _Cache:
    """Backends behind the store, or, without one, each in the context that its entry wants."""

    def __init__(self, store: Store | None, counts: PreprocessCounts) -> None:
        self._store = store
        self._counts = counts
        self._told: set[str] = set()

    def backends(self) -> list[Any]:
        """All that can be lowered to, as ExecuTorch is to find them. A function goes before a class
        of the same name."""
        classes = _details()
        functions = own_functions()
        both = [name for name in functions if name in classes]
        for name in both:
            self._tell(
                f"{name} is preprocessed by {registered()[name]}, and not by "
                f"{reference(classes[name])}"
            )
        own: dict[str, _Details] = {name: _OfFunction(name) for name in functions}
        return [self.behind(each) for each in {**classes, **own}.values()]

    def behind(self, backend: _Details) -> Any:
        """What stands in for a backend while ExecuTorch lowers."""
        name = backend.__name__
        entry = None if registered_here(name) else _entry_of(name)
        one = partial(self._one, self._store, backend, entry)
        if entry is None:
            together = partial(self._unknown, backend)
        elif isinstance(backend, type) and overrides_multimethod(backend):
            together = partial(self._joint, self._store, backend, entry)
        else:
            together = partial(self._apart, one)
        return SimpleNamespace(
            __name__=name,
            preprocess=one,  # of `to_backend` with a backend's name
            preprocess_multimethod=together,
        )

    def _uncacheable(self, backend: _Details) -> None:
        if self._store is None:
            return
        name = backend.__name__
        what = (
            "was registered in this process" if registered_here(name) else "is not in the catalogue"
        )
        self._tell(f"{name} {what}, so its results are not cached")

    def _unknown(self, backend: _Details, programs: Programs, specs: Specs) -> Results:
        self._uncacheable(backend)
        number = sum(map(len, programs.values()))
        return self._uncached(number, lambda: backend.preprocess_multimethod(programs, specs))

    def _one(
        self,
        store: Store | None,
        backend: _Details,
        entry: Backend | None,
        program: ExportedProgram,
        specs: list[CompileSpec],
    ) -> PreprocessResult:
        """One partition, through the backend's `preprocess`."""
        if entry is None:
            self._uncacheable(backend)
            return self._uncached(1, lambda: backend.preprocess(program, specs))
        sight = entry.make_sight()

        def make() -> list[PreprocessResult]:
            with entry.around_preprocess():
                return [backend.preprocess(program, specs)]

        if store is None:
            return self._uncached(1, make)[0]
        try:
            partition = describe(program, specs, sight)
        except UndescribableError as reason:
            self._tell(f"a partition of {backend.__name__} is not cached: it holds {reason}")
            return self._uncached(1, make)[0]
        key = _key(entry, partition.to_json())
        return self._cached(store, key, [partition], sight, make)[0]

    def _apart(
        self,
        one: Callable[[ExportedProgram, list[CompileSpec]], PreprocessResult],
        programs: Programs,
        specs: Specs,
    ) -> Results:
        return {
            method: [one(p, own) for p, own in zip(programs[method], specs[method], strict=True)]
            for method in programs
        }

    def _joint(
        self,
        store: Store | None,
        backend: _Details,
        entry: Backend,
        programs: Programs,
        specs: Specs,
    ) -> Results:
        """All or nothing: what one partition gives may depend on every other."""
        sight = Sight()

        def make() -> list[PreprocessResult]:
            with entry.around_preprocess():
                made = backend.preprocess_multimethod(programs, specs)
            return [result for method in programs for result in made[method]]

        number = sum(map(len, programs.values()))
        if store is None:
            return _by_method(self._uncached(number, make), programs)
        try:
            partitions = {
                method: [
                    describe(p, own, sight)
                    for p, own in zip(programs[method], specs[method], strict=True)
                ]
                for method in programs
            }
        except UndescribableError as reason:
            self._tell(f"{backend.__name__} is not cached: a partition holds {reason}")
            return _by_method(self._uncached(number, make), programs)
        methods = [[name, [each.to_json() for each in own]] for name, own in partitions.items()]
        flat = [each for own in partitions.values() for each in own]
        return _by_method(
            self._cached(store, _key(entry, {"methods": methods}), flat, sight, make), programs
        )

    def _cached(
        self,
        store: Store,
        key: Mapping[str, Any],
        partitions: Sequence[Partition],
        sight: Sight,
        make: Callable[[], list[PreprocessResult]],
    ) -> list[PreprocessResult]:
        found = self._found(store, key, partitions, sight)
        if found is not None:
            return found
        with store.lock(digest.of_json(key)):  # others may be at it
            found = self._found(store, key, partitions, sight)
            if found is not None:
                return found
            started = time.perf_counter()
            results = make()
            seconds = time.perf_counter() - started
            self._counts.misses += len(partitions)
            self._counts.seconds += seconds
            self._keep(store, key, results, partitions, sight, seconds)
        return results

    def _found(
        self,
        store: Store,
        key: Mapping[str, Any],
        partitions: Sequence[Partition],
        sight: Sight,
    ) -> list[PreprocessResult] | None:
        entry = store.lookup(key)
        if entry is None:
            return None
        try:
            results = [
                from_json(record, partition.handles, sight, store)
                for record, partition in zip(entry.result["results"], partitions, strict=True)
            ]
        except MissingBlobError as reason:
            _log.warning("%s; preprocessing again", reason)
            return None
        found = [result for result in results if result is not None]
        if len(found) < len(results):
            return None
        self._counts.hits += len(found)
        self._counts.saved += entry.seconds
        return found

    def _keep(
        self,
        store: Store,
        key: Mapping[str, Any],
        results: Sequence[PreprocessResult],
        partitions: Sequence[Partition],
        sight: Sight,
        seconds: float,
    ) -> None:
        records = [
            to_json(result, partition.handles, sight, store)
            for result, partition in zip(results, partitions, strict=True)
        ]
        if None in records:
            self._tell(f"a result of {key['backend']} can't be kept, so it is not cached")
        else:
            store.put_result(key, {"results": records}, seconds=seconds)

    def _uncached(self, number: int, make: Callable[[], _T]) -> _T:
        started = time.perf_counter()
        made = make()
        self._counts.uncached += number
        self._counts.seconds += time.perf_counter() - started
        return made

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            _log.warning("%s", what)


def _entry_of(backend_id: str) -> Backend | None:
    """The entry of the catalogue that says what a backend's results depend on."""
    entries = (entry for entry in BACKENDS.values() if entry.backend_id == backend_id)
    return entry_with_function(backend_id) or next(entries, None)


def _key(entry: Backend, partitions: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": "preprocess",
        "backend": entry.backend_id,
        "function": entry.preprocess,
        "toolchain": toolchain(entry.distributions),
        "facts": entry.machine.get("facts", {}),
        "code": code(),
        **partitions,
    }


def _by_method(results: Sequence[PreprocessResult], programs: Programs) -> Results:
    rest = iter(results)
    return {method: list(islice(rest, len(programs[method]))) for method in programs}
