"""A file of a package, mapped into memory, with the names of its parts."""

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
    """A file of a package, whose parts are hashed when their digests are first needed.

    `digests` holds those that are already known, by the part's offset and size in bytes.
    """

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
        """The sorted keys of the named data in each segment, by segment number."""
        named_pieces: dict[int, list[str]] = defaultdict(list)
        for key, segment in sorted((entry[0], entry[1]) for entry in self.layout.named):
            named_pieces[segment].append(key)
        return dict(sorted(named_pieces.items()))


def open_file(
    name: str,
    path: Path,
    digests: Mapping[tuple[int, int], Digest] = MappingProxyType({}),
) -> PackageFile:
    """Map a file of a package into memory; the ending of `name` determines its type.

    Raises PipelineError if the file can't be read or is corrupt.
    """
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
