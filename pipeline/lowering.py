"""From ATen programs to lowered edge programs, through `to_backend_multiple`.

The engine is ExecuTorch's `to_edge_transform_and_lower`; this module decides which methods are
lowered together and hands every lowering to `to_backend_multiple`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import torch
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.backend_api import MethodProgramsPartitionerSpec, to_backend
from executorch.exir.backend.backend_details import BackendDetails
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.program import _program
from joblib import Parallel, delayed
from torch.export import ExportedProgram

from pipeline.config import EdgeConfig
from pipeline.confine import SharedConstantsError, refuse_unknown_modules, separate_constants
from pipeline.control_flow import refuse_unsupported
from pipeline.errors import PipelineError
from pipeline.preprocess import cached_preprocess, overrides_multimethod
from pipeline.store import Store

Partitioners: TypeAlias = Partitioner | Sequence[Partitioner]


def to_backend_multiple(
    method_to_edge_program: Mapping[str, ExportedProgram],
    method_to_partitioners: Partitioner | Mapping[str, Partitioners],
    *,
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
        method_to_partitioners: one partitioner for all methods, or a mapping of method names.
        n_jobs: how many processes preprocess at a time.
        store: where results of preprocessing are looked up and kept.

    Returns:
        The lowered programs, in the order of `method_to_edge_program`.

    Raises:
        TypeError: a partitioner is not a `Partitioner`.
        KeyError: a partitioner is given for a method that is not there.
        AssertionError: a partitioner changed the graph.
    """
    partitioners = _by_method(method_to_edge_program, method_to_partitioners)
    units = list(_units(partitioners))
    lowered: dict[str, ExportedProgram] = {}
    with _shared_store(store, n_jobs) as shared:
        if n_jobs > 1 and len(units) > 1 and shared is not None:
            _lower_ahead(method_to_edge_program, partitioners, units, n_jobs, shared)
        for unit in units:
            lowered |= _lower_together(method_to_edge_program, partitioners, unit, shared)
    return {name: lowered.get(name, edge) for name, edge in method_to_edge_program.items()}


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
    unknown = sorted(set(partitioners) - set(programs))
    if unknown:
        raise KeyError(f"no method {', '.join(unknown)}; known: {', '.join(programs)}")
    given = {
        name: (value,) if isinstance(value, Partitioner) else value
        for name, value in partitioners.items()
    }
    for name, value in given.items():
        if not isinstance(value, Sequence) or not all(isinstance(p, Partitioner) for p in value):
            raise TypeError(f"{name}: must be a Partitioner or a sequence of them, not {value!r}")
    return {name: tuple(given[name]) for name in programs if given.get(name)}


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
    if spec is None:
        return True
    backends = {backend.__name__: backend for backend in BackendDetails.__subclasses__()}
    return spec.backend_id in backends and overrides_multimethod(backends[spec.backend_id])


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
            lowered = to_backend(MethodProgramsPartitionerSpec(lowered, now))
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


def lower(
    programs: Mapping[str, ExportedProgram],
    method_to_partitioners: Mapping[str, Sequence[Partitioner]],
    constant_methods: Mapping[str, Any] | None = None,
    store: Store | None = None,
    edge: EdgeConfig | None = None,
    edge_operators: Sequence[str] = (),
    passes: Mapping[str, Sequence[Callable[..., Any]]] | None = None,
) -> EdgeProgramManager:
    """`to_edge_transform_and_lower`, with `to_backend_multiple` as its way to the backends.

    A constant that both a delegate and a branch want is given to each, where ExecuTorch gives up.

    Args:
        edge: how the programs become edge programs; all of them in the same way.
        edge_operators: what may be left beyond that, since a backend takes it.
        passes: those over each method's edge program, loaded.

    Raises:
        PipelineError: a partitioner is confined to a module that is not there, an operator of
            `edge` is unknown, or a program has control flow that ExecuTorch doesn't emit.
    """
    refuse_unsupported(programs)
    refuse_unknown_modules(programs, method_to_partitioners)
    own = dict(programs)
    with _lowering_through_to_backend_multiple(store):
        while True:
            try:
                return to_edge_transform_and_lower(
                    own,
                    partitioner={n: list(each) for n, each in method_to_partitioners.items()},
                    constant_methods=dict(constant_methods) if constant_methods else None,
                    compile_config=edge_config(edge or EdgeConfig(), edge_operators),
                    transform_passes=_passes(passes),
                )
            except SharedConstantsError as shared:
                own = {n: separate_constants(each, shared.names) for n, each in own.items()}


@contextmanager
def _lowering_through_to_backend_multiple(store: Store | None) -> Iterator[None]:
    """`EdgeProgramManager.to_backend` finds its `to_backend` in its own module, and takes no
    other. This can go when it does."""

    def through(spec: MethodProgramsPartitionerSpec) -> dict[str, ExportedProgram]:
        programs, partitioners = spec.method_to_edge_program, spec.method_to_partitioner
        return to_backend_multiple(programs, partitioners, store=store)

    original = _program.to_backend
    _program.to_backend = through
    try:
        yield
    finally:
        _program.to_backend = original


def edge_config(settings: EdgeConfig, operators: Sequence[str] = ()) -> EdgeCompileConfig:
    """What ExecuTorch is given for `settings`, and for operators beyond Core ATen that backends
    take. Raises PipelineError for an unknown operator."""
    return EdgeCompileConfig(
        _check_ir_validity=settings.check_ir_validity,
        _skip_dim_order=settings.skip_dim_order,
        _core_aten_ops_exception_list=[
            _operator(name)
            for name in dict.fromkeys([*(settings.core_aten_ops_exceptions or ()), *operators])
        ],
        preserve_ops=[_operator(name) for name in settings.preserve_ops or ()],
    )


def _operator(name: str) -> torch._ops.OpOverload:
    namespace, packet, overload = name.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except AttributeError as error:
        raise PipelineError(f"edge: no operator '{name}' in this torch") from error


def _passes(
    passes: Mapping[str, Sequence[Callable[..., Any]]] | None,
) -> dict[str, Sequence[Callable[..., Any]]] | None:
    given = {name: own for name, own in (passes or {}).items() if own}
    return given or None
