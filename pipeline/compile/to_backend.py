"""`to_backend` and `to_backend_multiple`: from edge programs to delegates, through the store.

They take the place of ExecuTorch's functions of these names (exir/backend/backend_api.py), and
lower with them.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import singledispatch
from pathlib import Path
from typing import Any, TypeAlias

import torch
from executorch.exir.backend import backend_api
from executorch.exir.backend.backend_api import MethodProgramsPartitionerSpec
from executorch.exir.backend.backend_api import to_backend as executorchs_to_backend
from executorch.exir.backend.backend_details import PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.lowered_backend_module import LoweredBackendModule
from joblib import Parallel, delayed
from torch.export import ExportedProgram

from pipeline.compile.module_filter import (
    Confined,
    OneBackend,
    SharedConstantsError,
    refuse_wrong_modules,
    separate_constants,
)
from pipeline.compile.preprocess.cache import (
    cached_preprocess,
    preprocess_programs,
    sees_all_methods,
)
from pipeline.compile.preprocess.registry import preprocess_function
from pipeline.store.errors import PipelineError, did_you_mean
from pipeline.store.store import Store

Partitioners: TypeAlias = Partitioner | Sequence[Partitioner]
Specs: TypeAlias = Sequence[CompileSpec]
Modules: TypeAlias = Sequence[str]


@contextmanager
def validation_disabled() -> Iterator[None]:
    """Within it, in this process, nothing checks that partitioners leave the graph as it was; for
    those that are known to, where comparing big graphs takes too long."""
    with backend_api.validation_disabled():
        yield


# One program, and all overloads


@singledispatch
def to_backend(first: Any, *rest: Any, **more: Any) -> Any:
    """Lowers to a backend, on this system's own compile path: with its registry of preprocess
    functions, and with a store for what they give. Which overload it is, the first argument says:

    - `to_backend(backend_id, edge_program, compile_specs)` hands a whole program to one backend and
      returns a `LoweredBackendModule`. With `modules_to_lower` it is those sub-modules, each a
      delegate of its own, and what it returns is the program around them.
    - `to_backend(backend_id, edge_programs, compile_specs)`, with a mapping of method names to
      programs and one of method names to compile specs, lowers the methods that the latter names,
      each with its own, and returns a `LoweredBackendModule` by method. A backend that sees all
      methods at once is called once.
    - `to_backend(edge_program, partitioner)` returns the program, with what the partitioner chose
      delegated.
    - `to_backend(MethodProgramsPartitionerSpec(edge_programs, partitioners))` is
      `to_backend_multiple`.

    All of them take `store`, where results of preprocessing are looked up and kept. Programs are in
    edge dialect, and are not modified.

    Raises:
        TypeError: an argument is of another type.
        UnknownBackendError: nothing preprocesses for the backend; a `NotImplementedError`.
        KeyError: compile specs are given for a method that is not there.
        PipelineError: `modules_to_lower` names what is no module, or not which of its calls.
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
            raise TypeError("modules_to_lower goes with one program")
        return _whole_methods(backend_id, edge_program, compile_specs, store)
    if not isinstance(edge_program, ExportedProgram):
        raise TypeError(
            f"{backend_id}: must be given an ExportedProgram, or a mapping of method names to "
            f"them, not {type(edge_program).__name__}"
        )
    specs = _specs(compile_specs, "compile_specs")
    preprocess_function(backend_id)
    if modules_to_lower is not None:
        partitioner = OneBackend(backend_id, specs, modules_to_lower)
        return _one(edge_program, partitioner, modules_to_lower, store)
    with cached_preprocess(store):
        return executorchs_to_backend(backend_id, edge_program, specs)


@to_backend.register
def _(
    edge_program: ExportedProgram,
    partitioner_instance: Partitioner,
    *,
    modules_to_lower: Modules | None = None,
    store: Store | None = None,
) -> ExportedProgram:
    if not isinstance(partitioner_instance, Partitioner):
        raise TypeError(f"must be given a Partitioner, not {type(partitioner_instance).__name__}")
    return _one(edge_program, partitioner_instance, modules_to_lower, store)


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


def _one(
    program: ExportedProgram,
    partitioner: Partitioner,
    modules: Modules | None,
    store: Store | None,
) -> ExportedProgram:
    """As ExecuTorch's call with one partitioner does it: a backend that could see all methods at
    once is given partition by partition."""
    if modules is not None:
        own = _confined({"": program}, {"": (partitioner,)}, modules)
        ((partitioner,),) = own.values()
    with cached_preprocess(store):
        while True:
            try:
                return executorchs_to_backend(program, partitioner)
            except SharedConstantsError as shared:
                program = separate_constants(program, shared.names)


