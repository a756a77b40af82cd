"""Finds the tensors of a package, the ones that methods share, and the ones stored twice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.compile.inspect.package_file import PackageFile
from pipeline.features.inspection.package_view import (
    KnownTensor,
    PackageView,
    join_names,
)
from pipeline.program.flatbuffer import Span
from pipeline.program.pte import TensorType
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError

_LEAST = 64  # bytes: smaller tensors, such as scalars, are equal by chance


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, or one that was packed into the payload of a delegate.

    Attributes:
        record: its entry in the package's contents (`records.CONTENTS_OUTLINE`).
        place: differs from the place of every other stored tensor.
        portable: whether portable operators use it, rather than delegates.
    """

    record: dict[str, Any]
    names: frozenset[str]
    base: Digest
    place: tuple[str, int]
    where: str
    portable: bool = False
    backend: str = ""


def find_stored_tensors(view: PackageView) -> list[StoredTensor]:
    """Return the tensors of a package, largest first."""
    tensors = [*_in_plans(view, False), *_in_plans(view, True), *_named(view)]
    stored = set()
    for tensor in tensors:
        if tensor.record["where"] == "named_data":
            for method in tensor.record["methods"]:
                for name in tensor.names:
                    stored.add((method, name))
    tensors += _in_delegates(view, stored)
    return sorted(
        tensors,
        key=lambda t: (-t.record["size"], t.record["name"], t.record["key"], t.place),
    )


def _in_plans(view: PackageView, planned: bool) -> Iterator[StoredTensor]:
    spans = view.layout.mutable if planned else view.layout.constants
    where = "mutable" if planned else "constants"
    for index, (tensor_type, methods) in sorted(view.indices(planned).items()):
        if index >= len(spans):
            fault = f"it refers to number {index} of its {where}, of {len(spans)}"
            raise PipelineError(f"{view.pte.name}: is corrupt: {fault}")
        span = spans[index]
        if tensor_type.size > span.size:
            fault = f"a tensor of {tensor_type.size} bytes has {span.size}"
            raise PipelineError(f"{view.pte.name}: is corrupt: {fault}")
        content = Span(span.offset, tensor_type.size if tensor_type.item else span.size)
        yield _stored(view, view.pte, content, where, methods, tensor_type)


def _named(view: PackageView) -> Iterator[StoredTensor]:
    for file in view.files:
        types: dict[int, TensorType] = {}
        for _, segment, tensor_type in file.layout.named:
            if tensor_type is not None:
                types[segment] = tensor_type
        for segment, keys in file.named.items():
            users = {method for key in keys for method in view.users.get(key, ())}
            span = file.layout.segments[segment]
            tensor_type = types.get(segment)
            if (
                tensor_type is not None
                and tensor_type.item
                and tensor_type.size <= span.size
            ):
                span = Span(span.offset, tensor_type.size)
            yield _stored(view, file, span, "named_data", users, tensor_type, keys)


def _stored(
    view: PackageView,
    file: PackageFile,
    span: Span,
    where: str,
    methods: Collection[str],
    tensor_type: TensorType | None,
    keys: Sequence[str] = (),
) -> StoredTensor:
    tensor = view.lookup(file.digest(span), methods)
    # A tensor of portable operators is stored under its name.
    external_keys = [key for key in keys if key in view.external]
    names = frozenset(external_keys) if tensor is None else tensor.names
    kind = tensor_type or tensor
    record: dict[str, Any] = {
        "name": join_names(names),
        "key": join_names(keys),
        "dtype": kind.dtype if kind is not None else "",
        "shape": list(kind.shape) if kind is not None else [],
        "size": span.size,
        "file": file.name,
        "where": where,
        "methods": sorted(methods),
    }
    base = file.digest(span) if tensor is None else tensor.base
    users = ""
    if methods:
        users = f" ({', '.join(sorted(methods))})"
    description = f"{file.name}: {where.replace('_', ' ')}{users}"
    # External tensors of portable operators are stored as named data too.
    portable = where != "named_data" or bool(external_keys)
    return StoredTensor(
        record, names, base, (file.name, span.offset), description, portable
    )


