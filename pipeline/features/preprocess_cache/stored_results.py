"""The results of preprocessing in the store, by partition.

A result may serve a partition that differs in parts the backend doesn't depend on (`CacheScope`);
its debug handles are then replaced. Backends whose output depends on something unknown, and
partitions without a digest, are preprocessed every time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from executorch.exir.backend.backend_details import PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from pipeline.backends import Backend, CacheScope
from pipeline.compile.preprocess.cached_backend import (
    CachedBackend,
    PreprocessCounts,
    more_key,
)
from pipeline.compile.preprocess.registry import REGISTERED
from pipeline.features.preprocess_cache.key import (
    Partition,
    UndescribableError,
    describe,
)
from pipeline.features.preprocess_cache.records import from_json, to_json
from pipeline.features.preprocess_cache.shared_passes import current_passes
from pipeline.store.digest import hash_json
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.toolchain import code, toolchain

_log = logging.getLogger(__name__)


def locate_results(
    backend: CachedBackend,
    inputs: Sequence[tuple[ExportedProgram, list[CompileSpec]]],
    make_key: Callable[[Sequence[Partition]], Mapping[str, Any]],
) -> StoredResults | None:
    """Return the place of the results in the store, or None if they can't be cached."""
    name = backend.__name__
    entry = backend.entry
    store = backend.context.store
    if store is None:
        return None
    if entry is None:
        origin = "is not in the catalogue"
        if name in REGISTERED:
            origin = "was registered in this process"
        backend.context.warn(f"{name} {origin}, so its results are not cached")
        return None
    scope = _make_scope(backend, entry)
    try:
        partitions = [describe(program, specs, scope) for program, specs in inputs]
    except UndescribableError as reason:
        backend.context.warn(f"a partition of {name} is not cached: it holds {reason}")
        return None
    passes = current_passes()
    if passes is not None and entry.name == "xnnpack":
        for (program, _), partition in zip(inputs, partitions, strict=True):
            passes.expect(program, partition)
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
    return StoredResults(store, key, partitions, scope, entry.preprocessing.names_data)


def _make_scope(backend: CachedBackend, entry: Backend) -> CacheScope:
    """Return what the keys of results leave out: nothing if a backend sees partitions together."""
    if backend.joint is not None:
        return CacheScope()
    return entry.preprocessing.make_cache_scope()


class StoredResults:
    """The place in the store for the results of a group of partitions."""

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
        self.digest = hash_json(key)
        self.partitions = partitions
        self.scope = scope
        self.names_data = names_data

    def find(self, counts: PreprocessCounts) -> list[PreprocessResult] | None:
        """Return the results and count them, or return None if any is missing."""
        entry = self.store.get(self.digest)
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
        """Store the results; return False, and store nothing, if any result has no record."""
        records = []
        for result, partition in zip(results, self.partitions, strict=True):
            records.append(to_json(result, partition.handles, self.scope, self.store))
        if None in records:
            return False
        self.store.put_result(self.key, {"results": records}, seconds=seconds)
        return True
