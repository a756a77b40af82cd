"""New weights in compiled units without lowering: when that is allowed, and how it is learned.

A second key identifies a unit apart from the contents of its constants. The record stored under it
names the last result that was compiled that way, with the recipe learned from watching its
constants (`watch.py`). The recipe must reproduce that result. If part of a compilation was not
seen, its recipe is used only once another compilation, with other weights, differs only in the
bytes of constants. After that, new weights are put into the result without torch, as long as no
value that Python read has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.backends import BACKENDS
from pipeline.features.refit.archive_storages import ArchiveStorages, Storage
from pipeline.features.refit.learn import check_alike, find_gap, make_recipe
from pipeline.features.refit.unit import (
    CannotRefitError,
    Put,
    Recipe,
    check_keys,
    iter_named,
    keep_digest,
    refit,
)
from pipeline.plan.actions import Action
from pipeline.plan.export_parameters import parse_export
from pipeline.plan.keys import program_key
from pipeline.plan.kinds.compile import CompileInputs
from pipeline.plan.kinds.parts import Key
from pipeline.program.archive_facts import Contents, Identity, identify_program
from pipeline.program.sources import MethodSource
from pipeline.run.build.listening import CompileListener, UnloweredMethod
from pipeline.run.build.planned import QUANTIZED_ENTRY, find_archive, guard_sources
from pipeline.run.stages import Stages
from pipeline.store.digest import Digest, WrongContentError, hash_json, verified
from pipeline.store.entries import ActionEntry
from pipeline.store.errors import PipelineError
from pipeline.store.files import is_plain
from pipeline.store.folder import touch
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:
    from pipeline.features.refit.watch import Watch

Json = Mapping[str, Any]
Sources = Callable[[Json], Storage]
# By method: its archive, the name of its program there, and the digests that the program has.
Programs = Mapping[str, tuple[Path, str, Identity]]
REFIT = "refit"  # the stage
_MOST_MISSES = 3
_LARGE = 1 << 26  # bytes of a unit's named data
_log = logging.getLogger(__name__)


def why_never(action: Action[CompileInputs]) -> str:
    """Return why a unit is compiled whenever its weights change, or "" if it needn't be."""
    inputs = action.inputs
    if inputs.emit.holds_lines:
        return "its bytes contain source lines (emit.emit_stacktrace or emit.etrecord)"
    if action.key.get("passes"):
        return "it has passes of the config, which may depend on values"
    if action.libraries:
        return "it has libraries of operators, which may depend on values"
    for name in sorted(
        {s.name for config in inputs.configs.values() for s in config.partitioners}
    ):
        if name not in BACKENDS or not BACKENDS[name].preprocessing.weights_apart:
            return f"payloads of {name} contain weights in an unknown format"
    quantizers = {
        config.quantize.quantizer
        for config in inputs.configs.values()
        if config.quantize
    }
    for name in sorted(quantizers):
        if name in BACKENDS and BACKENDS[name].plugin:
            return f"the quantizer {name} comes from a plugin"
    return ""


def refit_unit(
    action: Action[CompileInputs],
    workspace: Workspace,
    stages: Stages,
    here: bool = False,
) -> bool:
    """Put new weights into a compiled unit and record the result; return whether that was done.

    It is done only if compiling is known to give the same result. Torch is imported only for a step
    that torch alone can repeat. With `here`, in the building process, a miss is not recorded,
    because a worker will find it too.
    """
    store = workspace.store
    if why_never(action):
        return False
    with suppress(MissingBlobError, PipelineError), store.lock(action.digest):
        if store.get(action.digest) is not None:
            return False  # made in the meantime
        result, why = None, ""
        with stages.stage("load"):
            programs = find_programs(action, store)
            record = store.get_by_key(_structure_key(action, programs, store))
        if record is None or not record.result["proven"]:
            return False
        with stages.stage(REFIT):
            try:
                result = make_refit(action, record, workspace, programs=programs)
            except CannotRefitError as reason:
                why = str(reason)
        if result is None and here:
            return False
        if result is None:
            _log.warning("%s is compiled, since %s", action.title, why)
            _expect_refits(action, store, False)
            missed = {"why": why, "misses": record.result["misses"] + 1}
            store.put_result(record.key, {**record.result, **missed}, peak=record.peak)
            return False
        if record.result["misses"]:
            store.put_result(
                record.key, {**record.result, "misses": 0}, peak=record.peak
            )
        _expect_refits(action, store, True)
        # Let the next action reserve memory as if it had to be compiled.
        store.put_result(
            action.key, result, stages.total, stages.seconds(), record.peak
        )
        return True
    return False