def _whole_methods(
    backend_id: str,
    programs: Mapping[str, ExportedProgram],
    compile_specs: Specs | Mapping[str, Specs],
    store: Store | None,
) -> dict[str, LoweredBackendModule]:
    """Whole programs to one backend, in one call."""
    if not isinstance(compile_specs, Mapping):
        raise TypeError(
            f"{backend_id}: compile_specs of several methods must be a mapping of method names, "
            f"not {type(compile_specs).__name__}"
        )
    _refuse_unknown_methods(compile_specs, programs, "compile specs")
    specs = {name: _specs(compile_specs[name], name) for name in programs if name in compile_specs}
    preprocess_function(backend_id)
    # deep copies: backends may change what they are given
    given = {name: [copy.deepcopy(programs[name])] for name in specs}
    results = preprocess_programs(
        backend_id, given, {name: [own] for name, own in specs.items()}, store
    )
    return {
        name: _lowered_module(backend_id, programs[name], specs[name], results[name][0])
        for name in specs
    }


def _lowered_module(
    backend_id: str, program: ExportedProgram, specs: list[CompileSpec], result: PreprocessResult
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


def _specs(given: Any, where: str) -> list[CompileSpec]:
    if isinstance(given, Mapping | str | bytes) or not isinstance(given, Sequence):
        raise TypeError(f"{where}: must be a sequence of CompileSpec, not {type(given).__name__}")
    for each in given:
        if not isinstance(each, CompileSpec):
            raise TypeError(f"{where}: must hold CompileSpec, not {type(each).__name__}")
    return list(given)


def _refuse_unknown_methods(given: Iterable[str], known: Mapping[str, Any], what: str) -> None:
    """Raises KeyError."""
    unknown = [name for name in given if name not in known]
    if unknown:
        told = [f"no method {name}; {did_you_mean(name, known)}" for name in unknown]
        raise KeyError(f"{what}: {', '.join(told)}")


# All methods of a model


def to_backend_multiple(
    method_to_edge_program: Mapping[str, ExportedProgram],
    method_to_partitioners: Partitioner | Mapping[str, Partitioners],
    *,
    modules_to_lower: Modules | Mapping[str, Modules] | None = None,
    n_jobs: int = 1,
    store: Store | None = None,
) -> dict[str, ExportedProgram]:
    """Lowers the methods of a model, each to the delegates that its partitioners choose.

    Keeps the contract of ExecuTorch's function of this name (exir/backend/backend_api.py before
    `MethodProgramsPartitionerSpec` took its place): a method that the mapping lacks, or maps to an
    empty sequence, passes through untouched; control-flow sub-graphs are lowered too; parameters
    and buffers that a delegate consumed leave the program. Partitioners of a sequence are tried in
    order. Methods whose backend sees all methods at once (`preprocess_multimethod`) are lowered
    together, the others apart.

    A lowered program crosses no process, and torch.export, which XNNPACK's passes use, is not safe
    on threads. So with `n_jobs` the methods are first lowered in forked processes of joblib, which
    hand over what their backends gave through the store (or a temporary one); lowering them here
    then finds every partition preprocessed.

    Args:
        method_to_edge_program: programs in edge dialect, by method name. Not modified.
        method_to_partitioners: one partitioner for all methods, or a mapping of method names. Its
            compile specs are those of its methods.
        modules_to_lower: qualified names of sub-modules, of all methods or by method; of what
            stands in none of them nothing is delegated, by any partitioner. `shared@1` is the
            second call of a module that is called several times, `shared@*` all of them.
        n_jobs: how many processes preprocess at a time.
        store: where results of preprocessing are looked up and kept.

    Returns:
        The lowered programs, in the order of `method_to_edge_program`.

    Raises:
        TypeError: a partitioner is not a `Partitioner`.
        KeyError: a partitioner is given for a method that is not there.
        PipelineError: `modules_to_lower` names what is no module, or not which of its calls.
        AssertionError: a partitioner changed the graph.
    """
    partitioners = _by_method(method_to_edge_program, method_to_partitioners)
    if modules_to_lower is None:
        return _lower_by_unit(method_to_edge_program, partitioners, n_jobs, store)
    own = dict(method_to_edge_program)
    confined = _confined(own, partitioners, modules_to_lower)
    while True:
        try:
            return _lower_by_unit(own, confined, n_jobs, store)
        except SharedConstantsError as shared:
            own |= {name: separate_constants(own[name], shared.names) for name in confined}


def _lower_by_unit(
    programs: Mapping[str, ExportedProgram],
    partitioners: Mapping[str, tuple[Partitioner, ...]],
    n_jobs: int,
    store: Store | None,
) -> dict[str, ExportedProgram]:
    units = list(_units(partitioners))
    lowered: dict[str, ExportedProgram] = {}
    with _shared_store(store, n_jobs) as shared:
        if n_jobs > 1 and len(units) > 1 and shared is not None:
            _lower_ahead(programs, partitioners, units, n_jobs, shared)
        for unit in units:
            lowered |= _lower_together(programs, partitioners, unit, shared)
    return {name: lowered.get(name, edge) for name, edge in programs.items()}


def _by_method(
    programs: Mapping[str, ExportedProgram],
    partitioners: Partitioner | Mapping[str, Partitioners],
) -> dict[str, tuple[Partitioner, ...]]:
    if isinstance(partitioners, Partitioner):
        return dict.fromkeys(programs, (partitioners,))
    if not isinstance(partitioners, Mapping):
        raise TypeError(
            "method_to_partitioners must be a Partitioner or a mapping of method names to "
            f"partitioners, not {type(partitioners).__name__}"
        )
    _refuse_unknown_methods(partitioners, programs, "partitioners")
    given = {
        name: (value,) if isinstance(value, Partitioner) else value
        for name, value in partitioners.items()
    }
    for name, value in given.items():
        if not isinstance(value, Sequence) or not all(isinstance(p, Partitioner) for p in value):
            raise TypeError(f"{name}: must be a Partitioner or a sequence of them, not {value!r}")
    return {name: tuple(given[name]) for name in programs if given.get(name)}


def _confined(
    programs: Mapping[str, ExportedProgram],
    partitioners: Mapping[str, tuple[Partitioner, ...]],
    modules: Modules | Mapping[str, Modules],
) -> dict[str, tuple[Partitioner, ...]]:
    if isinstance(modules, Mapping):
        _refuse_unknown_methods(modules, programs, "modules_to_lower")
    given = dict(modules) if isinstance(modules, Mapping) else dict.fromkeys(partitioners, modules)
    for name, own in given.items():
        names = isinstance(own, Sequence) and not isinstance(own, str | bytes)
        if not names or not all(isinstance(each, str) for each in own):
            raise TypeError(f"modules_to_lower: must be a sequence of names, not {own!r}")
        if not own:
            raise PipelineError(
                f"{f'{name}: ' if name else ''}modules_to_lower names nothing; leave it out to "
                "lower all, and give no partitioner to lower none"
            )
    confined = {
        name: tuple(Confined(p, (given.get(name),)) for p in own) if name in given else own
        for name, own in partitioners.items()
    }
    refuse_wrong_modules(programs, confined)
    return confined


def _units(partitioners: Mapping[str, tuple[Partitioner, ...]]) -> Iterator[tuple[str, ...]]:
    """Groups of methods that are lowered in one call: all that need each other, then singles."""
    joint = tuple(name for name, own in partitioners.items() if any(map(_sees_all_methods, own)))
    if joint:
        yield joint
    yield from ((name,) for name in partitioners if name not in joint)


def _sees_all_methods(partitioner: Partitioner) -> bool:
    """Whether its backend overrides `preprocess_multimethod`. A partitioner that does not say
    which backend it delegates to may have one that does."""
    spec = getattr(partitioner, "delegation_spec", None)
    return True if spec is None else sees_all_methods(spec.backend_id)


def _lower_together(
    programs: Mapping[str, ExportedProgram],
    partitioners: Mapping[str, tuple[Partitioner, ...]],
    unit: tuple[str, ...],
    store: Store | None,
) -> dict[str, ExportedProgram]:
    """One round per place in the sequences, as `to_edge_transform_and_lower` goes through them."""
    lowered = {name: programs[name] for name in unit}
    with cached_preprocess(store):
        for turn in range(max(len(partitioners[name]) for name in unit)):
            now = {n: partitioners[n][turn] for n in unit if turn < len(partitioners[n])}
            lowered = executorchs_to_backend(MethodProgramsPartitionerSpec(lowered, now))
    return lowered


@contextmanager
def _shared_store(store: Store | None, n_jobs: int) -> Iterator[Store | None]:
    if store is not None or n_jobs == 1:
        yield store
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Store(Path(folder))


_inherited: tuple[Any, ...] = ()  # what forked processes read; edge programs do not pickle


def _lower_ahead(
    programs: Mapping[str, ExportedProgram],
    partitioners: Mapping[str, tuple[Partitioner, ...]],
    units: Sequence[tuple[str, ...]],
    n_jobs: int,
    store: Store,
) -> None:
    global _inherited
    _inherited = (programs, partitioners, units, store)
    try:
        Parallel(n_jobs=min(n_jobs, len(units)), backend="multiprocessing", batch_size=1)(
            delayed(_lower_inherited)(number) for number in range(len(units))
        )
    finally:
        _inherited = ()


def _lower_inherited(number: int) -> None:
    """In a forked process: fills the store. What fails here fails again, and is told, there."""
    programs, partitioners, units, store = _inherited
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    with suppress(Exception):
        _lower_together(programs, partitioners, units[number], store)
