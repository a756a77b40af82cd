"""Compile: one method, or one joint group, from its programs to an object in the store, and the
result, which linking and the manifest take from there."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from executorch.exir import EdgeProgramManager, ExecutorchProgramManager
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from torch.export import ExportedProgram

from pipeline.backends import edge_operators, make_passes
from pipeline.compile.control_flow import count_float_operators
from pipeline.compile.emit import collect_named_data, emit, tag_weights
from pipeline.compile.emit_trace import Emission, record_emission
from pipeline.compile.held_state import refuse_held_state
from pipeline.compile.inspect.constants import describe_constants
from pipeline.compile.inspect.delegation import describe_delegation, find_debug_handles
from pipeline.compile.inspect.uptake import measure_kernels
from pipeline.compile.large_sizes import explain_large_sizes
from pipeline.compile.lower import adapt_edge_config, lower
from pipeline.compile.lowering_warnings import find_lost_conds, find_training_mode
from pipeline.compile.module_filter import FilteredPartitioner, make_filtered_partitioners
from pipeline.compile.objects import make_object
from pipeline.compile.preprocess.cache import keyed_preprocess
from pipeline.compile.preprocess.spill import spilled_constants
from pipeline.compile.quantization_warnings import (
    describe_undelegated,
    describe_unused_quantization,
)
from pipeline.compile.ranges import InputSizes, RangeRecorder, record_ranges
from pipeline.compile.steps import timed_steps
from pipeline.config.edge import PassSpec
from pipeline.config.emission import EmitConfig
from pipeline.config.models import MethodConfig
from pipeline.config.passes import library_name, load_passes
from pipeline.moments import call_all
from pipeline.plan.actions import Action
from pipeline.plan.kinds.compile import CompileInputs
from pipeline.plan.pass_inputs import PassInputs
from pipeline.program.graphs import NodePlaces, forget_lines, iter_nodes, map_places
from pipeline.program.kept_state import keep_state, keep_state_in, kept_state
from pipeline.program.method_spec import MethodSpec, make_method_spec
from pipeline.program.signature import find_changed_inputs
from pipeline.run.build.called_operators import describe_libraries
from pipeline.run.build.listening import CompileListener
from pipeline.run.build.load import guard_files, load_method, load_quantized
from pipeline.run.build.planned import guard_sources
from pipeline.run.stages import Stages
from pipeline.store.compiled import LoweringWarning, Uptake
from pipeline.store.digest import canonical_json
from pipeline.store.errors import SourceError, listed
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace

Json = Mapping[str, Any]
_log = logging.getLogger(__name__)
Keep = Callable[[Json, Json, float, Mapping[str, float], int], object]  # as `Store.put_result`


class EmittedUnit(NamedTuple):
    """A unit that was just emitted, of these programs by method; `store` takes blobs of it."""

    manager: ExecutorchProgramManager
    inputs: CompileInputs
    programs: Mapping[str, ExportedProgram]
    store: Store


@dataclass(frozen=True)
class _Method:
    """A method before it is lowered; `left_float` and `quantization` as in `CompiledMethod`, and
    `origins` leads from places in a quantized program to those in its source."""

    program: ExportedProgram
    places: NodePlaces
    spec: MethodSpec
    left_float: int = 0
    quantization: Json | None = None
    origins: Mapping[int, int] | None = None


def compile_unit(
    action: Action[CompileInputs],
    workspace: Workspace,
    stages: Stages,
    always: bool = False,
    keep: Keep | None = None,
) -> None:
    """Compile the methods of one action and record the result, a `CompiledUnit`.

    `always` preprocesses every partition, whatever the store holds; `keep` is called instead of the
    store's `put_result`. Raises SourceError for a program that can't be read, or is not the one
    that was planned.
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
    listeners: Sequence[CompileListener],
) -> dict[str, Any]:
    """Compile the methods of an action; `cache` has results of preprocessing. Return a
    `CompiledUnit`."""
    inputs, store, root = action.inputs, workspace.store, workspace.root
    with stages.stage("load"):
        methods = {name: _load(inputs, name, store) for name in inputs.sources}
    programs = {name: method.program for name, method in methods.items()}
    for name, program in programs.items():
        if action.key["methods"][name]["names"] and not inputs.emit.holds_lines:
            forget_lines(program)  # the key doesn't hold them, and code that we don't know may look
    loaded = {n: action.key[n] for n in ("operators", "operator_inputs") if n in action.key}
    keep_ranges = _keeps_ranges(inputs.configs)
    for listener in listeners:
        listener.add_sources(programs)
    with (
        keyed_preprocess(loaded),
        record_ranges(programs, keep=keep_ranges) as ranges,
        _listened_to(listeners),
        explain_large_sizes(programs),
    ):
        emitted, named, described = _emit(action, methods, ranges, cache, root, stages)
        _check_passes(action.key.get("passes", {}), workspace)
    with stages.stage("store"), explain_large_sizes(programs):
        linkable = make_object(emitted, store, named if len(named) > 1 else {})
        entries: dict[str, Json] = {}
        for blobs in call_all("after_emit", EmittedUnit(emitted, inputs, programs, store)):
            entries.update(blobs)
    digests = {entry["digest"] for entry in entries.values()}
    digests |= {blob.digest for blob in linkable.blobs()}
    return {
        "object": linkable.to_json(),
        "methods": described,
        "etrecord": entries,
        "blobs": sorted(digests),
    }


