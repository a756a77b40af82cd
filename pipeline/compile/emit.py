"""Emits lowered programs: ExecuTorch's `to_executorch`, as a config asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from executorch.exir import EdgeProgramManager, ExecutorchBackendConfig, ExecutorchProgramManager
from executorch.exir._serialize._named_data_store import NamedDataStore, NamedDataStoreOutput
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy, naive
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.exir.passes.sym_shape_eval_pass import (
    ConstraintBasedSymShapeEvalPass,
    HintBasedSymShapeEvalPass,
)
from executorch.exir.program._program import collect_named_data_store_from_exported_program
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.compile.control_flow import refuse_views_of_carries
from pipeline.config.models import EmitConfig

_ALGORITHMS = {"greedy": greedy, "naive": naive}
_SHAPES = {
    "constraint_based": ConstraintBasedSymShapeEvalPass,
    "hint_based": HintBasedSymShapeEvalPass,
}
_DEFAULT_FILE = "_default_external_constant"  # exir/passes/external_constants_pass.py


def emit(
    lowered: EdgeProgramManager,
    settings: EmitConfig | None = None,
    passes: Sequence[Callable[..., Any]] = (),
) -> ExecutorchProgramManager:
    """Plan memory and emit, by `to_executorch`, with the loaded passes of `settings`.

    Consumes `lowered`. Raises PipelineError if ExecuTorch would emit something else than it.
    """
    settings = settings or EmitConfig()
    programs = {name: lowered.exported_program(name) for name in lowered.methods}
    if settings.remove_view_copy:
        refuse_views_of_carries(programs)
    return lowered.to_executorch(make_emission_config(settings, passes, programs))


def make_emission_config(
    settings: EmitConfig,
    passes: Sequence[Callable[..., Any]],
    programs: Mapping[str, ExportedProgram],
) -> ExecutorchBackendConfig:
    """Make ExecuTorch's config from `settings`.

    Mutable buffers begin undefined on a device but for `initialized_buffers`, which are stored.
    """
    own: list[Any] = list(passes)
    if settings.initialized_buffers:
        own.append(InitializedMutableBufferPass(list(settings.initialized_buffers)))
    planning = settings.memory_planning
    return ExecutorchBackendConfig(
        passes=own,
        memory_planning_pass=MemoryPlanningPass(
            memory_planning_algo=MemoryPlanningAlgorithmSuite([_ALGORITHMS[planning.algorithm]]),
            **planning.model_dump(exclude={"algorithm"}),
        ),
        sym_shape_eval_pass=_SHAPES[settings.sym_shape_eval](),
        emit_stacktrace=settings.emit_stacktrace,
        remove_view_copy=settings.remove_view_copy,
        do_quant_fusion_and_const_prop=settings.do_quant_fusion_and_const_prop,
        run_reinplace_pass=settings.run_reinplace_pass,
        external_constants=_choose_files(settings, programs),
        **dict(settings.layout),
    )


def _choose_files(
    settings: EmitConfig, programs: Mapping[str, ExportedProgram]
) -> bool | Callable[[Node], str | None]:
    """Return the file of each constant: the first with a pattern of its name."""
    if not settings.external_files:
        return settings.external_constants
    names = {
        name: target
        for program in programs.values()
        for spec in program.graph_signature.input_specs
        if (name := getattr(spec.arg, "name", None)) and (target := spec.target)
    }
    rest = _DEFAULT_FILE if settings.external_constants else None

    def choose_file(node: Node) -> str | None:
        name = names.get(node.name, node.name)
        for file, patterns in settings.external_files.items():
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                return file
        return rest

    return choose_file


def collect_named_data(program: ExportedProgram) -> NamedDataStoreOutput:
    """Collect the named data of a lowered method's delegates, as `EdgeProgramManager` does."""
    store = NamedDataStore()
    collect_named_data_store_from_exported_program(program, store)
    return store.get_named_data_store_output()
