"""One backend behind the preprocess cache, which finds its results in the store or makes them.

A feature finds and keeps the results, by partition (`moments.Feature.find_preprocessed`). The
results of a joint backend are keyed by all partitions of all methods together.
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
from typing import Any, Protocol, TypeAlias, cast

from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from pipeline.compile.preprocess.registry import (
    find_entry,
    find_function,
    reference,
)
from pipeline.compile.preprocess.spill import spilled_data
from pipeline.compile.ranges import copy_ranges
from pipeline.moments import call_all
from pipeline.program.kept_state import kept_state
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store

Programs = Mapping[str, Sequence[ExportedProgram]]
Specs = Mapping[str, Sequence[list[CompileSpec]]]
Results = dict[str, list[PreprocessResult]]
_Given: TypeAlias = tuple[ExportedProgram, list[CompileSpec]]
_Make: TypeAlias = Callable[[], list[PreprocessResult]]
_MakeKey: TypeAlias = Callable[[Sequence[Any]], Mapping[str, Any]]
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_log = logging.getLogger(__name__)

# Anything else in this process that can change results; `keyed_preprocess` sets it.
more_key: ContextVar[Mapping[str, Any]] = ContextVar(
    "more of the keys", default=_NOTHING
)


@dataclass
class PreprocessCounts:
    """Counts of partitions by how the cache served them, and the time that it saved.

    Attributes:
        hits: partitions whose results were found in the store.
        misses: partitions that were preprocessed because the store lacked their results.
        uncached: partitions that were preprocessed and can't be cached.
        spent: seconds of wall time that backends took.
        saved: seconds of wall time that backends once took for the hits.
    """

    hits: int = 0
    misses: int = 0
    uncached: int = 0
    spent: float = 0.0
    saved: float = 0.0


class ResultsPlace(Protocol):
    """The place in the store for the results of some partitions.

    `find` returns the results and counts them, or returns None if any is missing. `keep` takes the
    results and the seconds that making them took, and returns whether it could keep them.
    """

    store: Store
    digest: Digest  # of the results' key

    def find(self, counts: PreprocessCounts) -> list[PreprocessResult] | None: ...

    def keep(self, results: Sequence[PreprocessResult], seconds: float) -> bool: ...


class CacheContext:
    """The store of one lowering, if any, and its counts and warnings."""

    def __init__(self, store: Store | None, counts: PreprocessCounts) -> None:
        self.store = store
        self.counts = counts
        self._warned: set[str] = set()

    def warn(self, sentence: str) -> None:
        """Log a warning, unless this context has already logged it."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            _log.warning("%s", sentence)


def is_joint(details: type[BackendDetails]) -> bool:
    """Return whether a class sees all methods at once instead of partition by partition."""
    # `BackendDetails` doesn't count: its method calls `preprocess` partition by partition.
    parents = details.__mro__[: details.__mro__.index(BackendDetails)]
    return any("preprocess_multimethod" in vars(parent) for parent in parents)


class CachedBackend:
    """A backend behind the store, in place of the class that ExecuTorch's lowering expects.

    `details` is that class, or None for a backend that is only a function. Without a store, each
    partition is still preprocessed in the context that the backend's entry asks for.
    """

    def __init__(
        self,
        backend_id: str,
        details: type[BackendDetails] | None,
        context: CacheContext,
    ) -> None:
        self.__name__ = backend_id
        self._details = details
        self.context = context
        self.entry = find_entry(backend_id)
        self.joint = details if details is not None and is_joint(details) else None

    def copy_exported_program_for_preprocess(
        self, program: ExportedProgram, specs: list[CompileSpec]
    ) -> ExportedProgram:
        """Copy a partition as its backend does.

        ExecuTorch 1.4 doesn't call this and always makes a deep copy.
        """
        copy_program = getattr(
            self._details or BackendDetails,
            "copy_exported_program_for_preprocess",
            lambda program, specs: deepcopy(program),
        )
        return copy_program(program, specs)

    def preprocess(
        self, program: ExportedProgram, specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Preprocess one partition.

        Given a backend's name, `to_backend` calls only this method.
        """
        (result,) = self.find_or_make(
            [(program, specs)],
            lambda: [self._call(program, specs)],
            lambda partitions: partitions[0].to_json(),
        )
        return result

    def preprocess_multimethod(self, programs: Programs, specs: Specs) -> Results:
        """Preprocess the partitions of each method.

        Each result of a joint backend may depend on all partitions.
        """
        partitions: dict[str, list[_Given]] = {}
        for name, method_programs in programs.items():
            partitions[name] = list(zip(method_programs, specs[name], strict=True))
        joint = self.joint
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

        def make_key(described: Sequence[Any]) -> dict[str, Any]:
            records = by_method([partition.to_json() for partition in described])
            return {"methods": [[name, record] for name, record in records.items()]}

        all_partitions = list(chain.from_iterable(partitions.values()))
        return by_method(self.find_or_make(all_partitions, make, make_key))

    def _are_apart(self, specs: Specs) -> bool:
        """Return whether a joint backend would preprocess each of these partitions separately."""
        if self.entry is None:
            return False
        is_apart = self.entry.preprocessing.specs_apart
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
        """Return the results of partitions, found in the store or made in one call.

        Args:
            inputs: the partitions with their compile specs.
            make: preprocesses the partitions.
            make_key: returns the partitions' part of the results' key.
        """
        place = self._locate(inputs, make_key)
        if place is None:
            return self.make(inputs, make)
        results = self.find(place, inputs)
        if results is None:
            # Without a lock, two workers could preprocess the same partition at the same time.
            with place.store.lock(place.digest):  # another worker may be making it
                results = self.find(place, inputs)
                if results is None:
                    results = self.make(inputs, make, place)
        return results

    def find(
        self, place: ResultsPlace, inputs: Sequence[_Given]
    ) -> list[PreprocessResult] | None:
        """Return the results that the store has for partitions, or None if any is missing."""
        return place.find(self.context.counts)

    def make(
        self, inputs: Sequence[_Given], make: _Make, place: ResultsPlace | None = None
    ) -> list[PreprocessResult]:
        """Make results, and keep them in their place unless making them narrowed sizes."""
        counts = self.context.counts
        started = time.perf_counter()
        before = copy_ranges(program for program, _ in inputs)
        with self._surroundings():
            results = make()
        seconds = time.perf_counter() - started
        counts.spent += seconds
        # A result from the store wouldn't narrow the method's sizes, as making it does.
        narrows = copy_ranges(program for program, _ in inputs) != before
        if place is None or narrows:
            counts.uncached += len(results)
            return results
        counts.misses += len(results)
        if not place.keep(results, seconds):
            self.context.warn(
                f"a result of {self.__name__} can't be stored, so it is not cached"
            )
        return results

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """Enter the contexts that the backend's entry in the catalogue asks for."""
        entry = self.entry
        if entry is None:
            with spilled_data("", self.context.store):
                yield
            return
        plugin = f"plugin {entry.plugin}" if entry.plugin else ""
        with (
            entry.preprocessing.around(),
            spilled_data(entry.preprocessing.names_data, self.context.store),
            kept_state(plugin) if plugin else nullcontext(),
        ):
            yield

    def _locate(
        self, inputs: Sequence[_Given], make_key: _MakeKey
    ) -> ResultsPlace | None:
        """Return the place of results in the store, or None if they can't be cached."""
        if self.context.store is not None:
            for place in call_all("find_preprocessed", self, inputs, make_key):
                if place is not None:
                    return cast(ResultsPlace, place)
        return None