@contextmanager
def _listened_to(listeners: Sequence[CompileListener]) -> Iterator[None]:
    with ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listener.listening())
        yield


def _keeps_ranges(configs: Mapping[str, MethodConfig]) -> bool:
    return next(iter(configs.values())).edge.keep_ranges  # those of a unit agree


def _emit(
    action: Action[CompileInputs],
    methods: Mapping[str, _Method],
    ranges: RangeRecorder,
    store: Store | None,
    root: Path,
    stages: Stages,
) -> tuple[ExecutorchProgramManager, dict[str, NamedDataStoreOutput], dict[str, dict[str, Any]]]:
    """Lower and emit a unit; return what was emitted, and of each method its named data and what
    is known of it."""
    inputs = action.inputs
    programs = {name: method.program for name, method in methods.items()}
    partitioners: dict[str, list[FilteredPartitioner]] = {}
    with stages.stage("lower"), guard_files(action, inputs.configs, root):
        delegates_beside = inputs.delegates_beside
        with timed_steps(stages.step):
            lowered = lower_methods(
                programs, inputs.configs, root, store, inputs.emit, delegates_beside, partitioners
            )
    if inputs.emit.memory_planning.share_mutable_buffers:
        refuse_held_state({name: lowered.exported_program(name) for name in methods})
    with stages.stage("describe"):
        described = {
            name: _describe(
                method, lowered.exported_program(name), inputs.configs[name], partitioners[name]
            )
            for name, method in methods.items()
        }
        named = {name: collect_named_data(lowered.exported_program(name)) for name in methods}
        sizes = {name: InputSizes(lowered.exported_program(name)) for name in methods}
    with stages.stage("emit"), spilled_constants(store):
        emitted, emission = emit_methods(lowered, inputs.emit, inputs.configs, root)
        plans = {plan.name: plan for plan in emitted.executorch_program.execution_plan}
        libraries = _library_inputs(action.key, root)
        for name, method in methods.items():
            nodes = [] if name in inputs.quantizes else list(iter_nodes(method.program))
            narrowed = ranges.find_narrowed(name, sizes[name], method.places, nodes)
            instructions = emission.instructions(name, method.program)
            lost = find_lost_conds(plans[name], instructions, method.program, method.origins)
            described[name] |= {
                "instructions": asdict(instructions),
                "warnings": [*described[name]["warnings"], *lost],
                "narrowed": narrowed,
                "operators": describe_libraries(plans[name], libraries),
            }
    return emitted, named, described


def _library_inputs(key: Json, root: Path) -> dict[str, Json]:
    """Return the inputs in the key of each library of operators; a pass's module can be one."""
    passes = {library_name(each, root): inputs for each, inputs in key.get("passes", {}).items()}
    return {**passes, **key.get("operator_inputs", {})}


def _load(inputs: CompileInputs, name: str, store: Store) -> _Method:
    """Load a method, the quantized one where it is quantized."""
    if name not in inputs.quantizes:
        program = load_method(inputs.sources[name], store)
        return _Method(program, NodePlaces(program), make_method_spec(program))
    program, origins, facts, _ = load_quantized(inputs.quantizes[name], name, store)
    if not inputs.configs[name].partitioners and (warning := describe_undelegated(facts)):
        _log.warning("%s: %s", name, warning)
        facts = {**facts, "warnings": [*facts["warnings"], warning]}
    spec = make_method_spec(program, reexported=True)
    places = NodePlaces(program, origins)
    left_float = count_float_operators(program)
    return _Method(program, places, spec, left_float, facts, map_places(program, origins))


