"""Turns the configs of a unit's methods into partitioners, passes and ExecuTorch's configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from executorch.exir import ExecutorchBackendConfig
from torch.export import ExportedProgram

from pipeline.backends import edge_operators, make_passes
from pipeline.compile.edge_config import adapt_edge_config, make_edge_config
from pipeline.compile.emit import make_emission_config, tag_weights
from pipeline.compile.module_filter import make_filtered_partitioners
from pipeline.config.edge import PassSpec
from pipeline.config.emission import EmitConfig
from pipeline.config.models import MethodConfig
from pipeline.moments import call_all
from pipeline.run.build.compile import CompileRequest, Pass


def make_request(
    programs: Mapping[str, ExportedProgram],
    configs: Mapping[str, MethodConfig],
    emission: EmitConfig,
    root: Path,
    delegates_beside: bool = False,
) -> CompileRequest:
    """Make the request to compile the methods of one unit as their configs demand.

    Tags the constants of `programs` for their emission, and runs user code to make passes. Raises
    PipelineError.
    """
    tag_weights(programs, emission)
    backends = [
        spec.backend for config in configs.values() for spec in config.partitioners
    ]
    edge = adapt_edge_config(next(iter(configs.values())).edge, backends)
    partitioners = {}
    passes = {}
    passes_after = {}
    for name, config in configs.items():
        specs = config.located(root)
        partitioners[name] = make_filtered_partitioners(specs, config.modules)
        passes[name] = [*_load_passes(config.edge.passes, root), *make_passes(specs)]
        passes_after[name] = _load_passes(config.edge.passes_after_delegation, root)
    return CompileRequest(
        programs,
        partitioners,
        make_edge_config(edge, edge_operators(backends)),
        passes,
        passes_after,
        delegates_beside,
        emission.etrecord,
        emission.memory_planning.share_mutable_buffers,
        partial(_make_emission, emission, configs, root),
    )


def _make_emission(
    settings: EmitConfig,
    configs: Mapping[str, MethodConfig],
    root: Path,
    programs: Mapping[str, ExportedProgram],
) -> ExecutorchBackendConfig:
    """Make ExecuTorch's emission config for lowered programs, including the user's passes."""
    methods = {name: config.emit for name, config in configs.items()}
    plans = [
        settings.memory_planning,
        *(method.memory_planning for method in methods.values()),
    ]
    references = list(
        dict.fromkeys(name for plan in plans if plan for name in plan.references)
    )
    specs = [PassSpec(reference=name) for name in references]
    algorithms = dict(zip(references, _load_passes(specs, root), strict=True))
    passes = _load_passes(settings.passes, root)
    return make_emission_config(settings, passes, programs, methods, algorithms)


def _load_passes(specs: Sequence[PassSpec], root: Path) -> list[Pass]:
    """Load the passes of a config. Raises PipelineError."""
    passes: list[Pass] = []
    if specs:  # afterwards, loading scans all imported modules
        for loaded in call_all("load_passes", specs, root):
            passes += loaded
    return passes
