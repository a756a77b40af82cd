"""A package's files, mapped into memory, with the users and names of their parts."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.program.flatbuffer import CorruptError, Span
from pipeline.program.pte import DataFile, ProgramFile, TensorType, read_data, read_program
from pipeline.store.digest import Digest, hash_bytes
from pipeline.store.errors import PipelineError, listed

_MOST_NAMES = 3


@dataclass(eq=False)
class PackageFile:
    """A file of a package; digests of its parts are computed when they are first asked for."""

    name: str
    data: memoryview
    layout: ProgramFile | DataFile
    _digests: dict[Span, Digest] = field(default_factory=dict)

    def digest(self, span: Span) -> Digest:
        if span not in self._digests:
            self._digests[span] = hash_bytes(self.data[span.offset : span.end])
        return self._digests[span]


@dataclass(frozen=True)
class KnownTensor:
    """A tensor of a method's program; `base` is the same for equal tensors in any layout."""

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    size: int
    base: Digest


def _open_file(name: str, path: Path) -> PackageFile:
    """Map a file into memory. Raises PipelineError if it is not what its name says."""
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
    return PackageFile(name, data, layout)


class PackageView:
    """The files of a package, as `describe_contents` takes them. Raises PipelineError."""

    def __init__(
        self,
        files: Mapping[str, Path],
        constants: Mapping[str, Mapping[str, Any]],
        keys: Mapping[str, Collection[str]],
    ) -> None:
        self.files = [_open_file(name, path) for name, path in sorted(files.items())]
        programs = [(f, f.layout) for f in self.files if isinstance(f.layout, ProgramFile)]
        if len(programs) != 1:
            raise PipelineError(f"a package has one .pte, this one has {len(programs)}")
        ((self.pte, self.layout),) = programs
        self.plans = sorted(self.layout.plans, key=lambda plan: plan.name)
        self.constants = constants
        self.keys = keys

    @cached_property
    def users(self) -> dict[str, set[str]]:
        """The methods that use each key of named data, also of tensors in `.ptd` files."""
        found: dict[str, set[str]] = {key: set(own) for key, own in self.external.items()}
        for method, own in self.keys.items():
            for key in own:
                found.setdefault(key, set()).add(method)
        return found

    @cached_property
    def external(self) -> dict[str, set[str]]:
        """The methods that use each key of tensors of portable operators outside of the `.pte`."""
        found: dict[str, set[str]] = {}
        for plan in self.plans:
            for tensor in plan.tensors:
                if tensor.key:
                    found.setdefault(tensor.key, set()).add(plan.name)
        return found

    def indices(self, planned: bool) -> dict[int, tuple[TensorType, set[str]]]:
        """Return the type of the largest tensor of each constant, and the methods that use it.

        Args:
            planned: whether indices are those of mutable data instead of constants.
        """
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
        """The delegates that share each payload: method, number and backend."""
        found: dict[Span, list[tuple[str, int, str]]] = {}
        for plan in self.plans:
            for number, delegate in enumerate(plan.delegates):
                if delegate.payload is not None:
                    user = (plan.name, number, delegate.backend)
                    found.setdefault(delegate.payload, []).append(user)
        return found

    def lookup(self, digest: Digest, methods: Collection[str]) -> KnownTensor | None:
        """Find the tensor of these bytes in the programs of methods; of any if none is given."""
        found = [
            known
            for method in sorted(methods or self.constants)
            if (known := self._names.get(method, {}).get(digest)) is not None
        ]
        if not found:
            return None
        names = {name for known in found for name in known.names}
        first = found[0]
        return KnownTensor(tuple(sorted(names)), first.dtype, first.shape, first.size, first.base)

    @cached_property
    def _names(self) -> dict[str, dict[Digest, KnownTensor]]:
        return {method: _index_forms(record) for method, record in self.constants.items()}

    def consumed(self, method: str, payload: Digest) -> list[KnownTensor]:
        """Return the tensors of a method that went into a payload."""
        record = self.constants.get(method)
        if record is None:
            return []
        every = _parse_tensors(record)
        return [every[number] for number in record["consumed"].get(payload, ())]


def group_by_segment(layout: ProgramFile | DataFile) -> dict[int, list[str]]:
    """Return the keys of each segment of named data, sorted."""
    found: dict[int, list[str]] = {}
    for key, segment in sorted((entry[0], entry[1]) for entry in layout.named):
        found.setdefault(segment, []).append(key)
    return dict(sorted(found.items()))


def _parse_tensors(record: Mapping[str, Any]) -> list[KnownTensor]:
    """Return the tensors of a record in the order that the numbers in `consumed` refer to."""
    return [
        KnownTensor(tuple(t["names"]), t["dtype"], tuple(t["shape"]), t["size"], Digest(base))
        for base, t in sorted(record["tensors"].items())
    ]


def _index_forms(record: Mapping[str, Any]) -> dict[Digest, KnownTensor]:
    """Return the tensors of a record by the digest of each of their forms."""
    return {
        Digest(digest): known
        for known in _parse_tensors(record)
        for digest in (known.base, *record["tensors"][known.base]["forms"])
    }


def join_names(names: Iterable[str]) -> str:
    """Join names with commas, the first few of many."""
    return listed(sorted(names), _MOST_NAMES)
