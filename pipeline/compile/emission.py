"""Emits lowered programs with `to_executorch`, given ExecuTorch's config.

Knows no package config: `emit.py` turns one into ExecuTorch's config.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
)
from executorch.exir._serialize._named_data_store import (
    NamedDataStore,
    NamedDataStoreOutput,
)
from executorch.exir.program._program import (
    collect_named_data_store_from_exported_program,
)
from torch.export import ExportedProgram

from pipeline.moments import within_all

MakeConfig: TypeAlias = Callable[
    [Mapping[str, ExportedProgram]], ExecutorchBackendConfig
]


def emit_lowered(
    lowered: EdgeProgramManager, make_config: MakeConfig
) -> ExecutorchProgramManager:
    """Plan memory and emit with `to_executorch`. Consumes `lowered`.

    Args:
        make_config: returns the config, given the lowered programs by method.

    Raises PipelineError for control flow that ExecuTorch can't emit.
    """
    programs = {name: lowered.exported_program(name) for name in lowered.methods}
    config = make_config(programs)
    with within_all("explain_emission", programs, config):
        return lowered.to_executorch(config)


def collect_named_data(program: ExportedProgram) -> NamedDataStoreOutput:
    """Collect the named data of a lowered method's delegates, as `EdgeProgramManager` does."""
    store = NamedDataStore()
    collect_named_data_store_from_exported_program(program, store)
    return store.get_named_data_store_output()
