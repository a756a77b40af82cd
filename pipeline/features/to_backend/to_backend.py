"""`to_backend`: lowers an edge program to delegates, through the store.

It calls ExecuTorch's function of this name (exir/backend/backend_api.py).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any, TypeAlias

from executorch.exir.backend import backend_api
from executorch.exir.backend.backend_api import MethodProgramsPartitionerSpec
from executorch.exir.backend.backend_details import PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram

from pipeline.compile.preprocess.cache import cached_preprocess, preprocess_programs
from pipeline.compile.shared_constants import retry_with_separate_constants
from pipeline.features.to_backend.registration import preprocess_function
from pipeline.features.to_backend.to_backend_multiple import (
    Modules,
    filter_partitioners,
    refuse_unknown_methods,
    to_backend_multiple,
)
from pipeline.features.to_backend.whole_modules import WholeModulePartitioner
from pipeline.store.store import Store

Specs: TypeAlias = Sequence[CompileSpec]


@singledispatch
def to_backend(first: Any, *args: Any, **kwargs: Any) -> Any:
    """Lower to a backend on this package's own compile path, with its registry and cache.

    The registry holds preprocess functions; the cache is a store of their results. The type of the
    first argument selects one of these forms:

    - `to_backend(backend_id, edge_program, compile_specs)` hands a whole program to one backend and
      returns a `LoweredBackendModule`. With `modules_to_lower`, it lowers only those sub-modules,
      each to its own delegate, and returns the program around them.
    - `to_backend(backend_id, edge_programs, compile_specs)` takes a mapping of method names to
      programs and one of method names to compile specs. It lowers the methods in `compile_specs`,
      each with its own specs, and returns a `LoweredBackendModule` by method. A backend that sees
      all methods at once is called once.
    - `to_backend(edge_program, partitioner)` returns the program with the nodes that the
      partitioner chose delegated.
    - `to_backend(MethodProgramsPartitionerSpec(edge_programs, partitioners))` is
      `to_backend_multiple`.

    Every form takes `store`, where results of preprocessing are looked up and kept. Programs are in
    edge dialect, and are not modified.

    Raises:
        TypeError: an argument is of another type.
        UnknownBackendError: there is no preprocess function for the backend; a
            `NotImplementedError`.
        KeyError: compile specs are given for a method that doesn't exist.
        PipelineError: `modules_to_lower` names an unknown module, or an ambiguous call.
        AssertionError: a partitioner changed the graph.
    """
    raise TypeError(
        "to_backend takes a backend's name, an ExportedProgram or a MethodProgramsPartitionerSpec "
        f"first, not {type(first).__name__}"
    )


@to_backend.register
def _(
    backend_id: str,
    edge_program: ExportedProgram | Mapping[str, ExportedProgram],
    compile_specs: Specs | Mapping[str, Specs],
    *,
    modules_to_lower: Modules | None = None,
    store: Store | None = None,
) -> LoweredBackendModule | ExportedProgram | dict[str, LoweredBackendModule]:
    if isinstance(edge_program, Mapping):
        if modules_to_lower is not None:
            raise TypeError("modules_to_lower requires a single program")
        return _whole_methods(backend_id, edge_program, compile_specs, store)
    if not isinstance(edge_program, ExportedProgram):
        raise TypeError(
            f"{backend_id}: must be given an ExportedProgram, or a mapping of method names to "
            f"them, not {type(edge_program).__name__}"
        )
    specs = _specs(compile_specs, "compile_specs")
    preprocess_function(backend_id)
    if modules_to_lower is not None:
        partitioner = WholeModulePartitioner(backend_id, specs, modules_to_lower)
        return _lower_one(edge_program, partitioner, modules_to_lower, store)
    with cached_preprocess(store):
        return backend_api.to_backend(backend_id, edge_program, specs)


@to_backend.register
def _(
    edge_program: ExportedProgram,
    partitioner_instance: Partitioner,
    *,
    modules_to_lower: Modules | None = None,
    store: Store | None = None,
) -> ExportedProgram:
    if not isinstance(partitioner_instance, Partitioner):
        raise TypeError(
            f"must be given a Partitioner, not {type(partitioner_instance).__name__}"
        )
    return _lower_one(edge_program, partitioner_instance, modules_to_lower, store)


@to_backend.register
def _(
    programs: MethodProgramsPartitionerSpec,
    *,
    modules_to_lower: Modules | Mapping[str, Modules] | None = None,
    n_jobs: int = 1,
    store: Store | None = None,
) -> dict[str, ExportedProgram]:
    return to_backend_multiple(
        programs.method_to_edge_program,
        programs.method_to_partitioner,
        modules_to_lower=modules_to_lower,
        n_jobs=n_jobs,
        store=store,
    )


def _lower_one(
    program: ExportedProgram,
    partitioner: Partitioner,
    modules: Modules | None,
    store: Store | None,
) -> ExportedProgram:
    """Lower with one partitioner, partition by partition, as ExecuTorch's function does."""
    if modules is not None:
        filtered = filter_partitioners({"": program}, {"": (partitioner,)}, modules)
        ((partitioner,),) = filtered.values()
    with cached_preprocess(store):
        return retry_with_separate_constants(
            {"": program},
            lambda separated: backend_api.to_backend(separated[""], partitioner),
        )


def _whole_methods(
    backend_id: str,
    programs: Mapping[str, ExportedProgram],
    compile_specs: Specs | Mapping[str, Specs],
    store: Store | None,
) -> dict[str, LoweredBackendModule]:
    if not isinstance(compile_specs, Mapping):
        raise TypeError(
            f"{backend_id}: compile_specs of several methods must be a mapping of method names, "
            f"not {type(compile_specs).__name__}"
        )
    refuse_unknown_methods(compile_specs, programs, "compile specs")
    specs = {
        name: _specs(compile_specs[name], name)
        for name in programs
        if name in compile_specs
    }
    preprocess_function(backend_id)
    # Deep copies: backends may change what they are given.
    copies = {name: [copy.deepcopy(programs[name])] for name in specs}
    by_partition = {name: [method_specs] for name, method_specs in specs.items()}
    results = preprocess_programs(backend_id, copies, by_partition, store)
    return {
        name: _lowered_module(backend_id, programs[name], specs[name], result)
        for name, (result,) in results.items()
    }


def _lowered_module(
    backend_id: str,
    program: ExportedProgram,
    specs: list[CompileSpec],
    result: PreprocessResult,
) -> LoweredBackendModule:
    module = LoweredBackendModule(
        edge_program=program,
        backend_id=backend_id,
        processed_bytes=result.processed_bytes,
        compile_specs=specs,
        named_data_store_output=result.data_store_output,
    )
    module.meta = {"debug_handle_map": result.debug_handle_map}
    if result._delegate_info_meta is not None:
        module.meta["_delegate_info_meta"] = result._delegate_info_meta
    return module


def _specs(specs: Any, where: str) -> list[CompileSpec]:
    if isinstance(specs, Mapping | str | bytes) or not isinstance(specs, Sequence):
        raise TypeError(
            f"{where}: must be a sequence of CompileSpec, not {type(specs).__name__}"
        )
    for spec in specs:
        if not isinstance(spec, CompileSpec):
            raise TypeError(
                f"{where}: must hold CompileSpec, not {type(spec).__name__}"
            )
    return list(specs)