def lower_methods(
    programs: Mapping[str, ExportedProgram],
    configs: Mapping[str, MethodConfig],
    root: Path,
    store: Store | None,
    emission: EmitConfig,
    delegates: bool = False,
    partitioners: dict[str, list[FilteredPartitioner]] | None = None,
) -> EdgeProgramManager:
    """Lower the methods of one unit as their configs ask, with results of preprocessing from and
    for the store. Tags the constants of `programs` for their emission.

    Args:
        delegates: as `lower` takes it.
        partitioners: is filled in by method with those that it was lowered by.
    """
    tag_weights(programs, emission)
    backends = [spec.backend for config in configs.values() for spec in config.partitioners]
    partitioners = {} if partitioners is None else partitioners
    for name, config in configs.items():
        partitioners[name] = make_filtered_partitioners(config.located(root), config.modules)
    return lower(
        programs,
        partitioners,
        store=store,
        edge=adapt_edge_config(next(iter(configs.values())).edge, backends),
        edge_operators=edge_operators(backends),
        passes={
            name: [*_load_passes(config.edge.passes, root), *make_passes(config.located(root))]
            for name, config in configs.items()
        },
        passes_after={
            name: _load_passes(config.edge.passes_after_delegation, root)
            for name, config in configs.items()
        },
        delegates=delegates,
        etrecord=emission.etrecord,
    )


def _describe(
    method: _Method,
    lowered: ExportedProgram,
    config: MethodConfig,
    partitioners: Sequence[FilteredPartitioner],
) -> dict[str, Any]:
    """Describe a lowered method by the fields of a `CompiledMethod` that are known before it is
    emitted."""
    backends = [spec.backend for spec in config.partitioners]
    in_python = {b.backend_id for b in backends if b.execution.make_runtime}
    spec = replace(method.spec, changes=tuple(find_changed_inputs(lowered)))
    warnings = find_training_mode(method.program, method.origins)
    for partitioner in partitioners:
        warnings += map(_warn_of_method, partitioner.warnings)
    delegation = describe_delegation(lowered, config.partitioners, method.places)
    delegation["partitioners"] = _describe_uptake(config, partitioners, delegation)
    if method.quantization and (what := describe_unused_quantization(delegation)):
        warnings.append(_warn_of_method(what))
    return {
        "delegation": delegation,
        "signature": spec.to_json(),
        "debug_handles": find_debug_handles(lowered, method.places, in_python),
        "left_float": method.left_float,
        "quantization": method.quantization,
        "constants": describe_constants(method.program, lowered),
        "listed": [name for partitioner in partitioners for name in partitioner.listed],
        "warnings": warnings,
    }


def _warn_of_method(what: str) -> LoweringWarning:
    return LoweringWarning(what=what, operator="", module="", place=None)


def _describe_uptake(
    config: MethodConfig,
    partitioners: Sequence[FilteredPartitioner],
    delegation: dict[str, Any],
) -> list[Uptake]:
    """Return what each partitioner of a method was offered and took, in the config's order."""
    measured = iter(partitioners)
    uptakes = []
    for spec in config.partitioners:
        if spec.backend.lowering.make_passes is not None:
            uptakes.append(measure_kernels(spec, delegation))
        elif (uptake := next(measured).uptake) is not None:
            uptakes.append(uptake)
    return uptakes


def emit_methods(
    lowered: EdgeProgramManager,
    settings: EmitConfig,
    configs: Mapping[str, MethodConfig],
    root: Path,
) -> tuple[ExecutorchProgramManager, Emission]:
    """Emit lowered methods, which this consumes, and record what becomes of their nodes."""
    methods = {name: config.emit for name, config in configs.items()}
    plans = [settings.memory_planning, *(method.memory_planning for method in methods.values())]
    references = list(dict.fromkeys(name for plan in plans if plan for name in plan.references))
    specs = [PassSpec(reference=name) for name in references]
    algorithms = dict(zip(references, _load_passes(specs, root), strict=True))
    with record_emission() as emission:
        passes = _load_passes(settings.passes, root)
        return emit(lowered, settings, passes, methods, algorithms), emission


def _load_passes(specs: Sequence[PassSpec], root: Path) -> list[Callable[..., Any]]:
    """Load passes that keep torch's defaults, and this process, as they were."""
    names = [f"pass {spec.reference}" for spec in specs]
    with kept_state(listed(names)) if specs else nullcontext():
        return load_passes(specs, root, _keeping_state)


def _keeping_state(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    if isinstance(function, partial | FunctionType | MethodType):
        return keep_state(function, name)
    return keep_state_in(function, ("__call__",), name)


def _check_passes(planned: Mapping[str, Any], workspace: Workspace) -> None:
    now = PassInputs(replace(workspace))  # without what it has cached
    for reference, inputs in planned.items():
        if now.find(reference) != inputs:
            raise SourceError(f"pass {reference}: changed while the build ran; run again")
