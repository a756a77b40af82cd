"""Reads the members of a PT2 archive, of which nothing is believed.

`<root>/models/<entry>.json` holds a method's program, `<root>/data/{weights,constants}/` its
tensors. No torch here: it is given what was checked, and never reads the file itself.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.program.archive_schema import ELEMENT_SIZES, SCHEMA_VERSION, STRIDED
from pipeline.program.stored_zip import StoredZip
from pipeline.store.errors import SourceError
from pipeline.store.files import stat_file
from pipeline.store.names import METHOD_NAME, METHOD_RULE

KINDS = ("weights", "constants")

_LARGEST_TEXT = 1 << 28  # bytes; the program of a model of a billion parameters has some 10 million
EXPANDED = 1 << 30  # bytes of a tensor that repeats its elements, and stores few of them
_MOST_DIMENSIONS = 64  # as torch has it
_BLOB = re.compile(r"[0-9a-f]{64}")
# torch goes by the file's name for constants, whatever `use_pickle` says.
_RAW = re.compile(r"(?:weight|tensor)_[0-9]+")


def shown(path: Path) -> str:
    """Return what messages call an archive: `models/<file>`. A blob's name says nothing."""
    is_blob = _BLOB.fullmatch(path.parent.name + path.name)
    return "the exported program" if is_blob else f"{path.parent.name}/{path.name}"


@contextmanager
def open_archive(path: Path) -> Iterator[ArchiveReader]:
    """Open a PT2 archive. Raises SourceError for one that is damaged, or that is none."""
    try:
        stat_file(path)
        with open(path, "rb") as file, zipfile.ZipFile(file) as members:
            yield ArchiveReader(StoredZip(members))
    except SourceError:
        raise
    except ValueError as error:
        raise SourceError(f"{shown(path)}: {error}") from error
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise SourceError(f"{shown(path)}: is not a readable PT2 archive ({error})") from error
    except (RecursionError, MemoryError) as error:
        raise SourceError(f"{shown(path)}: is nested too deep, or too large to be read") from error
    except Exception as error:  # zipfile and json raise whatever damaged bytes lead them to
        raise SourceError(
            f"{shown(path)}: is a zip file, but not a PT2 archive ({error!r})"
        ) from error


