"""Describes the contents of a package: the purpose of each range of bytes, and its users.

Everything is read from the files themselves, each mapped into memory and read once. The names of
tensors come from the compile actions, matched by the digests of their bytes (constants.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.compile.inspect.package_file import PackageFile
from pipeline.features.inspection.package_view import PackageView, join_names
from pipeline.features.inspection.stored_tensors import (
    find_duplicates,
    find_shared,
    find_stored_tensors,
)
from pipeline.program.flatbuffer import Span
from pipeline.program.pte import PlanFacts
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError

if TYPE_CHECKING:  # types only, with no effect at run time
    from pipeline.features.inspection.records import SegmentKind


def describe_contents(
    files: Mapping[str, Path],
    constants: Mapping[str, Mapping[str, Any]] | None = None,
    keys: Mapping[str, Collection[str]] | None = None,
    digests: Mapping[str, Mapping[tuple[int, int], Digest]] | None = None,
) -> dict[str, Any]:
    """Describe the contents of a package.

    Args:
        files: the package's files, by name: one `.pte` and any number of `.ptd`.
        constants: by method, the result of `describe_constants` for its program.
        keys: by method, the keys of the named data that its delegates use.
        digests: by file, the known digests of its parts, by their offset and size in bytes.

    Raises:
        PipelineError: a file is corrupt or of the wrong kind; the first line names it and the
            fault.
    """
    package = PackageView(files, constants or {}, keys or {}, digests or {})
    segments = [
        segment for file in package.files for segment in _segments(package, file)
    ]
    tensors = find_stored_tensors(package)
    return {
        "size": sum(len(file.data) for file in package.files),
        "segments": segments,
        "methods": {
            plan.name: _describe_method(package, plan) for plan in package.plans
        },
        "tensors": [tensor.record for tensor in tensors],
        "shared": list(find_shared(package, tensors)),
        "twice": list(find_duplicates(tensors)),
    }


@dataclass
class _Claim:
    """The use of one range of bytes of a file."""

    kind: SegmentKind
    names: set[str] = field(default_factory=set)
    methods: set[str] = field(default_factory=set)
    backends: set[str] = field(default_factory=set)


def _segments(view: PackageView, file: PackageFile) -> Iterator[dict[str, Any]]:
    """Yield the segments of a file, which together cover all of it.

    Raises:
        PipelineError: two segments overlap.
    """
    claims = _claims(view, file)
    end = 0
    # Sorted by offset, so comparing each span with the end of the previous one finds every
    # overlap.
    for span, claim in sorted(claims.items()):
        if span.offset < end:
            raise PipelineError(
                f"{file.name}: is corrupt: the data at {span.offset} overlaps the data before "
                f"it, which ends at {end}"
            )
        yield from _fill_gap(view, file, Span(end, span.offset - end))
        yield _segment(view, file, span, claim)
        end = span.end
    yield from _fill_gap(view, file, Span(end, len(file.data) - end))


def _fill_gap(
    view: PackageView, file: PackageFile, gap: Span
) -> Iterator[dict[str, Any]]:
    """Yield the segments of a gap between claims: the enclosing flatbuffer, then padding."""
    if not gap.size:
        return
    inside = max(0, min(gap.end, file.layout.program.end) - gap.offset)
    if inside:
        yield _segment(view, file, Span(gap.offset, inside), _Claim("program"))
    if inside < gap.size:
        padding = Span(gap.offset + inside, gap.size - inside)
        # Padding is all zeros; other bytes are data that nothing in the file refers to.
        unused = bytes(file.data[padding.offset : padding.end]).strip(b"\0")
        yield _segment(
            view, file, padding, _Claim("padding", {"unused"} if unused else set())
        )


def _segment(
    view: PackageView, file: PackageFile, span: Span, claim: _Claim
) -> dict[str, Any]:
    tensor = None
    # A segment of constants holds many tensors; `stored_tensors` names those one by one.
    if claim.kind == "named_data":
        tensor = view.lookup(file.digest(span), claim.methods)
    return {
        "file": file.name,
        "kind": claim.kind,
        "name": join_names(claim.names if tensor is None else tensor.names),
        "offset": span.offset,
        "size": span.size,
        "digest": "" if claim.kind == "padding" else file.digest(span),
        "methods": sorted(claim.methods),
        "backend": ", ".join(sorted(claim.backends)) or None,
    }


def _claims(view: PackageView, file: PackageFile) -> dict[Span, _Claim]:
    claims: dict[Span, _Claim] = {}
    layout = file.layout

    def claim(span: Span, kind: SegmentKind, methods: Iterable[str] = ()) -> _Claim:
        claimed = claims.setdefault(span, _Claim(kind))
        claimed.methods.update(methods)
        return claimed

    for segment, keys in file.named.items():
        users = (method for key in keys for method in view.users.get(key, ()))
        claim(layout.segments[segment], "named_data", users).names.update(keys)
    if file is view.pte:
        stored: tuple[tuple[SegmentKind, bool, Any, Any], ...] = (
            ("constants", False, layout.constants, layout.constant_segments),
            ("mutable", True, layout.mutable, layout.mutable_segments),
        )
        for kind, planned, spans, segments in stored:
            used = view.indices(planned)
            for segment in segments:
                methods = (method for _, claimed in used.values() for method in claimed)
                claim(layout.segments[segment], kind, methods)
            # If there are segments, the spans lie within them and would overlap with them.
            for index, span in enumerate(() if segments else spans):
                claim(span, kind, used[index][1] if index in used else ())
        for span, calls in view.payloads.items():
            claimed = claim(span, "delegate", (method for method, _, _ in calls))
            claimed.backends.update(backend for _, _, backend in calls)
    for number, span in enumerate(layout.segments):
        claims.setdefault(span, _Claim("padding", {f"unused segment {number}"}))
    # An empty span starts where the next span starts, which would look like an overlap.
    return {span: claimed for span, claimed in claims.items() if span.size}


def _describe_method(view: PackageView, plan: PlanFacts) -> dict[str, Any]:
    external = {key for key, methods in view.external.items() if plan.name in methods}
    # A set, because two delegates with equal payloads share one stored copy.
    payloads = {payload for _, payload in plan.delegates if payload is not None}
    constants = sum(
        tensor_type.size if tensor_type.item else view.layout.constants[index].size
        for index, (tensor_type, methods) in view.indices(False).items()
        if plan.name in methods
    )
    delegated = sum(payload.size for payload in payloads)
    for file in view.files:
        for segment, keys in file.named.items():
            size = file.layout.segments[segment].size
            if external.intersection(keys):
                constants += size
            elif any(plan.name in view.users.get(key, ()) for key in keys):
                delegated += size
    return {
        "instructions": plan.instructions,
        "delegates": [
            {
                "backend": backend,
                "index": number,
                "size": payload.size if payload is not None else 0,
                "digest": view.pte.digest(payload) if payload else "",
            }
            for number, (backend, payload) in enumerate(plan.delegates)
        ],
        "planned_memory": [
            {"arena": number, "size": size}
            for number, size in enumerate(plan.arenas, 1)
        ],
        "constants": constants,
        "delegated": delegated,
    }
