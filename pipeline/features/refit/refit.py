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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
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
    hash_again,
    refit,
)
from pipeline.plan.actions import Action
from pipeline.plan.kinds.compile import CompileInputs
from pipeline.plan.kinds.parts import Key
from pipeline.program.archive_facts import identify_program
from pipeline.run.build.listening import CompileListener, UnloweredMethod
from pipeline.run.build.planned import QUANTIZED_ENTRY, guard_sources, identify_source
from pipeline.run.stages import Stages
from pipeline.store.digest import Digest, hash_json
from pipeline.store.entries import ActionEntry
from pipeline.store.errors import PipelineError
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:
    from pipeline.features.refit.watch import Watch

Json = Mapping[str, Any]
Sources = Callable[[Json], Storage]
REFIT = "refit"  # the stage
_MOST_MISSES = 3
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
            record = find_record(action, store)
        if record is None or not record.result["proven"]:
            return False
        with stages.stage(REFIT):
            try:
                result = make_refit(action, record, workspace, store.put_pieces)
            except CannotRefitError as reason:
                why = str(reason)
        if result is None and here:
            return False
        if result is None:
            _log.warning("%s is compiled, since %s", action.title, why)
            missed = {"why": why, "misses": record.result["misses"] + 1}
            store.put_result(record.key, {**record.result, **missed}, peak=record.peak)
            return False
        if record.result["misses"]:
            store.put_result(
                record.key, {**record.result, "misses": 0}, peak=record.peak
            )
        # Let the next action reserve memory as if it had to be compiled.
        store.put_result(
            action.key, result, stages.total, stages.seconds(), record.peak
        )
        return True
    return False


def find_record(action: Action[CompileInputs], store: Store) -> ActionEntry | None:
    """Return the record of a unit apart from its weights, if it was compiled before.

    Raises the same errors as `identify_source`, and MissingBlobError.
    """
    return store.get_by_key(_structure_key(action, store))


def make_refit(
    action: Action[CompileInputs],
    found: ActionEntry,
    workspace: Workspace,
    put: Put,
) -> dict[str, Any]:
    """Return the result of a unit with the weights of its sources, from a proven record.

    Raises CannotRefitError, which says why, and MissingBlobError.
    """
    store = workspace.store
    base = store.get(found.result["base"])
    if base is None:
        raise CannotRefitError(
            "the object that its recipe belongs to is no longer in the store"
        )
    recipe = Recipe(**found.result["recipe"])
    with _open_sources(action, workspace) as sources:
        return refit(recipe, base.result, sources, store.read, put)


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
            make_refit(action, record, workspace, hash_again)
        except CannotRefitError as reason:
            return f"is lowered, since {reason}"
        return "only weights changed: they are replaced without lowering"
    return ""


def _structure_key(action: Action[CompileInputs], store: Store) -> Key:
    """Return the key of a unit's record, which leaves out the contents of its constants.

    It is the key of the unit's compile action, with the programs replaced by their structures.
    """
    structures: dict[str, Json] = {}
    for name, source in action.inputs.sources.items():
        if name in action.inputs.quantizes:
            result = _quantized(action, name, store)
            archive = store.verified_path(result["program"], once=True)
            _, names, structure = identify_program(archive, QUANTIZED_ENTRY)
            described = {
                "structure": structure,
                "names": names,
                "origins": result["origins"],
                "facts": result["facts"],  # reported in the manifest
            }
            structures[name] = {"quantized": hash_json(described)}
        else:
            _, structure = identify_source(source, store)
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
    action: Action[CompileInputs], workspace: Workspace
) -> Iterator[Sources]:
    """Open the archives of a unit's methods.

    Yields a function that returns the storage of a source step.
    """
    store = workspace.store
    places: dict[str, tuple[Path, str]] = {}
    for name, source in action.inputs.sources.items():
        if name in action.inputs.quantizes:
            blob = _quantized(action, name, store)["program"]
            places[name] = store.verified_path(blob), QUANTIZED_ENTRY
        else:
            places[name] = identify_source(source, store)[0], source.entry

    def find(step: Json) -> Storage:
        if step["method"] not in places:
            raise CannotRefitError(
                f"its recipe belongs to another method, {step['method']}"
            )
        path, entry = places[step["method"]]
        try:
            return opened[path].find(entry, step["kind"], step["name"])
        except ValueError as error:
            raise CannotRefitError(str(error)) from error

    guard = guard_sources(
        list(action.inputs.sources.values()),
        store,
        workspace.file_digests,  # known from planning
    )
    with guard, ExitStack() as files:
        paths = {path for path, _ in places.values()}
        opened = {
            path: files.enter_context(ArchiveStorages.open(path)) for path in paths
        }
        yield find


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
        key: Key,
        found: ActionEntry | None,
        watch: Watch,
    ) -> None:
        self.action = action
        self.workspace = workspace
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
        key = _structure_key(action, workspace.store)
        record = workspace.store.get_by_key(key)
        if record is not None and record.result["misses"] >= _MOST_MISSES:
            return None  # it misses each time; without a lesson, the store's partitions are used
        from pipeline.features.refit.watch import Watch

        return cls(action, workspace, key, record, Watch())

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

    def _prove(self, result: Json) -> Recipe:
        """Return the recipe of a result.

        Raises CannotRefitError if the recipe doesn't reproduce this result. If part of the
        compilation was not seen, it is also raised if there was no compilation with other weights,
        or if that result differs from this one in more than weights.
        """
        watch = self.watch
        store = self.workspace.store
        with _open_sources(self.action, self.workspace) as sources:
            described = {
                digest: [view.to_json() if view else None for view in views]
                for digest, views in watch.described.items()
            }
            recipe = make_recipe(
                watch.steps, watch.guards, watch.stored, described, result, sources
            )
            repeated = refit(recipe, result, sources, store.read, hash_again)
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
