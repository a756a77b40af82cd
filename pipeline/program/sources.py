"""Find model sources in `models/`: the form of each, its methods, and each method's digest.

Nothing here imports torch. A PT2 archive is a zip whose directory lists the methods, and whose
members hold a method's graph as JSON and its weights as raw bytes (torch's
`torch/export/pt2_archive`), so even the digest of the *program* is computed without loading it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.program.archive_reader import (
    KINDS,
    ArchiveReader,
    check_method_name,
    open_archive,
    shown,
)
from pipeline.program.buffers import describe_buffers
from pipeline.program.canonical import Canonical, canonical_program, summarize_parts
from pipeline.program.module_paths import outline_archive
from pipeline.store import digest
from pipeline.store.digest import Digest
from pipeline.store.errors import SourceError
from pipeline.store.file_digests import read_stamp
from pipeline.store.files import stat_file

Form = Literal["archive", "folder", "exporter"]

_FORMS: dict[str, Form] = {".pt2": "archive", ".py": "exporter"}

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
    candidates: dict[str, list[ModelSource]] = {}
    wrong: dict[str, str] = {}
    try:
        if models.is_dir():
            paths = sorted(models.iterdir())
        else:
            paths = []
    except OSError as error:
        raise SourceError(f"{models.name}/: {unreadable(error)}") from error
    for path in paths:
        try:
            form = _form(path)
        except OSError as error:
            if path.suffix in (".pt2", ".py"):
                name = path.stem
            else:
                name = path.name
            wrong[name] = f"{shown(path)}: {unreadable(error)}"
            continue
        if form is not None:
            if form == "folder":
                model = path.name
            else:
                model = path.stem
            candidates.setdefault(model, []).append(ModelSource(model, form, path))
    sources = {}
    for model, candidates_of_model in candidates.items():
        if len(candidates_of_model) == 1:
            sources[model] = candidates_of_model[0]
        else:
            places = ", ".join(shown(source.path) for source in candidates_of_model)
            number = len(candidates_of_model)
            wrong[model] = f"model '{model}' has {number} sources: {places}; keep one"
    return sources, wrong


def unreadable(error: OSError) -> str:
    """Return the message for a file that the system refuses to read."""
    return f"cannot be read ({error.strerror or error})"


def _form(path: Path) -> Form | None:
    """Return the form of a model source; None if it isn't one. Raises OSError."""
    if path.name.startswith((".", "_")):
        return None
    form = _FORMS.get(path.suffix)
    if path.is_dir():
        if any(member.name.endswith(".pt2") for member in path.iterdir()):
            return "folder"
        if path.suffix != ".pt2":
            return None
    # A dangling link is reported where the source is read.
    if form and path.exists():
        stat_file(path)
    return form


@dataclass(frozen=True)
class MethodSource:
    """The place of a method's program, and the digest of the program (not of the file).

    Attributes:
        names: the digest of the names of its values and classes, which the program leaves out.
        content: the digest of the file.
        examples, calibration: digests of its input sets: of the pickled sample inputs inside an
            archive, or of a record in the store of what an exporter returned (`exported`).
        examples_of_export: whether the examples are just the arguments of the export.
        batches: the records of the calibration inputs, whose digest is that of this list.
        reference: the record of what PyTorch computed in eager mode, where the exporter says how
            to run it.
        renamed: numbers the buffers that other methods of an exporter have under another name;
            buffers of one number are one tensor of the model.
    """

    archive: Path
    entry: str
    program: Digest
    names: Digest | None = None
    content: Digest | None = None
    examples: Digest | None = None
    examples_of_export: bool = False
    calibration: Digest | None = None
    batches: tuple[Digest, ...] = ()
    exported: bool = False
    reference: Digest | None = None
    renamed: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class ProgramFacts:
    """The description of one entry of an archive.

    `parts` are short digests by which two programs can be compared: of its sub-modules, its tensors
    and so on. They are in no key. Its `outline` and its `buffers` are among them.
    """

    entry: str
    program: Digest
    names: Digest
    examples: Digest | None
    parts: Mapping[str, Any]


@dataclass(frozen=True)
class ProgramIdentity:
    """The digests of a program, of its names, and of its structure: of the program without the
    contents of its weights and constants, but with which of them share storage."""

    program: Digest
    names: Digest
    structure: Digest


# By archive and entry, with the stamp of the file from which this process read it.
_identities: dict[tuple[Path, str], tuple[Any, ProgramIdentity]] = {}


@dataclass(frozen=True)
class ArchiveFacts:
    """The digest of a file's bytes, and its entries in their order."""

    content: Digest
    programs: tuple[ProgramFacts, ...]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the entries, without their parts."""
        return [{**vars(facts), "parts": {}} for facts in self.programs]

    def find_parts(self, program: Digest) -> Mapping[str, Any] | None:
        """Return the parts of a program; None if the archive doesn't hold it."""
        for facts in self.programs:
            if facts.program == program:
                return facts.parts
        return None


