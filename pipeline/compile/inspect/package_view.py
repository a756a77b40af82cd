"""A package's files, mapped into memory: what stands where, who uses it, what it is called."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.program.flatbuffer import CorruptError, Span
from pipeline.program.pte import DataFile, ProgramFile, TensorType, read_data, read_program
from pipeline.store.digest import Digest, of_bytes
from pipeline.store.errors import PipelineError

_MOST_NAMES = 3


@dataclass(eq=False)
class File:
    """One of them; its digests are computed when they are first asked for."""

    name: str
    data: memoryview
    layout: ProgramFile | DataFile
    _digests: dict[Span, Digest] = field(default_factory=dict)

    def digest(self, span: Span) -> Digest:
        if span not in self._digests:
            self._digests[span] = of_bytes(self.data[span.offset : span.end])
        return self._digests[span]


@dataclass(frozen=True)
class Known:
    """A tensor of a method's program; `base` tells equal tensors in different layouts."""

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    size: int
    base: Digest


def open_file(name: str, path: Path) -> File:
    """Raises PipelineError for what cannot be read as what it is called."""
    try:
        with open(path, "rb") as file:
            if not path.stat().st_size:
                raise CorruptError("it is empty")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        layout = read_data(data) if name.endswith(".ptd") else read_program(data)
    except CorruptError as error:
        raise PipelineError(f"{name}: is corrupt: {error}") from None
    except OSError as error:
        raise PipelineError(f"{name}: cannot be read: {error.strerror}") from None
    return File(name, data, layout)


class View:
    """The files of a package, as `contents_of` takes them. Raises PipelineError."""

    def __init__(
        self,
        files: Mapping[str, Path],
        constants: Mapping[str, Mapping[str, Any]],
        keys: Mapping[str, Collection[str]],
    ) -> None:
        self.files = [open_file(name, path) for name, path in sorted(files.items())]
        programs = [(f, f.layout) for f in self.files if isinstance(f.layout, ProgramFile)]
        if len(programs) != 1:
            raise PipelineError(f"a package has one .pte, this one has {len(programs)}")
        ((self.pte, self.layout),) = programs
        self.plans = sorted(self.layout.plans, key=lambda plan: plan.name)
        self.constants = constants
        self.keys = keys

    # Who uses what.

    @cached_property
    def users(self) -> dict[str, set[str]]:
        """Methods by key of named data, those of tensors in `.ptd` files among them."""
        found: dict[str, set[str]] = {key: set(own) for key, own in self.external.items()}
        for method, own in self.keys.items():
            for key in own:
                found.setdefault(key, set()).add(method)
        return found

    @cached_property
    def external(self) -> dict[str, set[str]]:
        """Methods by key of tensors of portable operators that are not in the `.pte`."""
        found: dict[str, set[str]] = {}
        for plan in self.plans:
            for tensor in plan.tensors:
                if tensor.key:
                    found.setdefault(tensor.key, set()).add(plan.name)
        return found

    def indices(self, planned: bool) -> dict[int, tuple[TensorType, set[str]]]:
        """By index of a constant, or of mutable data: the type of its largest tensor, and the
        methods that use it."""
        found: dict[int, tuple[TensorType, set[str]]] = {}
        for plan in self.plans:
            for tensor in plan.tensors:
                if tensor.key or tensor.planned != planned:
                    continue
                known, methods = found.setdefault(tensor.index, (tensor.type, set()))
                if tensor.type.size > known.size:
                    found[tensor.index] = (tensor.type, methods)
                methods.add(plan.name)
        return found

    @cached_property
    def payloads(self) -> dict[Span, list[tuple[str, int, str]]]:
        """The delegates of each payload: method, number and backend."""
        found: dict[Span, list[tuple[str, int, str]]] = {}
        for plan in self.plans:
            for number, delegate in enumerate(plan.delegates):
                if delegate.payload is not None:
                    user = (plan.name, number, delegate.backend)
                    found.setdefault(delegate.payload, []).append(user)
        return found

    # What tensors are called.

    def lookup(self, digest: Digest, methods: Collection[str]) -> Known | None:
        """The tensor of these bytes in the programs of these methods, or of any where none is
        given; None where they have none."""
        found = [
            known
            for method in sorted(methods or self.constants)
            if (known := self._names.get(method, {}).get(digest)) is not None
        ]
        if not found:
            return None
        names = {name for known in found for name in known.names}
        first = found[0]
        return Known(tuple(sorted(names)), first.dtype, first.shape, first.size, first.base)

    @cached_property
    def _names(self) -> dict[str, dict[Digest, Known]]:
        return {method: _by_form(record) for method, record in self.constants.items()}

    def consumed(self, method: str, payload: Digest) -> list[Known]:
        """The tensors of a method that went into a payload."""
        record = self.constants.get(method)
        if record is None:
            return []
        every = _each(record)
        return [every[number] for number in record["consumed"].get(payload, ())]


def by_segment(layout: ProgramFile | DataFile) -> dict[int, list[str]]:
    """The keys of each segment of named data, sorted."""
    found: dict[int, list[str]] = {}
    for key, segment in sorted((entry[0], entry[1]) for entry in layout.named):
        found.setdefault(segment, []).append(key)
    return dict(sorted(found.items()))


def _each(record: Mapping[str, Any]) -> list[Known]:
    """In the order that numbers in `consumed` go by."""
    return [
        Known(tuple(t["names"]), t["dtype"], tuple(t["shape"]), t["size"], Digest(base))
        for base, t in sorted(record["tensors"].items())
    ]


def _by_form(record: Mapping[str, Any]) -> dict[Digest, Known]:
    """By the digest of every form."""
    return {
        Digest(digest): known
        for known in _each(record)
        for digest in (known.base, *record["tensors"][known.base]["forms"])
    }


def listed(names: set[str]) -> str:
    """Names in a row, the first few of many."""
    ranked = sorted(names)
    more = len(ranked) - _MOST_NAMES
    return ", ".join(ranked[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
