"""Records of preprocessing results: blobs of the store and JSON, and other debug handles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir.backend.backend_details import PreprocessResult

from pipeline.backends import CacheScope
from pipeline.compile.objects import (
    NamedBlob,
    layout_from_tuple,
    list_named_blobs,
    parse_named_blobs,
    put_blob,
)
from pipeline.store.store import Store


def to_json(
    result: PreprocessResult, handles: Sequence[int], scope: CacheScope, store: Store
) -> dict[str, Any] | None:
    """Return the record of a result for a partition with these debug handles.

    It is None if JSON can't hold the result, or its debug handles are not those of the partition.
    """
    data = result.data_store_output
    if (
        result._delegate_info_meta is not None
        or with_handles(result, handles, handles, scope) is None
    ):
        return None
    named = [put_blob(store, buffer) for buffer in data.buffers] if data is not None else []
    known = result.debug_handle_map
    return {
        "handles": list(handles),
        "processed_bytes": put_blob(store, result.processed_bytes).digest,
        "debug_handles": None if known is None else [[k, list(v)] for k, v in known.items()],
        "named": None
        if data is None
        else [e.to_json() for e in list_named_blobs(data.pte_data, named)],
        "named_external": {
            tag: [entry.to_json() for entry in list_named_blobs(entries, named)]
            for tag, entries in (data.external_data.items() if data is not None else ())
        },
    }


def from_json(
    record: Mapping[str, Any], handles: Sequence[int], scope: CacheScope, store: Store
) -> PreprocessResult | None:
    """Return the result for a partition with these debug handles; None if the record has none.

    Raises MissingBlobError.
    """
    known = record["debug_handles"]
    result = PreprocessResult(
        processed_bytes=store.read(record["processed_bytes"]),
        debug_handle_map=None if known is None else {k: tuple(v) for k, v in known},
        data_store_output=None if record["named"] is None else _named_data(record, store),
    )
    return with_handles(result, record["handles"], handles, scope)


def with_handles(
    result: PreprocessResult, old: Sequence[int], new: Sequence[int], scope: CacheScope
) -> PreprocessResult | None:
    """Return a result with the new debug handles for the old; None if it has others."""
    if scope.remap is None:
        return result
    handles = dict(zip(old, new, strict=True)) | {each: each for each in scope.fixed_handles}
    payload = scope.remap(result.processed_bytes, handles)
    known = result.debug_handle_map
    if payload is None or not handles.keys() >= {
        each for v in (known or {}).values() for each in v
    }:
        return None
    renamed = known and {key: tuple(handles[each] for each in v) for key, v in known.items()}
    return replace(result, processed_bytes=payload, debug_handle_map=renamed)


def _named_data(record: Mapping[str, Any], store: Store) -> NamedDataStoreOutput:
    buffers: list[bytes] = []
    places: dict[str, int] = {}

    def entry(named: NamedBlob) -> DataEntry:
        if named.blob.digest not in places:
            places[named.blob.digest] = len(buffers)
            buffers.append(store.read(named.blob.digest))
        layout = layout_from_tuple(named.layout)
        return DataEntry(places[named.blob.digest], named.alignment, layout)

    pte = {named.key: entry(named) for named in parse_named_blobs(record["named"])}
    external = {
        tag: {named.key: entry(named) for named in parse_named_blobs(entries)}
        for tag, entries in record["named_external"].items()
    }
    return NamedDataStoreOutput(buffers, pte, external)