def parse_archive(content: Digest, programs: Any) -> ArchiveFacts:
    """Return the facts whose entries `to_json` returned."""
    return ArchiveFacts(content, tuple(ProgramFacts(**record) for record in programs))


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
        archive_methods = _read_methods(path, describe)
        if len(archive_methods) != 1:
            names = ", ".join(archive_methods)
            raise SourceError(
                f"{shown(path)}: has {len(archive_methods)} methods ({names}); an archive in a "
                "model's folder has one, named after the file"
            )
        try:
            check_method_name(path.stem)
        except ValueError as error:
            raise SourceError(f"{shown(path)}: {error}") from error
        (methods[path.stem],) = archive_methods.values()
    return methods


def _read_methods(path: Path, describe: Describe) -> dict[str, MethodSource]:
    facts = describe(path)
    is_single = [program.entry for program in facts.programs] == [_SINGLE_NAME]
    methods = {}
    for program in facts.programs:
        if is_single:
            method = _SINGLE_METHOD
        else:
            method = program.entry
        methods[method] = MethodSource(
            path,
            program.entry,
            program.program,
            program.names,
            facts.content,
            program.examples,
            examples_of_export=program.examples is not None,
        )
    return methods


def describe_archive(
    path: Path,
    content: Digest | None = None,
    hash_file: Callable[[Path], Digest] = digest.hash_file,
) -> ArchiveFacts:
    """Describe the entries of a PT2 archive.

    The digest of a program is that of its canonical graph, its signature and ranges, and the bytes
    of every weight and constant.

    Args:
        content: the digest of the file's bytes, if the caller has it.
        hash_file: computes it, or remembers it by the file's stamp.

    Raises:
        SourceError: the file isn't such an archive, or changed while it was read.
    """
    try:
        stat_file(path)
        stamp = read_stamp(path)
        content = content or hash_file(path)
    except OSError as error:
        raise SourceError(f"{shown(path)}: {unreadable(error)}") from error
    with open_archive(path) as archive:
        entries = [_describe_entry(archive, entry) for entry in archive.entries()]
    # Hashed again after reading: the store would serve facts under the digest of another content
    # ever after.
    if hash_file(path) != content:
        raise SourceError(f"{shown(path)}: changed while it was read; run again")
    for facts, identity in entries:
        _identities[path, facts.entry] = stamp, identity
    return ArchiveFacts(content, tuple(facts for facts, _ in entries))


def identify_program(path: Path, entry: str) -> ProgramIdentity:
    """Return the digests of a program in an archive, those of `describe_archive` among them.

    A file that doesn't change is read once. Raises SourceError.
    """
    stamp = None
    if path.exists():
        stamp = read_stamp(path)
    stamp_when_read, identity = _identities.get((path, entry), (None, None))
    if identity is None or stamp != stamp_when_read:
        with open_archive(path) as archive:
            canonical = canonical_program(archive.program(entry))
            identity = _identify(
                canonical, _tensor_digests(archive, entry, checked=False)
            )
        _identities[path, entry] = stamp, identity
    return identity


def _describe_entry(
    archive: ArchiveReader, entry: str
) -> tuple[ProgramFacts, ProgramIdentity]:
    program = archive.program(entry)
    canonical = canonical_program(program)
    tensors = _tensor_digests(archive, entry)
    outline = asdict(outline_archive(program, tensors))
    parts = {
        **summarize_parts(canonical, tensors),
        "outline": outline,
        "buffers": describe_buffers(program),
    }
    examples = f"data/sample_inputs/{entry}.pt"
    inputs = None
    if archive.members.has(examples):
        inputs = archive.members.hash(examples)
    identity = _identify(canonical, tensors)
    return ProgramFacts(
        entry, identity.program, identity.names, inputs, parts
    ), identity


def _identify(
    canonical: Canonical, tensors: Mapping[str, Mapping[str, Any]]
) -> ProgramIdentity:
    # Only the first of the two parts of `path_name` is kept: which tensors share a member.
    places: dict[str, dict[str, Any]] = {}
    for kind, records in tensors.items():
        places[kind] = {
            name: {**record, "path_name": record["path_name"][0]}
            for name, record in records.items()
        }
    return ProgramIdentity(
        _digest_program(canonical, tensors),
        digest.hash_json(canonical.names),
        _digest_program(canonical, places),
    )


def _digest_program(canonical: Canonical, tensors: Mapping[str, Any]) -> Digest:
    return digest.hash_json({"program": canonical.program, **tensors})


def _tensor_digests(
    archive: ArchiveReader, entry: str, checked: bool = True
) -> dict[str, dict[str, Any]]:
    """Return the records of all tensors, with the digests of their bytes, and their tags."""
    tensors = {kind: _payload_digests(archive, kind, entry, checked) for kind in KINDS}
    for name, tag in archive.tags(entry).items():
        for records in tensors.values():
            if name in records:
                records[name]["tag"] = tag
    return tensors


def _payload_digests(
    archive: ArchiveReader, kind: str, entry: str, checked: bool
) -> dict[str, Any]:
    """Return the record of each tensor, with the digest of its member in the place of its name."""
    records = archive.payloads(kind, entry)
    members: dict[str, list[Any]] = {}
    for _, record in sorted(records.items()):
        name = record["path_name"]
        if name not in members:
            content = archive.members.hash(f"data/{kind}/{name}", checked)
            # The position says which tensors share a member, that is, alias each other.
            members[name] = [len(members), content]
        record["path_name"] = members[name]
    return records
