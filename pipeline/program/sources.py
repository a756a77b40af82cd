"""Model sources in `models/`: which form each has, which methods, and each method's digest.

Nothing here imports torch. A PT2 archive is a zip whose directory lists the methods, and whose
members hold a method's graph as JSON and its weights as raw bytes (torch's
`torch/export/pt2_archive`), so even the digest of the *program* can be had without loading it.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.program.canonical import canonical_program, summarize_parts
from pipeline.program.module_paths import outline_archive
from pipeline.store import digest
from pipeline.store.digest import Digest
from pipeline.store.errors import SourceError

Form = Literal["archive", "folder", "exporter"]

METHOD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What torch.export.save, which knows one method only, calls it, and what ExecuTorch calls it.
_SINGLE_NAME, _SINGLE_METHOD = "model", "forward"


@dataclass(frozen=True)
class ModelSource:
    """One model: `<model>.pt2`, a folder of `<method>.pt2`, or an exporter `<model>.py`."""

    model: str
    form: Form
    path: Path


def find_sources(models: Path) -> tuple[dict[str, ModelSource], dict[str, str]]:
    """Find the model sources of a folder by name, and what is wrong with the others, by name.

    Raises SourceError for a folder that cannot be read.
    """
    found: dict[str, list[ModelSource]] = {}
    wrong: dict[str, str] = {}
    try:
        paths = sorted(models.iterdir()) if models.is_dir() else []
    except OSError as error:
        raise SourceError(f"{models.name}/: {unreadable(error)}") from error
    for path in paths:
        try:
            form = _form(path)
        except OSError as error:
            name = path.stem if path.suffix in (".pt2", ".py") else path.name
            wrong[name] = f"{shown(path)}: {unreadable(error)}"
            continue
        if form is not None:
            model = path.name if form == "folder" else path.stem
            found.setdefault(model, []).append(ModelSource(model, form, path))
    for model, forms in found.items():
        if len(forms) > 1:
            places = ", ".join(shown(source.path) for source in forms)
            wrong[model] = f"model '{model}' has {len(forms)} sources: {places}; keep one"
    return {model: forms[0] for model, forms in found.items() if len(forms) == 1}, wrong


def unreadable(error: OSError) -> str:
    """Return the message for a file that the system does not let be read."""
    return f"cannot be read ({error.strerror or error})"


def _form(path: Path) -> Form | None:
    """Return the form of a model source; None for what is none. Raises OSError."""
    if path.name.startswith((".", "_")):
        return None
    if path.is_dir():
        return "folder" if any(each.name.endswith(".pt2") for each in path.iterdir()) else None
    return {".pt2": "archive", ".py": "exporter"}.get(path.suffix)  # type: ignore[return-value]


@dataclass(frozen=True)
class MethodSource:
    """The place of a method's program, and the digest of the program (not of the file).

    `names` is the digest of the names of its values, which the program leaves out, `content` that
    of the file. `examples` and `calibration` are digests of its input sets: of the pickled sample
    inputs inside an archive, or of a record in the store for what an exporter gave (`exported`).
    `batches` are the records of the calibration inputs, one by one; their digest is that of this
    list.
    """

    archive: Path
    entry: str
    program: Digest
    names: Digest | None = None
    content: Digest | None = None
    examples: Digest | None = None
    calibration: Digest | None = None
    batches: tuple[Digest, ...] = ()
    exported: bool = False


@dataclass(frozen=True)
class ProgramFacts:
    """The description of one entry of an archive.

    `parts` are short digests by which two programs can be compared: of its sub-modules, its tensors
    and so on; they are not part of any key.
    """

    entry: str
    program: Digest
    names: Digest
    examples: Digest | None
    parts: Mapping[str, Any]


@dataclass(frozen=True)
class ArchiveFacts:
    """The digest of a file's bytes, and its entries in their order."""

    content: Digest
    programs: tuple[ProgramFacts, ...]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the entries, without their parts."""
        return [{**vars(each), "parts": {}} for each in self.programs]


def parse_archive(content: Digest, programs: Any) -> ArchiveFacts:
    """Return the facts whose entries `to_json` returned."""
    return ArchiveFacts(content, tuple(ProgramFacts(**each) for each in programs))


Describe = Callable[[Path], ArchiveFacts]


def method_sources(source: ModelSource, describe: Describe) -> dict[str, MethodSource]:
    """Return the methods of an archive or a folder. Raises SourceError.

    Args:
        describe: describes an archive.
    """
    if source.form == "archive":
        return _read_methods(source.path, describe)
    methods: dict[str, MethodSource] = {}
    for path in sorted(source.path.glob("*.pt2")):
        inside = _read_methods(path, describe)
        if len(inside) != 1:
            raise SourceError(
                f"{shown(path)}: has {len(inside)} methods ({', '.join(inside)}); an archive in a "
                "model's folder has one, named after the file"
            )
        _check_method_name(path, path.stem)
        methods[path.stem] = next(iter(inside.values()))
    return methods


def _read_methods(path: Path, describe: Describe) -> dict[str, MethodSource]:
    facts = describe(path)
    single = [each.entry for each in facts.programs] == [_SINGLE_NAME]
    return {
        _SINGLE_METHOD if single else each.entry: MethodSource(
            path, each.entry, each.program, each.names, facts.content, each.examples
        )
        for each in facts.programs
    }


def describe_archive(path: Path, content: Digest | None = None) -> ArchiveFacts:
    """Describe the entries of a PT2 archive.

    The digest of a program is that of its canonical graph, its signature and ranges, and the bytes
    of every weight and constant.

    Args:
        content: the digest of the file's bytes, where it was taken before.

    Raises:
        SourceError: it is no such archive, or not of this content when it has been read.
    """
    try:
        content = content or digest.hash_file(path)
        with zipfile.ZipFile(path) as archive:
            facts = tuple(_Archive(path, archive).facts())
        # Hashed again after it was read, whoever hashed it before: facts under the digest of
        # another content would be served from the store ever after.
        if digest.hash_file(path) != content:
            raise SourceError(f"{shown(path)}: changed while it was read; run again")
        return ArchiveFacts(content, facts)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SourceError(f"{shown(path)}: is not a readable PT2 archive ({error})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{shown(path)}: is a zip file, but not a PT2 archive ({error!r})"
        ) from error


def shown(path: Path) -> str:
    """Return what messages call an archive: `models/<file>`."""
    return f"{path.parent.name}/{path.name}"


class _Archive:
    """A PT2 archive: `<root>/models/<entry>.json`, `<root>/data/{weights,constants}/...`."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path = path
        self._zip = archive
        names = archive.namelist()
        roots = {name.split("/", 1)[0] for name in names}
        if len(roots) > 1 or any(".." in name.split("/") or name[0] == "/" for name in names):
            raise SourceError(
                f"{shown(path)}: member names must stand under one folder, without '..'"
            )
        # torch's reader passes over case, and of two members it may find another than Python's.
        if len({name.lower() for name in names}) < len(names):
            raise SourceError(f"{shown(path)}: two members have one name, apart from case")
        self._root = roots.pop() if roots else ""
        self._names = [name.partition("/")[2] for name in names]
        # A truncated archive can look like a whole one: the sample inputs inside it are zips.
        if "archive_format" not in self._names:
            raise SourceError(f"{shown(path)}: is not a PT2 archive, or is cut short")

    def facts(self) -> list[ProgramFacts]:
        members = [n for n in self._names if n.startswith("models/") and n.endswith(".json")]
        entries = [name.removeprefix("models/").removesuffix(".json") for name in members]
        if not entries:
            raise SourceError(
                f"{shown(self._path)}: holds no exported program; write it with package_pt2"
            )
        for entry in entries:
            _check_method_name(self._path, entry)
        return [self._facts(entry) for entry in entries]

    def _facts(self, entry: str) -> ProgramFacts:
        serialized = json.loads(self._read(f"models/{entry}.json"))
        canonical = canonical_program(serialized)
        tensors = {kind: self._payloads(kind, entry) for kind in ("weights", "constants")}
        outline = asdict(outline_archive(serialized, tensors))
        return ProgramFacts(
            entry,
            digest.hash_json({"program": canonical.program, **tensors}),
            digest.hash_json(canonical.names),
            self._pickled("sample_inputs", entry),
            {**summarize_parts(canonical, tensors), "outline": outline},
        )

    def _pickled(self, kind: str, entry: str) -> Digest | None:
        """Return the digest of what an archive holds pickled; None if it does not."""
        name = f"data/{kind}/{entry}.pt"
        return digest.hash_bytes(self._read(name)) if name in self._names else None

    def _payloads(self, kind: str, entry: str) -> Any:
        if legacy := self._pickled(kind, entry):
            return legacy
        config = json.loads(self._read(f"data/{kind}/{entry}_{kind}_config.json"))["config"]
        files: dict[str, list[Any]] = {}
        for _, payload in sorted(config.items()):
            name = payload["path_name"]
            if name not in files:  # the position says which names share one file, that is, alias
                files[name] = [len(files), digest.hash_bytes(self._read(f"data/{kind}/{name}"))]
            payload["path_name"] = files[name]
        return config

    def _read(self, name: str) -> bytes:
        return self._zip.read(f"{self._root}/{name}")


def _check_method_name(path: Path, name: str) -> None:
    if not METHOD_NAME.fullmatch(name):
        raise SourceError(
            f"{shown(path)}: method name {name!r}; must be letters, digits and underscores, "
            "and not start with a digit"
        )
