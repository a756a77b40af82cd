"""Reads the members of a PT2 archive, of which nothing is believed.

`<root>/models/<entry>.json` holds a method's program, `<root>/data/{weights,constants}/` its
tensors. torch stores members as they are, so a member takes as many bytes of the file as it says,
and no two of them the same bytes. No torch here: it never reads the file itself.
"""

from __future__ import annotations

import json
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pipeline.program.archive_schema import ELEMENT_SIZES, SCHEMA_VERSION, STRIDED, check_document
from pipeline.store import digest
from pipeline.store.digest import Digest
from pipeline.store.errors import SourceError

METHOD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KINDS = ("weights", "constants")

_LONGEST_NAME = 1000
_MOST_MEMBERS = 1_000_000
_LARGEST_TEXT = 1 << 28  # bytes; the program of a model of a billion parameters has some 10 million
_EXPANDED = 1 << 30  # bytes of a tensor that repeats its elements, which stores few of them
_LOCAL_HEADER = 30  # bytes
# torch goes by the file's name for constants, whatever `use_pickle` says.
_RAW = re.compile(r"(?:weight|tensor)_[0-9]+")


def shown(path: Path) -> str:
    """Return what messages call an archive: `models/<file>`."""
    return f"{path.parent.name}/{path.name}"


