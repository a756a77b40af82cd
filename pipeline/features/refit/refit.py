"""New weights in compiled units without lowering: when that is allowed, and how it is done.

A second key identifies a unit apart from the contents of its constants. The record stored under it
names the last result that was compiled that way, with the recipe learned from watching its
constants (`lesson.py`). The recipe must reproduce that result. If part of a compilation was not
seen, its recipe is used only once another compilation, with other weights, differs only in the
bytes of constants. After that, new weights are put into the result without torch, as long as no
value that Python read has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from pipeline.backends import BACKENDS
from pipeline.features.refit.expectations import expect_refits, read_own
from pipeline.features.refit.programs import (
    Json,
    Programs,
    find_programs,
    open_sources,
    structure_key,
)
from pipeline.features.refit.unit import (
    CannotRefitError,
    Put,
    Recipe,
    iter_named,
    keep_digest,
    refit,
)
from pipeline.plan.actions import Action
from pipeline.plan.kinds.compile import CompileInputs
from pipeline.run.stages import Stages
from pipeline.store.digest import Digest, hash_json, verified
from pipeline.store.entries import ActionEntry
from pipeline.store.errors import PipelineError
from pipeline.store.files import is_plain
from pipeline.store.folder import touch
from pipeline.store.store import MissingBlobError, Store
from pipeline.store.workspace import Workspace

REFIT = "refit"  # the stage
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

    It is done only if compiling is known to give the same result. With `here`, in the building
    process, a miss is not recorded, because a worker will find it too.
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
            record = store.get_by_key(structure_key(action, programs, store))
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
            expect_refits(action, store, False)
            missed = {"why": why, "misses": record.result["misses"] + 1}
            store.put_result(record.key, {**record.result, **missed}, peak=record.peak)
            return False
        if record.result["misses"]:
            store.put_result(
                record.key, {**record.result, "misses": 0}, peak=record.peak
            )
        expect_refits(action, store, True)
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
    return store.get_by_key(structure_key(action, programs, store))


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
        open_sources(action, workspace, programs) as sources,
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
        recorded = read_own(key, store).get("keys", {}) if is_large else {}

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