def _in_delegates(
    view: PackageView, stored: Collection[tuple[str, str]]
) -> Iterator[StoredTensor]:
    """Yield the tensors inside payloads of backends that don't store weights as named data."""
    for span, users in view.payloads.items():
        payload = view.pte.digest(span)
        consumed: dict[Digest, tuple[KnownTensor, set[str]]] = {}
        for method in sorted({method for method, _, _ in users}):
            consumed_tensors = view.consumed(method, payload)
            # If so, the payload holds only keys: XNNPACK stores its weights as named data.
            if any(
                (method, name) in stored
                for tensor in consumed_tensors
                for name in tensor.names
            ):
                continue
            for tensor in consumed_tensors:
                consumed.setdefault(tensor.base, (tensor, set()))[1].add(method)
        method, number, backend = users[0]
        where = f"delegate {number} of {method} ({backend})"
        for tensor, methods in consumed.values():
            record: dict[str, Any] = {
                "name": join_names(tensor.names),
                "key": "",
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "size": tensor.size,
                "file": view.pte.name,
                "where": "delegate",
                "methods": sorted(methods),
            }
            # The offset within a payload is unknown; a payload holds each tensor once.
            place = (payload, 0)
            yield StoredTensor(
                record, tensor.names, tensor.base, place, where, backend=backend
            )


def find_shared(
    view: PackageView, tensors: Sequence[StoredTensor]
) -> Iterator[dict[str, Any]]:
    """Yield the tensors and payloads that several methods use, largest first."""
    records: list[dict[str, Any]] = [
        {
            "what": _label(t.record),
            "size": t.record["size"],
            "methods": t.record["methods"],
        }
        for t in tensors
        # A shared payload gets an entry below; its tensors would be counted twice.
        if len(t.record["methods"]) > 1 and t.record["where"] != "delegate"
    ]
    for span, users in view.payloads.items():
        methods = sorted({method for method, _, _ in users})
        if len(methods) > 1:
            label = f"payload of {join_names(backend for _, _, backend in users)}"
            records.append({"what": label, "size": span.size, "methods": methods})
    yield from sorted(records, key=lambda s: (-s["size"], s["what"], s["methods"]))


def find_duplicates(tensors: Sequence[StoredTensor]) -> Iterator[dict[str, Any]]:
    """Yield the tensors that are stored more than once, ordered by wasted bytes, most first."""
    groups: dict[Digest, dict[tuple[str, int], StoredTensor]] = {}
    for tensor in tensors:
        if tensor.record["size"] >= _LEAST:
            groups.setdefault(tensor.base, {}).setdefault(tensor.place, tensor)
    records: list[dict[str, Any]] = [
        {
            "what": _label(next(iter(places.values())).record),
            "size": max(tensor.record["size"] for tensor in places.values()),
            "times": len(places),
            "where": sorted(tensor.where for tensor in places.values()),
            "advice": _advice(list(places.values())),
        }
        for places in groups.values()
        if len(places) > 1
    ]
    yield from sorted(records, key=lambda t: (-t["size"] * (t["times"] - 1), t["what"]))


def _label(tensor: Mapping[str, Any]) -> str:
    """Return the words that identify a tensor in a sentence."""
    kind = "bytes"
    if tensor["dtype"]:
        kind = f"{tensor['dtype']}{tensor['shape']}"
    name = tensor["name"] or (
        f"named data {tensor['key'][:16]}" if tensor["key"] else "unnamed"
    )
    return f"{name} {kind}"


def _advice(places: Sequence[StoredTensor]) -> str:
    backends = sorted({tensor.backend for tensor in places if tensor.backend})
    if len({tensor.portable for tensor in places}) > 1:
        return (
            "portable operators and a delegate each keep a copy; lower all operators that use it "
            "to the same backend to store it once"
        )
    if backends:
        return (
            f"each delegate of {' and '.join(backends)} keeps its own weights; delegates share "
            "only weights that their backend stores as named data, as XNNPACK does"
        )
    if len({tensor.record["file"] for tensor in places}) > 1:
        return "two files contain it; `emit.external_files` can send it to one file in every method"
    return "it is stored in two layouts; operators that need the same layout share it"
