"""Reads the members of a PT2 archive, and checks all of them: an archive may come from a stranger.

`<root>/models/<entry>.json` holds a method's program, `<root>/data/{weights,constants}/` its
tensors. This module doesn't import torch, which receives checked data and never reads the file.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any

from pipeline.program.archive_schema import ELEMENT_SIZES, SCHEMA_VERSION, STRIDED
from pipeline.program.sources import shown
from pipeline.program.stored_zip import StoredZip
from pipeline.store.errors import SourceError
from pipeline.store.file_digests import stamp_of
from pipeline.store.files import stat_file
from pipeline.store.names import check_method_name

KINDS = ("weights", "constants")

# In bytes; the program of a model with a billion parameters has some 10 million.
_LARGEST_TEXT = 1 << 28
# The most bytes of a tensor that stores few elements and repeats them (an expanded tensor).
EXPANDED = 1 << 30
_MOST_DIMENSIONS = 64  # torch's limit
_LFS = b"version https://git-lfs.github.com/spec/"
_PROGRAM = re.compile(r"models/(.*)\.json", re.DOTALL)
# For constants, torch decides by the member's name whether to unpickle, and ignores `use_pickle`.
_RAW = r"(?:weight|tensor)_[0-9]+"


# The stamps of archives that must not change during the build, keyed by the path given to
# `open_archive`.
expected_stamps: dict[Path, list[int]] = {}


@contextmanager
def open_archive(path: Path) -> Iterator[ArchiveReader]:
    """Open a PT2 archive.

    Raises:
        SourceError: the file is damaged, isn't an archive, or differs from its expected stamp.
    """
    try:
        stat_file(path)
        with open(path, "rb") as file, zipfile.ZipFile(file) as members:
            expected = expected_stamps.get(path)
            if expected and stamp_of(os.fstat(file.fileno())) != expected:
                raise SourceError(changed(path))
            yield ArchiveReader(StoredZip(members))
    except SourceError:
        raise
    except ValueError as error:
        raise SourceError(f"{shown(path)}: {error}") from error
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        why = f"is not a readable PT2 archive ({error})"
        if _is_lfs_pointer(path):
            why = (
                "is a Git LFS pointer without its content; fetch it with `git lfs pull`"
            )
        raise SourceError(f"{shown(path)}: {why}") from error
    except (RecursionError, MemoryError) as error:
        raise SourceError(
            f"{shown(path)}: is nested too deeply, or too large to be read"
        ) from error
    except (
        Exception
    ) as error:  # zipfile and json raise whatever damaged bytes lead them to
        raise SourceError(
            f"{shown(path)}: is a zip file, but not a PT2 archive ({error!r})"
        ) from error


def _is_lfs_pointer(path: Path) -> bool:
    with suppress(OSError), open(path, "rb") as file:
        return file.read(len(_LFS)) == _LFS
    return False


def changed(path: Path) -> str:
    """Return the message for an archive that has changed since the build was planned."""
    return f"{path.name}: changed while the build ran; run again"


class ArchiveReader:
    """An open PT2 archive. Its methods raise ValueError if the archive is invalid."""

    def __init__(self, members: StoredZip) -> None:
        self.members = members
        # A truncated archive can look whole: the sample inputs inside it are zip files themselves.
        if not members.has("archive_format"):
            raise ValueError("is not a PT2 archive, or is truncated")

    def entries(self) -> list[str]:
        """Return the names of the programs, in the order of the archive."""
        names = self.members.names()
        entries = [match[1] for match in map(_PROGRAM.fullmatch, names) if match]
        if not entries:
            raise ValueError("contains no exported program; write it with package_pt2")
        for entry in entries:
            check_method_name(entry)
        return entries

    def program(self, entry: str) -> dict[str, Any]:
        """Return the program of an entry, JSON of the schema's class `ExportedProgram`.

        The program is checked: it can't make torch import, look up or evaluate anything but
        operators and sizes.
        """
        name = f"models/{entry}.json"
        if not self.members.has(name):
            raise ValueError(f"contains no program '{entry}'")
        program = self._json(name)
        self._check_version(entry, program)
        self._check(entry, "ExportedProgram", program)
        return program

    def _check_version(self, entry: str, program: Any) -> None:
        """Raise ValueError if the program has another major version, and so another schema."""
        if not isinstance(program, dict) or "schema_version" not in program:
            raise ValueError(f"'{entry}' is not an exported program")
        version = program["schema_version"]
        self._check(entry, "SchemaVersion", version)
        if version["major"] == SCHEMA_VERSION[0]:
            return
        from importlib import metadata  # a no-op run doesn't need it

        writer = str(program.get("torch_version") or "an unknown version")
        schema = f"{version['major']}.{version['minor']}"
        schema_here = f"{SCHEMA_VERSION[0]}.{SCHEMA_VERSION[1]}"
        raise ValueError(
            f"'{entry}' was written by torch {ascii(writer)[1:-1][:40]} (schema {schema}), and "
            f"this is torch {metadata.version('torch')} (schema {schema_here}); export it again "
            "with this torch"
        )

    def tags(self, entry: str) -> dict[str, str]:
        """Return the tags of constants, by qualified name, that `save_programs` wrote."""
        return self._extra(entry, tags_file(entry), "{path:file}")

    def replaced_sizes(self, entry: str) -> dict[str, dict[str, dict[str, str]]]:
        """Return the input sizes whose symbols were replaced (`program.replaced_sizes`)."""
        kind = "{name:{place:{symbol:symbol}}}"
        return self._extra(entry, sizes_file(entry), kind)

    def _extra(self, entry: str, file: str, kind: str) -> dict[str, Any]:
        name = f"extra/{file}"
        if not self.members.has(name):
            return {}
        document: dict[str, Any] = self._json(name)
        self._check(entry, kind, document)
        return document

    def payloads(self, kind: str, entry: str) -> dict[str, Any]:
        """Return the record of each tensor by name (`PayloadMeta` in the schema).

        The member `data/<kind>/<path_name>` holds all elements of a tensor or, for a tensor
        subclass (`use_pickle`), the output of `torch.save`.

        Args:
            kind: "weights" or "constants".
        """
        if self.members.has(f"data/{kind}/{entry}.pt"):
            raise ValueError(
                f"'{entry}' stores its {kind} pickled, as older torch did; "
                "export it again with this environment's torch"
            )
        config = self._json(f"data/{kind}/{entry}_{kind}_config.json")
        self._check(entry, "PayloadConfig", config)
        records: dict[str, Any] = config["config"]
        objects = [
            name
            for name, record in sorted(records.items())
            if not re.fullmatch(_RAW, record["path_name"])
        ]
        if objects:
            raise ValueError(
                f"'{entry}' stores {', '.join(objects)} as objects that would be unpickled; export "
                "plain tensors"
            )
        for name, record in records.items():
            if not record["use_pickle"]:
                stored_bytes = self.members.size(f"data/{kind}/{record['path_name']}")
                _check_extent(
                    f"'{entry}': tensor '{name}'",
                    record["tensor_meta"],
                    stored_bytes,
                )
        return records

    def _json(self, name: str) -> Any:
        text = self.members.read(name, _LARGEST_TEXT)
        try:
            return json.loads(text, parse_constant=_refuse)
        except ValueError as error:
            raise ValueError(f"'{name}' is not JSON ({error})") from error

    def _check(self, entry: str, cls: str, document: Any) -> None:
        # Imported here, since a run with nothing to do checks no archive.
        from pipeline.program.archive_grammar import check_document

        try:
            check_document(cls, document)
        except ValueError as error:
            raise ValueError(f"'{entry}' is refused: {error}") from error


def _check_extent(label: str, meta: Any, stored_bytes: int) -> None:
    """Raise ValueError unless all elements of a tensor lie within the bytes of its member."""
    if meta is None or meta["layout"] != STRIDED or meta["dtype"] not in ELEMENT_SIZES:
        raise ValueError(f"{label} is not a dense tensor")
    numbers = [*meta["sizes"], *meta["strides"], meta["storage_offset"]]
    if any(number.get("as_int", -1) < 0 for number in numbers):
        raise ValueError(
            f"{label} has a size, stride or offset that is not a non-negative number"
        )
    sizes = [size["as_int"] for size in meta["sizes"]]
    strides = [stride["as_int"] for stride in meta["strides"]]
    if len(sizes) != len(strides) or len(sizes) > _MOST_DIMENSIONS:
        raise ValueError(f"{label} has {len(sizes)} sizes and {len(strides)} strides")
    last = meta["storage_offset"]["as_int"]
    for size, stride in zip(sizes, strides, strict=True):
        last += (size - 1) * stride
    element_bytes = ELEMENT_SIZES[meta["dtype"]]
    needed_bytes = (last + 1) * element_bytes
    all_bytes = prod(sizes) * element_bytes
    if not all_bytes:
        return
    if not stored_bytes and meta["device"]["type"] == "meta":
        raise ValueError(
            f"{label} is on the device 'meta'; export the model with its weights"
        )
    if needed_bytes > stored_bytes:
        raise ValueError(
            f"{label} needs {needed_bytes} bytes, but only {stored_bytes} are stored"
        )
    if all_bytes > max(stored_bytes, EXPANDED):
        raise ValueError(
            f"{label} has {all_bytes} bytes, and stores {stored_bytes} of them; expand it in "
            "`forward`"
        )


def tags_file(entry: str) -> str:
    """Return the name of the extra file that holds the constant tags of a program."""
    return f"constant_tags/{entry}.json"


def sizes_file(entry: str) -> str:
    """Return the name of the extra file that holds the replaced sizes of a program."""
    return f"replaced_sizes/{entry}.json"


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
