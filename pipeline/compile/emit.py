"""Emits lowered programs, turning `emit` in a package config into ExecuTorch's config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
)
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy, naive
from executorch.exir.passes import MemoryPlanningPass, ToOutVarPass
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.exir.passes.sym_shape_eval_pass import (
    ConstraintBasedSymShapeEvalPass,
    HintBasedSymShapeEvalPass,
)
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.backends.options import edge_operators
from pipeline.compile.emission import emit_lowered
from pipeline.compile.inspect.constants import constant_name
from pipeline.config.emission import EmitConfig, MemoryPlan, MethodEmit, PropagateDevice
from pipeline.config.patterns import fits_name, fits_weight
from pipeline.program.constant_tags import get_tag, iter_constants, set_tag

_ALGORITHMS = {
    "greedy": greedy,
    "greedy_without_overlap": partial(greedy, allow_overlapping_allocations=False),
    "naive": naive,
}
_SHAPES = {
    "constraint_based": ConstraintBasedSymShapeEvalPass,
    "hint_based": HintBasedSymShapeEvalPass,
}
# Options that have the same names in ExecuTorch's config.
_SAME = (
    "emit_stacktrace",
    "remove_view_copy",
    "do_quant_fusion_and_const_prop",
    "run_reinplace_pass",
    "enable_non_cpu_memory_planning",
    "emit_mutable_buffer_names",
    "external_mutable_weights",
)
_DEFAULT_FILE = "_default_external_constant"  # exir/passes/external_constants_pass.py


def emit(
    lowered: EdgeProgramManager,
    settings: EmitConfig | None = None,
    passes: Sequence[Callable[..., Any]] = (),
    methods: Mapping[str, MethodEmit] = MappingProxyType({}),
    algorithms: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> ExecutorchProgramManager:
    """Plan memory and emit with `to_executorch`. Consumes `lowered`.

    Args:
        passes: the loaded passes of `settings`.
        methods: the settings of single methods.
        algorithms: the loaded algorithms for memory planning, keyed by their references.

    Raises PipelineError as `emit_lowered` does.
    """

    def make_config(programs: Mapping[str, ExportedProgram]) -> ExecutorchBackendConfig:
        return make_emission_config(
            settings or EmitConfig(), passes, programs, methods, algorithms
        )

    return emit_lowered(lowered, make_config)


def make_emission_config(
    settings: EmitConfig,
    passes: Sequence[Callable[..., Any]],
    programs: Mapping[str, ExportedProgram],
    methods: Mapping[str, MethodEmit] = MappingProxyType({}),
    algorithms: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> ExecutorchBackendConfig:
    """Make ExecuTorch's config from `settings`.

    On a device, mutable buffers start undefined, except for `initialized_buffers`, whose initial
    values are stored.
    """
    list_of_passes: list[Any] = list(passes)
    if settings.initialized_buffers:
        list_of_passes.append(
            InitializedMutableBufferPass(list(settings.initialized_buffers))
        )
    method_settings = {name: methods.get(name, MethodEmit()) for name in programs}
    # One object for all methods: it keeps the mutable buffers that they share.
    planning = _make_planning(settings.memory_planning, algorithms)
    return ExecutorchBackendConfig(
        passes=list_of_passes,
        memory_planning_pass=_by_method(
            planning,
            {n: method.memory_planning for n, method in method_settings.items()},
            lambda plan: _make_planning(plan, algorithms),
        ),
        sym_shape_eval_pass=_by_method(
            _SHAPES[settings.sym_shape_eval](),
            {n: method.sym_shape_eval for n, method in method_settings.items()},
            lambda name: _SHAPES[name](),
        ),
        propagate_device_config=_by_method(
            _make_device_config(settings.propagate_device),
            {n: method.propagate_device for n, method in method_settings.items()},
            _make_device_config,
        ),
        to_out_var_pass=ToOutVarPass(settings.ignore_to_out_var_failure),
        reinplace_extra_ops=_find_operators(settings.reinplace_extra_ops),
        external_constants=_choose_files(settings, programs),
        **{name: getattr(settings, name) for name in _SAME},
        **dict(settings.layout),
    )


def _by_method(
    common: Any, by_method: Mapping[str, Any], make: Callable[[Any], Any]
) -> Any:
    """Return the common setting or, if any method overrides it, the setting of each method."""
    if all(setting is None for setting in by_method.values()):
        return common
    return {
        name: common if setting is None else make(setting)
        for name, setting in by_method.items()
    }


def _make_planning(
    settings: MemoryPlan, algorithms: Mapping[str, Callable[..., Any]]
) -> MemoryPlanningPass:
    chosen = [_ALGORITHMS.get(name) or algorithms[name] for name in settings.algorithm]
    options = settings.model_dump(exclude={"algorithm"})
    return MemoryPlanningPass(
        memory_planning_algo=MemoryPlanningAlgorithmSuite(chosen), **options
    )


def _make_device_config(settings: PropagateDevice) -> PropagateDeviceConfig:
    return PropagateDeviceConfig(**settings.model_dump())


def _find_operators(names: Sequence[str] | None) -> frozenset[Any] | None:
    if names:
        return frozenset(edge_operators(names, "reinplace_extra_ops"))
    return None


def _choose_files(
    settings: EmitConfig, programs: Mapping[str, ExportedProgram]
) -> bool | Callable[[Node], str | None]:
    """Return ExecuTorch's `external_constants`: a bool, or a function that finds a node's file.

    A constant goes to the file that it is tagged with or, without `external_weights`, to the first
    file that has a pattern for its name.
    """
    if settings.external_weights:
        return get_tag
    if not settings.external_files:
        return settings.external_constants
    names = {}
    for program in programs.values():
        for spec in program.graph_signature.input_specs:
            if (name := getattr(spec.arg, "name", None)) and (target := spec.target):
                names[name] = target
    default_file = _DEFAULT_FILE if settings.external_constants else None

    def choose_file(node: Node) -> str | None:
        name = names.get(node.name, node.name)
        for file, patterns in settings.external_files.items():
            if any(fits_name(name, pattern) for pattern in patterns):
                return file
        return default_file

    return choose_file


def tag_weights(programs: Mapping[str, ExportedProgram], settings: EmitConfig) -> None:
    """Tag the constants that go to `.ptd` files, so that delegates put theirs there.

    The first pattern that matches a constant's name, or a module around it, determines the file.
    Constants that tracing made from literals stay, as in ExecuTorch: they are closer to code.
    """
    for program in programs.values() if settings.external_weights else ():
        for target, node in iter_constants(program):
            name = constant_name(target, node)
            for file, patterns in settings.external_weights.items():
                fits = any(fits_weight(name, pattern) for pattern in patterns)
                if fits and "lifted_tensor" not in node.name:
                    set_tag(node, file)
                    break
