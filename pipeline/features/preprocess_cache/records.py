"""Records of preprocessing results: JSON and blobs of the store, with debug handles replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from executorch.exir.backend.backend_details import PreprocessResult
from pydantic import TypeAdapter

from pipeline.backends import CacheScope
from pipeline.backends.estimate import Estimate
from pipeline.compile.objects import (
    Blob,
    BlobBytes,
    TaggedBlob,
    merge_named_data,
    put_named_data,
)
from pipeline.compile.preprocess.spill import SPILLED_FROM, spills
from pipeline.store.compiled import NamedBlob
from pipeline.store.store import Store

_TAGGED_BLOBS = TypeAdapter(tuple[TaggedBlob, ...])


def to_json(
    result: PreprocessResult, handles: Sequence[int], scope: CacheScope, store: Store
) -> dict[str, Any] | None:
    """Return the record of a result for a partition with these debug handles.

    It is None if JSON can't hold the result, or if the result has debug handles that the partition
    doesn't have.
    """
    meta = result._delegate_info_meta
    debug_handles = result.debug_handle_map
    data = result.data_store_output
    has_other_handles = with_handles(result, handles, handles, scope) is None
    if has_other_handles or not (meta is None or isinstance(meta, Estimate)):
        return None
    if data is None:
        named = None
    else:
        named = put_named_data(store, data)
    return {
        "handles": list(handles),
        "processed_bytes": store.put(result.processed_bytes),
        "debug_handles": None
        if debug_handles is None
        else [[k, list(v)] for k, v in debug_handles.items()],
        "named": None
        if named is None
        else [[tag, _entry_to_json(entry)] for tag, entry in named],
        **({} if meta is None else {"estimate": asdict(meta)}),
    }


def _entry_to_json(entry: NamedBlob) -> dict[str, Any]:
    # Not `asdict`, which copies every value and takes ten times as long.
    return {**vars(entry), "blob": dict(vars(entry.blob))}


def from_json(
    record: Mapping[str, Any],
    handles: Sequence[int],
    scope: CacheScope,
    store: Store,
    names_data: str = "",
) -> PreprocessResult | None:
    """Return the result for a partition with these debug handles, or None if they don't match.

    Args:
        names_data: as in `Preprocessing`.

    Raises:
        MissingBlobError: the store lacks a blob of the result.
    """

    @cache  # keys may share a blob
    def read(blob: Blob) -> bytes:
        return _stand_in(blob, names_data, store) or store.read(blob.digest)

    debug_handles = record["debug_handles"]
    named = record["named"]
    estimate = record.get("estimate")
    result = PreprocessResult(
        processed_bytes=store.read(record["processed_bytes"]),
        debug_handle_map=None
        if debug_handles is None
        else {k: tuple(v) for k, v in debug_handles},
        data_store_output=None
        if named is None
        else merge_named_data(_TAGGED_BLOBS.validate_python(named), read),
        _delegate_info_meta=None if estimate is None else Estimate(**estimate),
    )
    return with_handles(result, record["handles"], handles, scope)


def _stand_in(blob: Blob, module: str, store: Store) -> BlobBytes | None:
    """Return the stand-in that `spilled_data` uses for a blob, or None if its bytes are needed.

    Args:
        module: the module whose `NamedDataStore` has the data, or "".
    """
    stands_in = module and spills.get() and blob.size >= SPILLED_FROM
    # The store may have evicted the blob, and a stand-in has no bytes of its own.
    if stands_in and store.intact([blob.digest]):
        return BlobBytes(blob)
    return None


def with_handles(
    result: PreprocessResult, old: Sequence[int], new: Sequence[int], scope: CacheScope
) -> PreprocessResult | None:
    """Return a result with its old debug handles replaced by new ones, or None if it has others."""
    if scope.remap is None:
        return result
    handles = dict(zip(old, new, strict=True)) | {
        handle: handle for handle in scope.fixed_handles
    }
    payload = scope.remap(result.processed_bytes, handles)
    debug_handles = result.debug_handle_map
    if payload is None or not handles.keys() >= {
        handle for v in (debug_handles or {}).values() for handle in v
    }:
        return None
    renamed = debug_handles and {
        key: tuple(handles[handle] for handle in v) for key, v in debug_handles.items()
    }
    return replace(result, processed_bytes=payload, debug_handle_map=renamed)
