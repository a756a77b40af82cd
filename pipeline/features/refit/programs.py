"""Finds the programs of a unit, the key of its record apart from weights, and their storages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pipeline.features.refit.archive_storages import ArchiveStorages, Storage
from pipeline.features.refit.unit import CannotRefitError
from pipeline.plan.actions import Action
from pipeline.plan.keys import program_key
from pipeline.plan.kinds.compile import CompileInputs
from pipeline.plan.kinds.parts import Key
from pipeline.program.archive_facts import Contents, Identity, identify_program
from pipeline.program.sources import MethodSource
from pipeline.run.build.planned import QUANTIZED_ENTRY, find_archive, guard_sources
from pipeline.store.digest import WrongContentError, hash_json
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import Workspace

Json = Mapping[str, Any]
Sources = Callable[[Json], Storage]
# By method: its archive, the name of its program there, and the digests that the program has.
Programs = Mapping[str, tuple[Path, str, Identity]]


def find_programs(action: Action[CompileInputs], store: Store) -> Programs:
    """Return the programs that the methods of a unit are compiled from.

    Raises the same errors as `find_archive`, and MissingBlobError.
    """
    programs: dict[str, tuple[Path, str, Identity]] = {}
    for name, source in action.inputs.sources.items():
        if name in action.inputs.quantizes:
            blob = _quantized(action, name, store)["program"]
            if not store.has(blob):
                raise MissingBlobError(f"the quantized program of {name} is missing")
            identity = identify_program(store.blob_path(blob), QUANTIZED_ENTRY)
            # Afterwards, so that the digests of its tensors are checked, too.
            programs[name] = store.verified_path(blob), QUANTIZED_ENTRY, identity
        else:
            programs[name] = _find_program(source, store)
    return programs


def _find_program(source: MethodSource, store: Store) -> tuple[Path, str, Identity]:
    """Return the program of a method that isn't quantized, without hashing its archive.

    The record of its contents is right if it gives the digest of the program, which covers them.
    The archive's tensors must therefore be checked when they are read.
    """
    path = source.archive
    if source.content and source.exported and store.has(source.content):
        path = store.blob_path(source.content)
    record = store.get_by_key(program_key(source.program))
    contents: Contents = record.result.get("contents", {}) if record else {}
    if contents and path.is_file():
        identity = identify_program(path, source.entry, contents)
        if identity[:2] == (source.program, source.names):
            return path, source.entry, identity
    path = find_archive(source, store)
    return path, source.entry, identify_program(path, source.entry)


def structure_key(
    action: Action[CompileInputs], programs: Programs, store: Store
) -> Key:
    """Return the key of a unit's record, which leaves out the contents of its constants.

    It is the key of the unit's compile action, with the programs replaced by their structures.
    """
    structures: dict[str, Json] = {}
    for name, (_, _, (_, names, structure, _)) in programs.items():
        if name in action.inputs.quantizes:
            result = _quantized(action, name, store)
            described = {
                "structure": structure,
                "names": names,
                "origins": result["origins"],
                "facts": result["facts"],  # reported in the manifest
            }
            structures[name] = {"quantized": hash_json(described)}
        else:
            structures[name] = {"structure": structure}
    methods = {}
    for name, fields in action.key["methods"].items():
        methods[name] = {**fields, "program": structures[name], "quantize": None}
    return {**action.key, "kind": "refit", "methods": methods}


def _quantized(action: Action[CompileInputs], method: str, store: Store) -> Json:
    entry = store.get(action.inputs.quantizes[method])
    if entry is None:
        raise MissingBlobError(f"the quantized program of {method} is not in the store")
    return entry.result


@contextmanager
def open_sources(
    action: Action[CompileInputs], workspace: Workspace, programs: Programs
) -> Iterator[Sources]:
    """Open the archives of a unit's programs.

    Yields a function that returns the storage of a source step. Raises MissingBlobError if a
    storage turned out to be damaged.
    """

    def find(step: Json) -> Storage:
        if step["method"] not in programs:
            raise CannotRefitError(
                f"its recipe belongs to another method, {step['method']}"
            )
        path, entry, (_, _, _, contents) = programs[step["method"]]
        try:
            return opened[path].find(entry, step["kind"], step["name"], contents)
        except ValueError as error:
            raise CannotRefitError(str(error)) from error

    own_files = [s for s in action.inputs.sources.values() if not s.exported]
    guard = guard_sources(
        own_files,
        workspace.store,
        workspace.file_digests,  # known from planning
    )
    with guard, ExitStack() as files:
        paths = {path for path, _, _ in programs.values()}
        opened = {
            path: files.enter_context(ArchiveStorages.open(path)) for path in paths
        }
        try:
            yield find
        except WrongContentError as error:
            raise MissingBlobError("an archive is damaged, or changed") from error
