"""The preprocess cache: around every backend's preprocess function, results by partition.

A result is kept as blobs and JSON. Joint backends, backends of which this package does not know
what their output depends on, and partitions that have no digest are preprocessed every time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir.backend import backend_api
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from pipeline.backends import BACKENDS
from pipeline.objects import (
    NamedBlob,
    layout_from_tuple,
    named_blobs,
    named_from_json,
    put,
)
from pipeline.partitions import UndescribableError, partition_digest
from pipeline.store import MissingBlobError, Store
from pipeline.toolchain import code, toolchain

Programs = Mapping[str, Sequence[ExportedProgram]]
Specs = Mapping[str, Sequence[list[CompileSpec]]]
_log = logging.getLogger(__name__)


def overrides_multimethod(backend: type[BackendDetails]) -> bool:
    """Whether a backend sees all methods at once instead of partition by partition."""
    parents = backend.__mro__[: backend.__mro__.index(BackendDetails)]
    return any("preprocess_multimethod" in vars(parent) for parent in parents)


@contextmanager
def cached_preprocess(store: Store | None) -> Iterator[None]:
    """Within it, ExecuTorch's lowering finds known results in the store instead of making them.

    `backend_api` finds backends through `BackendDetails.__subclasses__()` and takes no others, so
    a stand-in gives it each backend behind its cache. This can go when it has a registry.
    """
    if store is None:
        yield
        return
    original = backend_api.BackendDetails
    stand_in = SimpleNamespace(__subclasses__=lambda: [_behind(b, store) for b in _backends()])
    backend_api.BackendDetails = stand_in  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        backend_api.BackendDetails = original  # type: ignore[misc]


def _backends() -> list[type[BackendDetails]]:
    return BackendDetails.__subclasses__()


def _behind(backend: type[BackendDetails], store: Store) -> Any:
    known = any(entry.backend_id == backend.__name__ for entry in BACKENDS.values())
    if not known or overrides_multimethod(backend):
        return backend

    def preprocess(program: ExportedProgram, specs: list[CompileSpec]) -> PreprocessResult:
        return _preprocess(backend, program, specs, store)

    def preprocess_multimethod(
        programs: Programs, specs: Specs
    ) -> dict[str, list[PreprocessResult]]:
        return {
            method: [preprocess(p, s) for p, s in zip(programs[method], specs[method], strict=True)]
            for method in programs
        }

    return SimpleNamespace(
        __name__=backend.__name__,
        preprocess=preprocess,
        preprocess_multimethod=preprocess_multimethod,
    )


def _preprocess(
    backend: type[BackendDetails],
    program: ExportedProgram,
    specs: list[CompileSpec],
    store: Store,
) -> PreprocessResult:
    try:
        digest = partition_digest(backend.__name__, program, specs, {**toolchain(), "code": code()})
    except UndescribableError as reason:
        _log.warning("a partition of %s is not cached: it holds %s", backend.__name__, reason)
        return backend.preprocess(program, specs)
    key = {"kind": "preprocess", "partition": digest}
    known = store.result_of(key)
    if known is not None:
        try:
            return _from_json(known, store)
        except MissingBlobError as reason:
            _log.warning("%s; preprocessing again", reason)
    result = backend.preprocess(program, specs)
    record = _to_json(result, store)
    if record is not None:
        store.put_result(key, record)
    return result


def _to_json(result: PreprocessResult, store: Store) -> dict[str, Any] | None:
    """None for a result that JSON can't hold, which is then not kept."""
    handles = result.debug_handle_map
    data = result.data_store_output
    if result._delegate_info_meta is not None:
        return None
    named = [put(store, buffer) for buffer in data.buffers] if data is not None else []
    return {
        "processed_bytes": put(store, result.processed_bytes).digest,
        "debug_handles": None if handles is None else [[k, list(v)] for k, v in handles.items()],
        "named": None if data is None else [e.to_json() for e in named_blobs(data.pte_data, named)],
        "named_external": {
            tag: [entry.to_json() for entry in named_blobs(entries, named)]
            for tag, entries in (data.external_data.items() if data is not None else ())
        },
    }


def _from_json(record: Mapping[str, Any], store: Store) -> PreprocessResult:
    handles = record["debug_handles"]
    return PreprocessResult(
        processed_bytes=store.read(record["processed_bytes"]),
        debug_handle_map=None if handles is None else {k: tuple(v) for k, v in handles},
        data_store_output=None if record["named"] is None else _named_data(record, store),
    )


def _named_data(record: Mapping[str, Any], store: Store) -> NamedDataStoreOutput:
    buffers: list[bytes] = []
    places: dict[str, int] = {}

    def entry(named: NamedBlob) -> DataEntry:
        if named.blob.digest not in places:
            places[named.blob.digest] = len(buffers)
            buffers.append(store.read(named.blob.digest))
        layout = layout_from_tuple(named.layout)
        return DataEntry(places[named.blob.digest], named.alignment, layout)

    pte = {named.key: entry(named) for named in named_from_json(record["named"])}
    external = {
        tag: {named.key: entry(named) for named in named_from_json(entries)}
        for tag, entries in record["named_external"].items()
    }
    return NamedDataStoreOutput(buffers, pte, external)
