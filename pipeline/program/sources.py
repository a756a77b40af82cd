"""Finds model sources in `models/`: the form of each, and its methods.

Nothing here imports torch. A PT2 archive is a zip file whose directory lists the methods, and whose
members hold a method's graph as JSON and its weights as raw bytes (see torch's
`torch/export/pt2_archive`). So even the digest of the *program* is computed without loading the
program (`archive_facts.describe_archive`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pipeline.store.digest import Digest
from pipeline.store.errors import SourceError
from pipeline.store.files import stat_file
from pipeline.store.names import check_method_name

Form = Literal["archive", "folder", "exporter"]

_FORMS: dict[str, Form] = {".pt2": "archive", ".py": "exporter", ".yaml": "exporter"}
# The suffixes of files that can't be a model's source, and why.
_PICKLED = (
    "has the suffix of a checkpoint or TorchScript; exported programs end in .pt2"
)
_OTHER_FORMS = {
    ".onnx": "is ONNX, which is not supported",
    ".pt": _PICKLED,
    ".pth": _PICKLED,
}

# The name of the single method that torch.export.save writes, and ExecuTorch's name for it.
_SINGLE_NAME, _SINGLE_METHOD = "model", "forward"
_BLOB = r"[0-9a-f]{64}"


class ModelSource(NamedTuple):
    """The source of one model.

    This is `<model>.pt2`, a folder of `<method>.pt2`, or an exporter: `<model>.py`, or
    `<model>.yaml`, which a feature exports.
    """

    model: str
    form: Form
    path: Path

    @property
    def archives(self) -> list[Path]:
        """The archives of a source that is not an exporter, in order."""
        if self.form == "archive":
            return [self.path]
        return sorted(self.path.glob("*.pt2"))


def find_sources(models: Path) -> tuple[dict[str, ModelSource], dict[str, str]]:
    """Return the model sources of a folder by name, and the errors of invalid ones by name.

    Raises SourceError if the folder can't be read.
    """
    candidates: dict[str, list[ModelSource]] = {}
    wrong: dict[str, str] = {}
    try:
        paths = sorted(models.iterdir()) if models.is_dir() else []
    except OSError as error:
        raise SourceError(f"{models.name}/: {unreadable(error)}") from error
    for path in paths:
        try:
            form = _form(path)
        except OSError as error:
            name = path.stem if path.suffix in _FORMS else path.name
            wrong[name] = f"{shown(path)}: {unreadable(error)}"
            continue
        # Next to an exporter of the same name, a `.yaml` file isn't a source. It sorts last, so the
        # exporter is already among the candidates.
        if form is not None and (path.suffix != ".yaml" or path.stem not in candidates):
            model = path.name if form == "folder" else path.stem
            candidates.setdefault(model, []).append(ModelSource(model, form, path))
        elif path.suffix in _OTHER_FORMS:
            remedy = f"write {shown(path.with_suffix('.py'))}, which exports its module"
            wrong[path.stem] = f"{shown(path)}: {_OTHER_FORMS[path.suffix]}; {remedy}"
    sources = {}
    for model, candidates_of_model in candidates.items():
        if len(candidates_of_model) == 1:
            sources[model] = candidates_of_model[0]
        else:
            places = ", ".join(shown(source.path) for source in candidates_of_model)
            number = len(candidates_of_model)
            wrong[model] = f"model '{model}' has {number} sources: {places}; keep one"
    return sources, wrong


def shown(path: Path) -> str:
    """Return the name of an archive for messages: `models/<file>`, or a phrase if it is a blob."""
    if re.fullmatch(_BLOB, path.parent.name + path.name):
        return "the exported program"
    return f"{path.parent.name}/{path.name}"


def unreadable(error: OSError) -> str:
    """Return the message for a file that the system refuses to read."""
    return f"cannot be read ({error.strerror or error})"


def _form(path: Path) -> Form | None:
    """Return the form of a model source, or None if it isn't one.

    Raises OSError if the path can't be read.
    """
    if path.name.startswith((".", "_")):
        return None
    form = _FORMS.get(path.suffix)
    if path.is_dir():
        if any(member.name.endswith(".pt2") for member in path.iterdir()):
            return "folder"
        if path.suffix != ".pt2":
            return None
    # A dangling link is reported later, when the source is read.
    if form and path.exists():
        stat_file(path)
    return form


class MethodSource(NamedTuple):
    """The location of a method's program, and the digest of the program (not of the file).

    Attributes:
        names: the digest of the names of values and classes, which the program's digest leaves out.
        content: the digest of the file.
        examples, calibration: the digests of the method's input sets: of the pickled sample inputs
            inside an archive or, if `exported`, of a record in the store of the exporter's result.
        examples_of_export: whether the examples are only the arguments of the export.
        batches: the records of the calibration inputs; `calibration` is the digest of this list.
        reference: the record of the results that PyTorch computed in eager mode, if the exporter
            says how to run the model.
        renamed: the name and number of each buffer that another method of the exporter has under
            another name; buffers with the same number share memory in the model.
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


class ProgramFacts(NamedTuple):
    """The description of one entry of an archive.

    `parts` holds short digests of the program's sub-modules, tensors and so on, to find where two
    programs differ, and also its `outline` and `buffers`. No key contains the parts.
    """

    entry: str
    program: Digest
    names: Digest
    examples: Digest | None
    parts: Mapping[str, Any]


class ArchiveFacts(NamedTuple):
    """The digest of an archive's bytes, and the descriptions of its entries in order."""

    content: Digest
    programs: tuple[ProgramFacts, ...]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the entries as JSON, without their parts."""
        return [{**facts._asdict(), "parts": {}} for facts in self.programs]

    def find_parts(self, program: Digest) -> Mapping[str, Any] | None:
        """Return the parts of a program, or None if the archive doesn't hold the program."""
        for facts in self.programs:
            if facts.program == program:
                return facts.parts
        return None


def parse_archive(content: Digest, programs: Any) -> ArchiveFacts:
    """Return the archive facts whose entries `ArchiveFacts.to_json` returned."""
    return ArchiveFacts(content, tuple(ProgramFacts(**record) for record in programs))


Describe = Callable[[Path], ArchiveFacts]


def method_sources(source: ModelSource, describe: Describe) -> dict[str, MethodSource]:
    """Return the methods of an archive or a folder of archives.

    Args:
        describe: returns the facts of an archive.

    Raises:
        SourceError: an archive in a folder doesn't have exactly one method, or its file's name
            isn't a valid method name.
    """
    if source.form == "archive":
        return _read_methods(source.path, describe)
    methods: dict[str, MethodSource] = {}
    for path in source.archives:
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
        method = _SINGLE_METHOD if is_single else program.entry
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
