"""Map a file of a package into memory, and name its parts."""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from pipeline.program.flatbuffer import CorruptError, Span
from pipeline.program.pte import FileLayout, read_data, read_program
from pipeline.store.digest import Digest, hash_bytes
from pipeline.store.errors import PipelineError


class PackageFile:
    """A file of a package. Digests of its parts, keyed by offset and size, are computed lazily."""

    def __init__(
        self,
        name: str,
        data: memoryview,
        layout: FileLayout,
        digests: Mapping[tuple[int, int], Digest],
    ) -> None:
        self.name = name
        self.data = data
        self.layout = layout
        self._digests = dict(digests)

    def digest(self, span: Span) -> Digest:
        if span not in self._digests:
            self._digests[span] = hash_bytes(self.data[span.offset : span.end])
        return self._digests[span]

    @cached_property
    def named(self) -> dict[int, list[str]]:
        """The sorted keys of each segment of named data, by segment."""
        named_pieces: dict[int, list[str]] = defaultdict(list)
        for key, segment in sorted((entry[0], entry[1]) for entry in self.layout.named):
            named_pieces[segment].append(key)
        return dict(sorted(named_pieces.items()))


def open_file(
    name: str,
    path: Path,
    digests: Mapping[tuple[int, int], Digest] = MappingProxyType({}),
) -> PackageFile:
    """Map a file into memory. Raises PipelineError if it can't be read or isn't a valid package
    file."""
    try:
        with open(path, "rb") as file:
            # An empty file can't be mapped.
            if not path.stat().st_size:
                raise CorruptError("it is empty")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if name.endswith(".ptd"):
            layout = read_data(data)
        else:
            layout = read_program(data)
    except CorruptError as error:
        raise PipelineError(f"{name}: is corrupt: {error}") from None
    except OSError as error:
        raise PipelineError(f"{name}: cannot be read: {error.strerror}") from None
    return PackageFile(name, data, layout, digests)
