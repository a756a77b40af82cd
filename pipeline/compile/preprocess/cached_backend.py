"""One backend behind the preprocess cache: results by partition, found in the store or made.

A result may serve a partition that differs in what the backend does not depend on (`CacheScope`);
debug handles are then exchanged. A joint backend's results are kept by all partitions of all
methods. Backends whose output depends on unknown things, and partitions without a digest, are
preprocessed every time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from pipeline.backends import Backend, CacheScope
from pipeline.compile.preprocess.key import Partition, UndescribableError, describe
from pipeline.compile.preprocess.records import from_json, to_json
from pipeline.compile.preprocess.registry import (
    find_entry,
    find_function,
    is_registered_here,
    reference,
)
from pipeline.compile.preprocess.spill import spilled_data
from pipeline.compile.ranges import copy_ranges
from pipeline.program.kept_state import kept_state
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
_log = logging.getLogger(__name__)

# What else of this process can change results, as `keyed_preprocess` sets it.
more_key: ContextVar[Mapping[str, Any]] = ContextVar(
    "more of the keys", default=_NOTHING
)


@dataclass
class PreprocessCounts:
    """Counts of partitions that were found in the store, preprocessed and kept, or never cached.

    `spent` are the seconds of wall time that backends took, `saved` what they once took for the
    hits.
    """

    hits: int = 0
    misses: int = 0
    uncached: int = 0
    spent: float = 0.0
    saved: float = 0.0


class CacheContext:
    """The store of one lowering, or none, and what is counted and logged meanwhile."""

    def __init__(self, store: Store | None, counts: PreprocessCounts) -> None:
        self.store = store
        self.counts = counts
        self._warned: set[str] = set()

    def warn(self, sentence: str) -> None:
        """Log a warning, once."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            _log.warning("%s", sentence)


def is_joint(details: type[BackendDetails]) -> bool:
    """Tell whether a class sees all methods at once instead of partition by partition."""
    parents = details.__mro__[: details.__mro__.index(BackendDetails)]
    return any("preprocess_multimethod" in vars(parent) for parent in parents)