class ArchiveReader:
    """An open PT2 archive. Its methods raise ValueError, with what is wrong."""

    def __init__(self, members: StoredZip) -> None:
        self.members = members
        # A truncated archive can look like a whole one: the sample inputs inside it are zips.
        if not members.has("archive_format"):
            raise ValueError("is not a PT2 archive, or is cut short")

    def entries(self) -> list[str]:
        """Return the names of the programs, in their order."""
        names = self.members.names()
        names = [n for n in names if n.startswith("models/") and n.endswith(".json")]
        entries = [name.removeprefix("models/").removesuffix(".json") for name in names]
        if not entries:
            raise ValueError("holds no exported program; write it with package_pt2")
        for entry in entries:
            check_method_name(entry)
        return entries

    def program(self, entry: str) -> dict[str, Any]:
        """Return the program of an entry: JSON of the schema's class `ExportedProgram`, in which
        nothing is left that torch would import, look up or evaluate beyond it."""
        if not self.members.has(f"models/{entry}.json"):
            raise ValueError(f"holds no program '{entry}'")
        program = self._json(f"models/{entry}.json")
        self._check_version(entry, program)
        self._check(entry, "ExportedProgram", program)
        return program

    def _check_version(self, entry: str, program: Any) -> None:
        """Raises SourceError for a program of another major version, whose form is another."""
        if not isinstance(program, dict) or "schema_version" not in program:
            raise ValueError(f"'{entry}' is no exported program")
        from importlib import metadata  # which a no-op run does without

        version = program["schema_version"]
        self._check(entry, "SchemaVersion", version)
        if version["major"] != SCHEMA_VERSION[0]:
            by = str(program.get("torch_version") or "an unknown version")
            raise ValueError(
                f"'{entry}' was written by torch {ascii(by)[1:-1][:40]} (schema {version['major']}."
                f"{version['minor']}), and this is torch {metadata.version('torch')} (schema "
                f"{SCHEMA_VERSION[0]}.{SCHEMA_VERSION[1]}); export it again with this torch"
            )

    def tags(self, entry: str) -> dict[str, str]:
        """Return the tags of constants by qualified name, which `save_programs` adds."""
        if not self.members.has(f"extra/{tags_file(entry)}"):
            return {}
        tags: dict[str, str] = self._json(f"extra/{tags_file(entry)}")
        self._check(entry, "{path:file}", tags)
        return tags

    def payloads(self, kind: str, entry: str) -> dict[str, Any]:
        """Return the record of each tensor by name: `PayloadMeta` of the schema, of which each has
        a member `data/<kind>/<path_name>` that holds all of its elements, or, of a tensor subclass
        (`use_pickle`), what `torch.save` wrote.

        Args:
            kind: "weights" or "constants".
        """
        if self.members.has(f"data/{kind}/{entry}.pt"):
            raise ValueError(
                f"'{entry}' stores its {kind} pickled, as older torch did; "
                "export it again with the torch of this environment"
            )
        config = self._json(f"data/{kind}/{entry}_{kind}_config.json")
        self._check(entry, "PayloadConfig", config)
        records: dict[str, Any] = config["config"]
        objects = sorted(
            name for name, record in records.items() if not _RAW.fullmatch(record["path_name"])
        )
        if objects:
            raise ValueError(
                f"'{entry}' stores {', '.join(objects)} as objects that would be unpickled; export "
                "plain tensors"
            )
        for name, record in records.items():
            if not record["use_pickle"]:
                self._check_extent(f"'{entry}': tensor '{name}'", kind, record)
        return records

    def _check_extent(self, what: str, kind: str, record: Mapping[str, Any]) -> None:
        """Check that a tensor's elements stand in its member, and none beyond."""
        stored = self.members.size(f"data/{kind}/{record['path_name']}")
        meta = record["tensor_meta"]
        if meta is None or meta["layout"] != STRIDED or meta["dtype"] not in ELEMENT_SIZES:
            raise ValueError(f"{what} is no dense tensor")
        numbers = [*meta["sizes"], *meta["strides"], meta["storage_offset"]]
        if any(each.get("as_int", -1) < 0 for each in numbers):
            raise ValueError(f"{what} has a size, stride or offset that is no number from 0")
        sizes, strides = ([each["as_int"] for each in meta[key]] for key in ("sizes", "strides"))
        if len(sizes) != len(strides) or len(sizes) > _MOST_DIMENSIONS:
            raise ValueError(f"{what} has {len(sizes)} sizes and {len(strides)} strides")
        element = ELEMENT_SIZES[meta["dtype"]]
        last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        needed, full = (meta["storage_offset"]["as_int"] + last + 1) * element, element
        for size in sizes:
            full *= size
        if full and not stored and meta["device"]["type"] == "meta":
            raise ValueError(f"{what} is on the device 'meta'; export the model with its weights")
        if full and needed > stored:
            raise ValueError(f"{what} needs {needed} bytes, of which {stored} are there")
        if full > max(stored, EXPANDED):
            raise ValueError(
                f"{what} has {full} bytes, and stores {stored} of them; expand it in `forward`"
            )

    def _json(self, name: str) -> Any:
        text = self.members.read(name, _LARGEST_TEXT)
        try:
            return json.loads(text, parse_constant=_refuse)
        except ValueError as error:
            raise ValueError(f"'{name}' is no JSON ({error})") from error

    def _check(self, entry: str, cls: str, document: Any) -> None:
        # A run with nothing to do checks no archive.
        from pipeline.program.archive_grammar import check_document

        try:
            check_document(cls, document)
        except ValueError as error:
            raise ValueError(f"'{entry}' is refused: {error}") from error


def tags_file(entry: str) -> str:
    """Return the name, among an archive's extra files, of the tags of a program's constants."""
    return f"constant_tags/{entry}.json"


def check_method_name(name: str) -> None:
    """Raises ValueError for a name that no method can have."""
    if not METHOD_NAME.fullmatch(name):
        raise ValueError(f"method name {name[:140]!r}; {METHOD_RULE}")


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
