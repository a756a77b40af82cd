"""Finds the tensors of a package, those that methods share, and those that it holds twice."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.compile.inspect.package_view import KnownTensor, PackageFile, PackageView, join_names
from pipeline.program.flatbuffer import Span
from pipeline.program.pte import DataFile, TensorType
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError

if TYPE_CHECKING:  # shapes, which change nothing that is done
    from pipeline.report.package_records import SharedRecord, TensorRecord, TwiceRecord

_LEAST = 64  # bytes of tensors that count as stored twice: scalars are equal by chance


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, or one that went into the payload of a delegate.

    `place` is unlike that of any tensor that is stored elsewhere; `portable` means that portable
    operators use it, and not delegates.
    """

    record: TensorRecord
    names: frozenset[str]
    base: Digest
    place: tuple[str, int]
    where: str
    portable: bool = False
    backend: str = ""


def find_stored_tensors(view: PackageView) -> list[StoredTensor]:
    """Return the tensors of a package, the largest first."""
    found = [*_in_plans(view, False), *_in_plans(view, True), *_named(view)]
    stored = {
        (method, name)
        for tensor in found
        if tensor.record["where"] == "named_data"
        for method in tensor.record["methods"]
        for name in tensor.names
    }
    found += _in_delegates(view, stored)
    return sorted(
        found, key=lambda t: (-t.record["size"], t.record["name"], t.record["key"], t.place)
    )


def _in_plans(view: PackageView, planned: bool) -> Iterator[StoredTensor]:
    spans = view.layout.mutable if planned else view.layout.constants
    where = "mutable" if planned else "constants"
    for index, (known, methods) in sorted(view.indices(planned).items()):
        if index >= len(spans):
            what = f"it refers to number {index} of its {where}, of {len(spans)}"
            raise PipelineError(f"{view.pte.name}: is corrupt: {what}")
        span = spans[index]
        if known.size > span.size:
            what = f"a tensor of {known.size} bytes has {span.size}"
            raise PipelineError(f"{view.pte.name}: is corrupt: {what}")
        content = Span(span.offset, known.size if known.item else span.size)
        yield _stored(view, view.pte, content, where, methods, known)


def _named(view: PackageView) -> Iterator[StoredTensor]:
    for file in view.files:
        types: dict[int, TensorType] = {}
        if isinstance(file.layout, DataFile):
            types = {s: known for _, s, known in file.layout.named if known is not None}
        for segment, keys in file.named.items():
            users = {method for key in keys for method in view.users.get(key, ())}
            span, known = file.layout.segments[segment], types.get(segment)
            if known is not None and known.item and known.size <= span.size:
                span = Span(span.offset, known.size)
            yield _stored(view, file, span, "named_data", users, known, keys)


def _stored(
    view: PackageView,
    file: PackageFile,
    span: Span,
    where: str,
    methods: Collection[str],
    known: TensorType | None,
    keys: Sequence[str] = (),
) -> StoredTensor:
    found = view.lookup(file.digest(span), methods)
    # The key of a tensor of portable operators is its name.
    own = [each for each in keys if each in view.external]
    names = frozenset(own) if found is None else found.names
    kind = known or found
    record: TensorRecord = {
        "name": join_names(names),
        "key": join_names(keys),
        "dtype": kind.dtype if kind is not None else "",
        "shape": list(kind.shape) if kind is not None else [],
        "size": span.size,
        "file": file.name,
        "where": where,
        "methods": sorted(methods),
    }
    base = file.digest(span) if found is None else found.base
    users = f" ({', '.join(sorted(methods))})" if methods else ""
    what = f"{file.name}: {where.replace('_', ' ')}{users}"
    portable = where != "named_data" or bool(own)
    return StoredTensor(record, names, base, (file.name, span.offset), what, portable)


def _in_delegates(view: PackageView, stored: Collection[tuple[str, str]]) -> Iterator[StoredTensor]:
    """Yield tensors that went into payloads, of backends that keep no weights as named data."""
    for span, users in view.payloads.items():
        payload = view.pte.digest(span)
        consumed: dict[Digest, tuple[KnownTensor, set[str]]] = {}
        for method in sorted({method for method, _, _ in users}):
            own = view.consumed(method, payload)
            if any((method, name) in stored for known in own for name in known.names):
                continue
            for known in own:
                consumed.setdefault(known.base, (known, set()))[1].add(method)
        method, number, backend = users[0]
        where = f"delegate {number} of {method} ({backend})"
        for known, methods in consumed.values():
            record: TensorRecord = {
                "name": join_names(known.names),
                "key": "",
                "dtype": known.dtype,
                "shape": list(known.shape),
                "size": known.size,
                "file": view.pte.name,
                "where": "delegate",
                "methods": sorted(methods),
            }
            place = (payload, 0)
            yield StoredTensor(record, known.names, known.base, place, where, backend=backend)


def find_shared(view: PackageView, tensors: Sequence[StoredTensor]) -> Iterator[SharedRecord]:
    """Yield tensors and payloads that several methods use, the largest first."""
    found: list[SharedRecord] = [
        {"what": _label(t.record), "size": t.record["size"], "methods": t.record["methods"]}
        for t in tensors
        if len(t.record["methods"]) > 1 and t.record["where"] != "delegate"
    ]
    for span, users in view.payloads.items():
        methods = sorted({method for method, _, _ in users})
        if len(methods) > 1:
            what = f"payload of {join_names(backend for _, _, backend in users)}"
            found.append({"what": what, "size": span.size, "methods": methods})
    yield from sorted(found, key=lambda s: (-s["size"], s["what"], s["methods"]))


def find_duplicates(tensors: Sequence[StoredTensor]) -> Iterator[TwiceRecord]:
    """Yield tensors that are stored more than once, those that waste most first."""
    groups: dict[Digest, dict[tuple[str, int], StoredTensor]] = {}
    for tensor in tensors:
        if tensor.record["size"] >= _LEAST:
            groups.setdefault(tensor.base, {}).setdefault(tensor.place, tensor)
    found: list[TwiceRecord] = [
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
    yield from sorted(found, key=lambda t: (-t["size"] * (t["times"] - 1), t["what"]))


def _label(tensor: TensorRecord) -> str:
    """Return what sentences call a tensor."""
    kind = f"{tensor['dtype']}{tensor['shape']}" if tensor["dtype"] else "bytes"
    name = tensor["name"] or (f"named data {tensor['key'][:16]}" if tensor["key"] else "unnamed")
    return f"{name} {kind}"


def _advice(places: Sequence[StoredTensor]) -> str:
    backends = sorted({tensor.backend for tensor in places if tensor.backend})
    if len({tensor.portable for tensor in places}) > 1:
        return (
            "portable operators and a delegate keep one each; it is stored once where all that "
            "uses it is lowered to the same backend"
        )
    if backends:
        return (
            f"each delegate of {' and '.join(backends)} keeps weights of its own; delegates share "
            "those that their backend stores as named data, as XNNPACK does"
        )
    if len({tensor.record["file"] for tensor in places}) > 1:
        return "two files hold it; `emit.external_files` can send it to one file in every method"
    return "it is kept in two layouts; what wants the same one shares it"