class CachedBackend:
    """A backend behind the store, as ExecuTorch's lowering takes its class.

    `details` is that class, None for a backend that is only a function. Without a store, each
    partition is preprocessed in the context that the backend's entry wants.
    """

    def __init__(
        self,
        backend_id: str,
        details: type[BackendDetails] | None,
        context: CacheContext,
    ) -> None:
        self.__name__ = backend_id
        self._details = details
        self._context = context
        self._entry = find_entry(backend_id)
        self._joint = details if details is not None and is_joint(details) else None

    def copy_exported_program_for_preprocess(
        self, program: ExportedProgram, specs: list[CompileSpec]
    ) -> ExportedProgram:
        """Copy a partition as its backend does; ExecuTorch 1.4 copies without asking."""
        copy_program = getattr(
            self._details or BackendDetails,
            "copy_exported_program_for_preprocess",
            lambda program, specs: deepcopy(program),
        )
        return copy_program(program, specs)

    def preprocess(
        self, program: ExportedProgram, specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Preprocess one partition: all that `to_backend` with a backend's name calls."""
        (result,) = self.find_or_make(
            [(program, specs)],
            lambda: [self._call(program, specs)],
            lambda partitions: partitions[0].to_json(),
        )
        return result

    def preprocess_multimethod(self, programs: Programs, specs: Specs) -> Results:
        """Preprocess partitions by method; a result of a joint backend may depend on all others."""
        partitions: dict[str, list[_Given]] = {}
        for name, method_programs in programs.items():
            partitions[name] = list(zip(method_programs, specs[name], strict=True))
        joint = self._joint
        if joint is None or self._are_apart(specs):
            results = {}
            for name, method_partitions in partitions.items():
                results[name] = [
                    self.preprocess(*partition) for partition in method_partitions
                ]
            return results

        def by_method(values: Sequence[Any]) -> dict[str, list[Any]]:
            remaining = iter(values)
            grouped = {}
            for name, method_partitions in partitions.items():
                grouped[name] = list(islice(remaining, len(method_partitions)))
            return grouped

        def make() -> list[PreprocessResult]:
            results_by_method = joint.preprocess_multimethod(programs, specs)
            return list(
                chain.from_iterable(results_by_method[name] for name in programs)
            )

        def make_key(described: Sequence[Partition]) -> dict[str, Any]:
            records = by_method([partition.to_json() for partition in described])
            return {"methods": [[name, record] for name, record in records.items()]}

        all_partitions = list(chain.from_iterable(partitions.values()))
        return by_method(self.find_or_make(all_partitions, make, make_key))

    def _are_apart(self, specs: Specs) -> bool:
        """Tell whether a joint backend would preprocess each of these partitions by itself."""
        if self._entry is None:
            return False
        is_apart = self._entry.preprocessing.specs_apart
        return all(
            is_apart(partition_specs)
            for method_specs in specs.values()
            for partition_specs in method_specs
        )

    def _call(
        self, program: ExportedProgram, specs: list[CompileSpec]
    ) -> PreprocessResult:
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
        self, inputs: Sequence[_Given], make: _Make, make_key: _MakeKey
    ) -> list[PreprocessResult]:
        """Return results of partitions in one call; `make_key` makes their part of its key."""
        place = self._locate(inputs, make_key)
        if place is None:
            return self._make(inputs, make)
        results = place.find(self._context.counts)
        if results is None:
            # Two workers that lower the same partition at once would both take the time.
            with place.store.lock(
                digest.hash_json(place.key)
            ):  # others may be making it
                results = place.find(self._context.counts) or self._make(
                    inputs, make, place
                )
        return results

    def _make(
        self, inputs: Sequence[_Given], make: _Make, place: _StoredResults | None = None
    ) -> list[PreprocessResult]:
        """Make results, and keep them where they have a place, and are all that came of it."""
        counts = self._context.counts
        started = time.perf_counter()
        before = copy_ranges(program for program, _ in inputs)
        with self._surroundings():
            results = make()
        seconds = time.perf_counter() - started
        counts.spent += seconds
        # A result that is found would not narrow the method's sizes as making it does.
        narrows = copy_ranges(program for program, _ in inputs) != before
        if place is None or narrows:
            counts.uncached += len(results)
            return results
        counts.misses += len(results)
        if not place.keep(results, seconds):
            self._context.warn(
                f"a result of {self.__name__} can't be kept, so it is not cached"
            )
        return results

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """Surround a call of the backend with what its entry in the catalogue asks for."""
        entry = self._entry
        if entry is None:
            with spilled_data("", self._context.store):
                yield
            return
        plugin = f"plugin {entry.plugin}" if entry.plugin else ""
        with (
            entry.preprocessing.around(),
            spilled_data(entry.preprocessing.names_data, self._context.store),
            kept_state(plugin) if plugin else nullcontext(),
        ):
            yield

    def _make_scope(self, entry: Backend) -> CacheScope:
        """Return what keys of results leave out: nothing, where partitions are seen together."""
        if self._joint is not None:
            return CacheScope()
        return entry.preprocessing.make_cache_scope()

    def _locate(
        self, inputs: Sequence[_Given], make_key: _MakeKey
    ) -> _StoredResults | None:
        """Return the place of results in the store; None where they can't be cached."""
        name = self.__name__
        entry = self._entry
        store = self._context.store
        if store is None:
            return None
        if entry is None:
            origin = "is not in the catalogue"
            if is_registered_here(name):
                origin = "was registered in this process"
            self._context.warn(f"{name} {origin}, so its results are not cached")
            return None
        scope = self._make_scope(entry)
        try:
            partitions = [describe(program, specs, scope) for program, specs in inputs]
        except UndescribableError as reason:
            self._context.warn(
                f"a partition of {name} is not cached: it holds {reason}"
            )
            return None
        key: dict[str, Any] = {
            "kind": "preprocess",
            "backend": entry.backend_id,
            "function": entry.preprocessing.function,
            "toolchain": toolchain(entry.host.distributions),
            "facts": entry.machine.get("facts", {}),
            "code": code(),
        }
        if not torch.backends.mkldnn.enabled:
            key["keep_ranges"] = True
        if more_key.get():
            key["loaded"] = dict(more_key.get())
        key |= make_key(partitions)
        return _StoredResults(
            store, key, partitions, scope, entry.preprocessing.names_data
        )


class _StoredResults:
    """The place of the results of some partitions in the store."""

    def __init__(
        self,
        store: Store,
        key: Mapping[str, Any],
        partitions: Sequence[Partition],
        scope: CacheScope,
        names_data: str,
    ) -> None:
        self.store = store
        self.key = key
        self.partitions = partitions
        self.scope = scope
        self.names_data = names_data

    def find(self, counts: PreprocessCounts) -> list[PreprocessResult] | None:
        """Return the results, and count them; None where one is missing."""
        entry = self.store.get_by_key(self.key)
        if entry is None:
            return None
        try:
            results = []
            for record, partition in zip(
                entry.result["results"], self.partitions, strict=True
            ):
                results.append(
                    from_json(
                        record,
                        partition.handles,
                        self.scope,
                        self.store,
                        self.names_data,
                    )
                )
        except MissingBlobError as reason:
            _log.warning("%s; preprocessing again", reason)
            return None
        complete = [result for result in results if result is not None]
        if len(complete) < len(results):
            return None
        counts.hits += len(complete)
        counts.saved += entry.seconds
        return complete

    def keep(self, results: Sequence[PreprocessResult], seconds: float) -> bool:
        """Keep the results; False where one has no record."""
        records = []
        for result, partition in zip(results, self.partitions, strict=True):
            records.append(to_json(result, partition.handles, self.scope, self.store))
        if None in records:
            return False
        self.store.put_result(self.key, {"results": records}, seconds=seconds)
        return True
