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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline import digest
from pipeline.digest import Digest, FileDigests
from pipeline.errors import SourceError

Form = Literal["archive", "folder", "exporter"]

METHOD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What torch.export.save, which knows one method only, calls it, and what ExecuTorch calls it.
_SINGLE_NAME, _SINGLE_METHOD = "model", "forward"

# Node metadata that no lowering reads, and that holds object ids, paths of the machine and line
# numbers. The rest (nn_module_stack, source_fn_stack, torch_fn) is read by partitioners and
# quantizers, for instance through get_source_partitions, and so belongs to the program.
VOLATILE_METADATA = frozenset({"from_node", "stack_trace"})


@dataclass(frozen=True)
class ModelSource:
    """One model: `<model>.pt2`, a folder of `<method>.pt2`, or an exporter `<model>.py`."""

    model: str
    form: Form
    path: Path


def find_sources(models: Path) -> tuple[dict[str, ModelSource], dict[str, str]]:
    """The model sources of a folder by name, and by name what is wrong with the others."""
    found: dict[str, list[ModelSource]] = {}
    for path in sorted(models.iterdir()) if models.is_dir() else []:
        form = _form(path)
        if form is not None:
            model = path.name if form == "folder" else path.stem
            found.setdefault(model, []).append(ModelSource(model, form, path))
    sources = {model: forms[0] for model, forms in found.items() if len(forms) == 1}
    ambiguous = {
        model: f"model '{model}' has {len(forms)} sources: "
        + ", ".join(f"{source.path.parent.name}/{source.path.name}" for source in forms)
        + "; keep one"
        for model, forms in found.items()
        if len(forms) > 1
    }
    return sources, ambiguous


def _form(path: Path) -> Form | None:
    if path.name.startswith((".", "_")):
        return None
    if path.is_dir():
        return "folder" if any(path.glob("*.pt2")) else None
    return {".pt2": "archive", ".py": "exporter"}.get(path.suffix)  # type: ignore[return-value]


@dataclass(frozen=True)
class MethodSource:
    """Where a method's program stands, and the digest of the program (not of the file).

    `examples` and `calibration` are digests of its input sets: of the pickled sample inputs inside
    an archive, or of a record in the store for what an exporter gave (`exported`).
    """

    archive: Path
    entry: str
    program: Digest
    examples: Digest | None = None
    calibration: Digest | None = None
    exported: bool = False


def method_sources(source: ModelSource, digests: FileDigests) -> dict[str, MethodSource]:
    """The methods of an archive or a folder. Raises SourceError."""
    if source.form == "archive":
        return archive_methods(source.path, digests)
    methods: dict[str, MethodSource] = {}
    for path in sorted(source.path.glob("*.pt2")):
        inside = archive_methods(path, digests)
        if len(inside) != 1:
            raise SourceError(
                f"{shown(path)}: has {len(inside)} methods ({', '.join(inside)}); an archive in a "
                "model's folder has one, named after the file"
            )
        _check_method_name(path, path.stem)
        methods[path.stem] = next(iter(inside.values()))
    return methods


def archive_methods(path: Path, digests: FileDigests) -> dict[str, MethodSource]:
    """The methods of one PT2 archive, in the order of the file. Raises SourceError."""
    programs = digests.derived(path, "programs", program_digests)
    single = [entry for entry, _, _ in programs] == [_SINGLE_NAME]
    return {
        _SINGLE_METHOD if single else entry: MethodSource(path, entry, program, examples)
        for entry, program, examples in programs
    }


def program_digests(path: Path) -> list[tuple[str, Digest, Digest | None]]:
    """For each entry, in the order of the file: its name, the digest of its program, and that of
    its sample inputs. The program is the graph, the signature, the ranges and the bytes of every
    weight and constant, without `VOLATILE_METADATA`. Raises SourceError."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _Archive(path, archive).digests()
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SourceError(f"{shown(path)}: is not a readable PT2 archive ({error})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(
            f"{shown(path)}: is a zip file, but not a PT2 archive ({error!r})"
        ) from error


def shown(path: Path) -> str:
    """How messages call an archive: `models/<file>`."""
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
        self._root = roots.pop() if roots else ""
        self._names = set(names)
        # A truncated archive can look like a whole one: the sample inputs inside it are zips.
        if f"{self._root}/archive_format" not in self._names:
            raise SourceError(f"{shown(path)}: is not a PT2 archive, or is cut short")

    def digests(self) -> list[tuple[str, Digest, Digest | None]]:
        start, end = f"{self._root}/models/", ".json"
        entries = [
            name[len(start) : -len(end)]
            for name in self._zip.namelist()
            if name.startswith(start) and name.endswith(end)
        ]
        if not entries:
            raise SourceError(
                f"{shown(self._path)}: holds no exported program; write it with package_pt2"
            )
        for entry in entries:
            _check_method_name(self._path, entry)
        return [(entry, self._program(entry), self._examples(entry)) for entry in entries]

    def _examples(self, entry: str) -> Digest | None:
        name = f"data/sample_inputs/{entry}.pt"
        present = f"{self._root}/{name}" in self._names
        return digest.of_bytes(self._read(name)) if present else None

    def _program(self, entry: str) -> Digest:
        program = json.loads(self._read(f"models/{entry}.json"))
        program.pop("torch_version", None)
        graph = program["graph_module"]["graph"]
        _drop_volatile_metadata(graph)
        payloads = {kind: self._payloads(kind, entry) for kind in ("weights", "constants")}
        return digest.of_json({"program": program, **payloads})

    def _payloads(self, kind: str, entry: str) -> Any:
        legacy = f"data/{kind}/{entry}.pt"
        if f"{self._root}/{legacy}" in self._names:
            return digest.of_bytes(self._read(legacy))
        config = json.loads(self._read(f"data/{kind}/{entry}_{kind}_config.json"))["config"]
        files: dict[str, list[Any]] = {}
        for _, payload in sorted(config.items()):
            name = payload["path_name"]
            if name not in files:  # the position says which names share one file, that is, alias
                content = digest.of_bytes(self._read(f"data/{kind}/{name}"))
                files[name] = [len(files), content]
            payload["path_name"] = files[name]
        return config

    def _read(self, name: str) -> bytes:
        return self._zip.read(f"{self._root}/{name}")


def _drop_volatile_metadata(graph: Any) -> None:
    """Removes it from a serialized graph and the graphs of its control flow, in place."""
    stack = [graph]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, dict):
            if "metadata" in value and "target" in value and isinstance(value["metadata"], dict):
                for name in VOLATILE_METADATA:
                    value["metadata"].pop(name, None)
            stack.extend(value.values())


def _check_method_name(path: Path, name: str) -> None:
    if not METHOD_NAME.fullmatch(name):
        raise SourceError(
            f"{shown(path)}: method name {name!r}; must be letters, digits and underscores, "
            "and not start with a digit"
        )