@contextmanager
def open_archive(path: Path) -> Iterator[ArchiveReader]:
    """Open a PT2 archive. Raises SourceError for one that is damaged, or that is none."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SourceError(f"{shown(path)}: is no file, must be a PT2 archive")
        with open(path, "rb") as file, zipfile.ZipFile(file) as members:
            yield ArchiveReader(path, members)
    except SourceError:
        raise
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise SourceError(f"{shown(path)}: is not a readable PT2 archive ({error})") from error
    except (RecursionError, MemoryError) as error:
        raise SourceError(f"{shown(path)}: is nested too deep, or too large to be read") from error
    except Exception as error:  # zipfile and json raise whatever damaged bytes lead them to
        raise SourceError(
            f"{shown(path)}: is a zip file, but not a PT2 archive ({error!r})"
        ) from error


class ArchiveReader:
    """An open PT2 archive, whose members stand under one folder and are stored as they are."""

    def __init__(self, path: Path, members: zipfile.ZipFile) -> None:
        self._path = path
        self._zip = members
        infos = members.infolist()
        self._check_names(infos)
        self._check_places(infos)
        self._root = infos[0].filename.split("/", 1)[0] if infos else ""
        self._infos = {info.filename.partition("/")[2]: info for info in infos}
        # A truncated archive can look like a whole one: the sample inputs inside it are zips.
        if "archive_format" not in self._infos:
            raise self._error("is not a PT2 archive, or is cut short")
        byteorder = self.read("byteorder", 16) if "byteorder" in self._infos else b"little"
        if byteorder != b"little":
            raise self._error(f"has the byte order {byteorder!r}, must be little")

    def _error(self, what: str) -> SourceError:
        return SourceError(f"{shown(self._path)}: {what}")

    def _check_names(self, infos: list[zipfile.ZipInfo]) -> None:
        if len(infos) > _MOST_MEMBERS:
            raise self._error(f"has {len(infos)} members, at most {_MOST_MEMBERS} are read")
        names = [info.orig_filename for info in infos]
        for name in names:
            if not name.isprintable() or len(name) > _LONGEST_NAME or "\\" in name:
                raise self._error(f"has a member named {name[:60]!a}, which is not read")
        roots = {name.split("/", 1)[0] for name in names}
        if len(roots) > 1 or any(".." in name.split("/") or name[:1] == "/" for name in names):
            raise self._error("member names must stand under one folder, without '..'")
        # torch's reader passes over case, and of two members it may find another than Python's.
        if len({name.lower() for name in names}) < len(names):
            raise self._error("two members have one name, apart from case")

    def _check_places(self, infos: list[zipfile.ZipInfo]) -> None:
        """Check that each member has bytes of its own, as many as it says."""
        end = 0
        for info in sorted(infos, key=lambda each: each.header_offset):
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise self._error(
                    f"'{info.filename}' is compressed or encrypted, and torch stores members as "
                    "they are; write it with torch.export.save or package_pt2"
                )
            if info.file_size != info.compress_size:
                raise self._error(f"'{info.filename}' has two sizes")
            if info.header_offset < end:
                raise self._error(f"'{info.filename}' stands where another member stands")
            end = info.header_offset + _LOCAL_HEADER + len(info.filename) + info.file_size
        if end > self._path.stat().st_size:
            raise self._error("has members that end behind the end of the file; is it cut short?")

    def entries(self) -> list[str]:
        """Return the names of the programs, in their order."""
        names = [n for n in self._infos if n.startswith("models/") and n.endswith(".json")]
        entries = [name.removeprefix("models/").removesuffix(".json") for name in names]
        if not entries:
            raise self._error("holds no exported program; write it with package_pt2")
        for entry in entries:
            check_method_name(self._path, entry)
        return entries

    def program(self, entry: str) -> dict[str, Any]:
        """Return the program of an entry: JSON of the schema's class `ExportedProgram`, in which
        nothing is left that torch would import, look up or evaluate beyond it."""
        if f"models/{entry}.json" not in self._infos:
            raise self._error(f"holds no program '{entry}'")
        program = self._json(f"models/{entry}.json")
        self._check_version(entry, program)
        self._check(entry, "ExportedProgram", program)
        return program

    def _check_version(self, entry: str, program: Any) -> None:
        """Raises SourceError for a program of another major version, whose form is another."""
        version = program.get("schema_version")
        check_document("SchemaVersion", version)
        if version["major"] != SCHEMA_VERSION[0]:
            by = str(program.get("torch_version") or "an unknown version")
            raise self._error(
                f"'{entry}' was written by torch {by[:40]!a} (schema {version['major']}."
                f"{version['minor']}), and this one reads schema {SCHEMA_VERSION[0]}."
                f"{SCHEMA_VERSION[1]}; export it again with this torch"
            )

    def payloads(self, kind: str, entry: str) -> dict[str, Any]:
        """Return the record of each tensor by name: `PayloadMeta` of the schema, of which each has
        a member `data/<kind>/<path_name>` that holds all of its elements.

        Args:
            kind: "weights" or "constants".
        """
        if f"data/{kind}/{entry}.pt" in self._infos:
            raise self._error(
                f"'{entry}' stores its {kind} pickled, as older torch did; "
                "export it again with the torch of this environment"
            )
        config = self._json(f"data/{kind}/{entry}_{kind}_config.json")
        self._check(entry, "PayloadConfig", config)
        records: dict[str, Any] = config["config"]
        pickled = sorted(
            name
            for name, record in records.items()
            if record["use_pickle"] or not _RAW.fullmatch(record["path_name"])
        )
        if pickled:
            raise self._error(
                f"'{entry}' stores {', '.join(pickled)} pickled (a tensor "
                "subclass or a script object), which is not read; export plain tensors"
            )
        for name, record in records.items():
            self._check_extent(f"'{entry}': tensor '{name}'", kind, record)
        return records

    def _check_extent(self, what: str, kind: str, record: Mapping[str, Any]) -> None:
        """Check that a tensor's elements stand in its member, and none beyond."""
        if (info := self._infos.get(f"data/{kind}/{record['path_name']}")) is None:
            raise self._error(f"{what} has no member '{record['path_name']}'")
        meta = record["tensor_meta"]
        if meta is None or meta["layout"] != STRIDED or meta["dtype"] not in ELEMENT_SIZES:
            raise self._error(f"{what} is no dense tensor")
        numbers = [*meta["sizes"], *meta["strides"], meta["storage_offset"]]
        if any(each.get("as_int", -1) < 0 for each in numbers):
            raise self._error(f"{what} has a size, stride or offset that is no number from 0")
        sizes, strides = ([each["as_int"] for each in meta[key]] for key in ("sizes", "strides"))
        if len(sizes) != len(strides):
            raise self._error(f"{what} has {len(sizes)} sizes and {len(strides)} strides")
        element = ELEMENT_SIZES[meta["dtype"]]
        last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        needed, full = (meta["storage_offset"]["as_int"] + last + 1) * element, element
        for size in sizes:
            full *= size
        if full and needed > info.file_size:
            raise self._error(f"{what} needs {needed} bytes, of which {info.file_size} are there")
        if full > max(info.file_size, _EXPANDED):
            raise self._error(f"{what} has {full} bytes, and stores {info.file_size} of them")

    def size(self, name: str) -> int:
        """Return the number of bytes of a member."""
        return self._infos[name].file_size

    def has(self, name: str) -> bool:
        """Tell whether there is a member of a name."""
        return name in self._infos

    def open(self, name: str) -> IO[bytes]:
        """Open a member. Reading its end raises zipfile.BadZipFile where it is damaged."""
        return self._zip.open(self._infos[name])

    def read(self, name: str, most: int) -> bytes:
        """Return the bytes of a member that has no more than `most` of them."""
        if (size := self.size(name)) > most:
            raise self._error(f"'{name}' has {size} bytes, at most {most} are read")
        return self._zip.read(self._infos[name])

    def hash(self, name: str) -> Digest:
        """Return the digest of a member, which is read in pieces."""
        with self.open(name) as file:
            return digest.hash_pieces(digest.iter_pieces(file))

    def _json(self, name: str) -> Any:
        if not self.has(name):
            raise self._error(f"has no '{name}'")
        try:
            return json.loads(self.read(name, _LARGEST_TEXT), parse_constant=_refuse)
        except ValueError as error:
            raise self._error(f"'{name}' is no JSON ({error})") from error

    def _check(self, entry: str, cls: str, document: Any) -> None:
        try:
            check_document(cls, document)
        except ValueError as error:
            raise self._error(f"'{entry}' is refused: {error}") from error


def check_method_name(path: Path, name: str) -> None:
    """Raises SourceError for a name that no method can have."""
    if not METHOD_NAME.fullmatch(name):
        raise SourceError(
            f"{shown(path)}: method name {name!r}; must be letters, digits and underscores, "
            "and not start with a digit"
        )


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