def find_record(action: Action[CompileInputs], store: Store) -> ActionEntry | None:
    """Return the record of a unit apart from its weights, if it was compiled before.

    Raises the same errors as `find_programs`.
    """
    programs = find_programs(action, store)
    return store.get_by_key(_structure_key(action, programs, store))


def make_refit(
    action: Action[CompileInputs],
    found: ActionEntry,
    workspace: Workspace,
    put: Put | None = None,
    programs: Programs | None = None,
) -> dict[str, Any]:
    """Return the result of a unit with the weights of its sources, from a proven record.

    Args:
        put: `keep_digest` to store no blobs.
        programs: those of `find_programs`, if they are known.

    Raises CannotRefitError, which says why, and MissingBlobError.
    """
    store = workspace.store
    programs = programs or find_programs(action, store)
    base = store.get(found.result["base"])
    if base is None:
        raise CannotRefitError(
            "the object that its recipe belongs to is no longer in the store"
        )
    recipe = Recipe(**found.result["recipe"])
    with (
        _remembering_keys(action, base.result, store) as (known_keys, put_new),
        _open_sources(action, workspace, programs) as sources,
    ):
        return refit(
            recipe, base.result, sources, store.read, put or put_new, known_keys
        )


@contextmanager
def _remembering_keys(
    action: Action[CompileInputs], base: Json, store: Store
) -> Iterator[tuple[dict[Digest, str], Put]]:
    """Keep the keys of named data for other units of the same archives, which may share weights.

    Units with large weights take turns, so that a weight that they share is read once; for small
    weights that isn't worth waiting.

    Yields the keys by blob, to which new ones may be added, and a function that stores blobs. It
    leaves the blobs with known keys alone: another unit has just stored them, and each reader
    checks them.
    """
    size = sum(entry["blob"]["size"] for entry in iter_named(base["object"]))
    contents = sorted({str(s.content) for s in action.inputs.sources.values()})
    key = {"kind": "named-keys", "archives": contents}
    is_large = size >= _LARGE
    with store.lock(hash_json(key)) if is_large else nullcontext():
        recorded = _read_own(key, store).get("keys", {}) if is_large else {}

        def put(blob: Digest, pieces: Callable[[], Iterable[memoryview]]) -> Digest:
            path = store.blob_path(blob)
            if blob in recorded and is_plain(path):
                touch(path)
                return blob
            return store.put_pieces(blob, lambda: verified(pieces(), blob))

        known_keys = dict(recorded)
        yield known_keys, put
        if is_large and known_keys != recorded:
            store.put_result(key, {"keys": known_keys}, pushes=False)


def _read_own(key: Key, store: Store) -> Json:
    """Return the result stored here under a key, without asking the remote, or {}."""
    action = hash_json(key)
    entry = store.read_entry(store.action_path(action), action)
    return entry.result if entry else {}


def expects_refit(export: Action[Any], workspace: Workspace) -> bool:
    """Return whether the exports of a model are probably refitted, so that torch isn't needed."""
    model, _ = parse_export(export.model)
    expected: bool = _read_own(_model_key(model), workspace.store).get("refits", False)
    return workspace.refit and expected


def _expect_refits(action: Action[CompileInputs], store: Store, expected: bool) -> None:
    """Record whether new weights of a unit's model are probably refitted."""
    key = _model_key(action.model)
    record = {"refits": expected}
    if _read_own(key, store) != record:
        store.put_result(key, record, pushes=False)


def _model_key(model: str) -> Key:
    return {"kind": "refit-model", "model": model}


def explain_refit(action: Action[CompileInputs], workspace: Workspace) -> str:
    """Return whether a stale unit needs no lowering, or why it does, in words.

    It is "" if the unit was never compiled with other weights.
    """
    store = workspace.store
    with suppress(MissingBlobError, PipelineError):
        record = None if why_never(action) else find_record(action, store)
        if record is None:
            return (
                why_never(action)
                and f"new weights require lowering: {why_never(action)}"
            )
        if not record.result["proven"]:
            why = record.result["why"] or "it is the first change of only weights"
            return f"is lowered, to learn how its weights are stored: {why}"
        try:
            make_refit(action, record, workspace, keep_digest)
        except CannotRefitError as reason:
            return f"is lowered, since {reason}"
        return "only weights changed: they are replaced without lowering"
    return ""


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


