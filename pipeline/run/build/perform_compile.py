"""Performs compile actions: loads their inputs, compiles them, and commits the result.

Linking and the manifest read that result from the store.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.compile.preprocess.cache import keyed_preprocess
from pipeline.compile.ranges import kernel_guards
from pipeline.moments import call_all
from pipeline.plan.actions import Action
from pipeline.plan.kinds.compile import CompileInputs
from pipeline.plan.user_code import check_code, open_code
from pipeline.program.graphs import NodePlaces, forget_lines, map_places
from pipeline.run.build.compile import compile_unit
from pipeline.run.build.compile_requests import make_request
from pipeline.run.build.listening import CompileListener, Json, UnloweredMethod
from pipeline.run.build.load import guard_files, load_method, load_quantized
from pipeline.run.build.method_facts import MethodFacts
from pipeline.run.build.planned import guard_sources
from pipeline.run.stages import Stages
from pipeline.store.compiled import COMPILED_METHOD
from pipeline.store.digest import canonical_json
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace

_log = logging.getLogger(__name__)
# The signature of `Store.put_result`.
Keep = Callable[[Json, Json, float, Mapping[str, float], int], object]


def perform_compile(
    action: Action[CompileInputs],
    workspace: Workspace,
    stages: Stages,
    always: bool = False,
    keep: Keep | None = None,
) -> None:
    """Compile the methods of one action and record the result (`store.results`).

    Args:
        always: preprocess every partition, even if the store has its payload.
        keep: called in place of the store's `put_result`.

    Raises:
        SourceError: a program can't be read, or isn't the one that was planned.
    """
    store = workspace.store
    with guard_sources(list(action.inputs.sources.values()), store):
        listeners: list[CompileListener] = []
        if keep is None and not always:
            listeners += filter(None, call_all("listen_to_compile", action, workspace))
        forgoes_cache = always or any(listener.forgoes_cache for listener in listeners)
        cache = None if forgoes_cache else store
        result = _compile(action, workspace, stages, cache, listeners)
    with stages.stage("store"):
        put = keep or store.put_result
        put(action.key, result, stages.total, stages.seconds(), stages.peak)
    for listener in listeners:
        with stages.stage("learn"):
            listener.end(json.loads(canonical_json(result)), stages.peak)


def _compile(
    action: Action[CompileInputs],
    workspace: Workspace,
    stages: Stages,
    cache: Store | None,
    learners: Sequence[CompileListener],
) -> dict[str, Any]:
    """Compile the methods of an action and return the result (`store.results`).

    `cache` holds preprocessing results; with None, every partition is preprocessed.
    """
    inputs, store, root = action.inputs, workspace.store, workspace.root
    own_facts = MethodFacts(inputs.configs, _library_inputs(action.key, workspace))
    listeners = [own_facts, *call_all("compile_facts"), *learners]
    with stages.stage("load"):
        methods = {name: _load(inputs, name, store) for name in inputs.sources}
        programs = {name: method.program for name, method in methods.items()}
        for name, program in programs.items():
            if action.key["methods"][name]["names"] and not inputs.emit.holds_lines:
                # The key excludes line numbers, but third-party code might read them.
                forget_lines(program)
        for listener in listeners:
            listener.add_sources(methods)
    loaded = {
        n: action.key[n] for n in ("operators", "operator_inputs") if n in action.key
    }
    config = next(iter(inputs.configs.values()))
    keeps_ranges = config.edge.keep_ranges  # the unit's methods agree
    with keyed_preprocess(loaded), kernel_guards(keeps_ranges):
        with guard_files(action, inputs.configs, root):
            with stages.stage("lower"):
                request = make_request(
                    programs, inputs.configs, inputs.emit, root, inputs.delegates_beside
                )
            own_facts.partitioners = request.partitioners
            manager, linkable, facts = compile_unit(
                request, store, cache, stages, listeners
            )
        check_code("passes", action.key.get("passes", {}), workspace)
    with stages.stage("store"):
        entries: dict[str, Json] = {}
        for blobs in call_all("after_emit", manager, inputs, programs, store):
            entries.update(blobs)
    digests = {entry["digest"] for entry in entries.values()}
    digests |= {blob.digest for blob in linkable.blobs()}
    return {
        "object": linkable.to_json(),
        "methods": {name: _part_facts(fields) for name, fields in facts.items()},
        "etrecord": entries,
        "blobs": sorted(digests),
    }


def _part_facts(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Split facts into the fields of `COMPILED_METHOD` and, below `facts`, those of features."""
    names = {name.removesuffix("?") for name in COMPILED_METHOD}
    method: dict[str, Any] = {}
    features: dict[str, Any] = {}
    for name, value in fields.items():
        (method if name in names else features)[name] = value
    return {**method, "facts": features} if features else method


def _library_inputs(key: Json, workspace: Workspace) -> dict[str, Json]:
    """Return the inputs, as in the key, of each operator library; a pass's module can be one."""
    passes = {}
    if planned := key.get("passes"):
        code = open_code("passes", workspace)
        for reference, inputs in planned.items():
            passes[code.library_name(reference)] = inputs
    return {**passes, **key.get("operator_inputs", {})}


def _load(inputs: CompileInputs, name: str, store: Store) -> UnloweredMethod:
    """Load a method: its quantized program if it is quantized, else the program of its source."""
    if name not in inputs.quantizes:
        program = load_method(inputs.sources[name], store)
        return UnloweredMethod(program, NodePlaces(program))
    program, origins, facts, _ = load_quantized(inputs.quantizes[name], name, store)
    if not inputs.configs[name].partitioners:
        for warning in filter(None, call_all("warn_of_quantization", facts, None)):
            _log.warning("%s: %s", name, warning)
            facts = {**facts, "warnings": [*facts["warnings"], warning]}
    places = NodePlaces(program, origins)
    return UnloweredMethod(program, places, map_places(program, origins), facts)