def _structure_key(
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
def _open_sources(
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


def begin_lesson(action: Action[CompileInputs], workspace: Workspace) -> Lesson | None:
    """Return the `Lesson` for a unit that is about to be compiled, or None."""
    return Lesson.begin(action, workspace) if workspace.refit else None


class Lesson(CompileListener):
    """Learns how a unit's weights are stored, from one compilation.

    Attributes:
        found: the record of a compilation with other weights; None before the first.
        watch: the watch of this compilation.
    """

    def __init__(
        self,
        action: Action[CompileInputs],
        workspace: Workspace,
        programs: Programs,
        key: Key,
        found: ActionEntry | None,
        watch: Watch,
    ) -> None:
        self.action = action
        self.workspace = workspace
        self.programs = programs
        self.key = key
        self.found = found
        self.watch = watch

    @classmethod
    def begin(
        cls, action: Action[CompileInputs], workspace: Workspace
    ) -> Lesson | None:
        """Return the lesson for a unit that is about to be compiled, or None."""
        if why_never(action):
            return None
        programs = find_programs(action, workspace.store)
        key = _structure_key(action, programs, workspace.store)
        record = workspace.store.get_by_key(key)
        if record is not None and record.result["misses"] >= _MOST_MISSES:
            return None  # it misses each time; without a lesson, the store's partitions are used
        from pipeline.features.refit.watch import Watch

        return cls(action, workspace, programs, key, record, Watch())

    @property
    def earlier(self) -> Digest | None:
        """The action of a compilation with other weights, or None."""
        if self.found is None or self.found.result["base"] == self.action.digest:
            return None
        return Digest(self.found.result["base"])

    @property
    def forgoes_cache(self) -> bool:
        # At first, a partition in the store is worth more than a lesson about it.
        return self.earlier is not None

    def add_sources(self, methods: Mapping[str, UnloweredMethod]) -> None:
        """Register the constants of methods, as they are in their archives, with the watch."""
        for method, loaded in methods.items():
            program = loaded.program
            kinds = {"weights": program.state_dict, "constants": program.constants}
            for kind, tensors in kinds.items():
                for name, tensor in tensors.items():
                    self.watch.add_source(tensor, method, kind, name)

    @contextmanager
    def listening(self) -> Iterator[None]:
        from pipeline.features.refit.hooks import watched

        with watched(self.watch):
            yield

    def end(self, result: Json, peak: int) -> None:
        """Record what was learned."""
        before: Json = self.found.result if self.found else {"why": "", "misses": 0}
        record: dict[str, Any] = {
            "base": self.action.digest,
            "proven": False,
            "why": "",
            "misses": before["misses"],
            "recipe": None,
        }
        try:
            recipe = self._prove(result)
            record |= {
                "proven": True,
                "recipe": vars(recipe),
                "why": before["why"],
            }
        except CannotRefitError as reason:
            if self.found is not None and self.earlier is None:
                return  # what was learned from the same weights still holds
            record["why"] = str(reason)
            if self.found is not None:
                _log.warning(
                    "%s: its recipe is not kept, since %s", self.action.title, reason
                )
        self.workspace.store.put_result(self.key, record, peak=peak)
        _expect_refits(self.action, self.workspace.store, record["proven"])

    def _prove(self, result: Json) -> Recipe:
        """Return the recipe of a result.

        Raises CannotRefitError if the recipe doesn't reproduce this result. If part of the
        compilation was not seen, it is also raised if there was no compilation with other weights,
        or if that result differs from this one in more than weights.
        """
        watch = self.watch
        store = self.workspace.store
        with _open_sources(self.action, self.workspace, self.programs) as sources:
            described = {
                digest: [view.to_json() if view else None for view in views]
                for digest, views in watch.described.items()
            }
            recipe = make_recipe(
                watch.steps, watch.guards, watch.stored, described, result, sources
            )
            repeated = refit(recipe, result, sources, store.read, keep_digest)
            check_keys(recipe, result["object"], store.read)
            if repeated != result:
                raise CannotRefitError(
                    "repeating the recorded steps gives a different object"
                )
        gap = find_gap(watch.gaps, watch.stored, watch.described, result)
        if gap and self.earlier is None:
            raise CannotRefitError(gap)
        if gap and self.earlier is not None:
            before = store.get(self.earlier)
            if before is None:
                raise CannotRefitError(
                    "the object compiled before is no longer in the store"
                )
            check_alike(before.result, result, recipe, store.read)
        return recipe
