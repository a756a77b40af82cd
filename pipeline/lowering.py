"""From ATen programs to an emitted ExecuTorch program, through `to_backend_multiple`.

The engine is ExecuTorch's `to_edge_transform_and_lower` and `to_executorch`; this module decides
which methods are lowered together and hands every lowering to `to_backend_multiple`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.backend_api import MethodProgramsPartitionerSpec, to_backend
from executorch.exir.backend.backend_details import BackendDetails
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.exir.program import _program
from torch.export import ExportedProgram

Partitioners: TypeAlias = Partitioner | Sequence[Partitioner]


def to_backend_multiple(
    method_to_edge_program: Mapping[str, ExportedProgram],
    method_to_partitioners: Partitioner | Mapping[str, Partitioners],
) -> dict[str, ExportedProgram]:
    """Lowers the methods of a model, each to the delegates that its partitioners choose.

    Keeps the contract of ExecuTorch's function of this name (exir/backend/backend_api.py before
    `MethodProgramsPartitionerSpec` took its place): a method that the mapping lacks, or maps to an
    empty sequence, passes through untouched; control-flow sub-graphs are lowered too; parameters
    and buffers that a delegate consumed leave the program. Partitioners of a sequence are tried in
    order. Methods whose backend sees all methods at once (`preprocess_multimethod`) are lowered
    together, the others one by one. torch.export, which XNNPACK's passes use, is not safe on
    threads, and lowered programs cross no process, so methods are lowered in parallel by calling
    this in one process for each, as the build does.

    Args:
        method_to_edge_program: programs in edge dialect, by method name. Not modified.
        method_to_partitioners: one partitioner for all methods, or a mapping of method names.

    Returns:
        The lowered programs, in the order of `method_to_edge_program`.

    Raises:
        TypeError: a partitioner is not a `Partitioner`.
        KeyError: a partitioner is given for a method that is not there.
        AssertionError: a partitioner changed the graph.
    """
    partitioners = _by_method(method_to_edge_program, method_to_partitioners)
    lowered: dict[str, ExportedProgram] = {}
    for unit in _units(partitioners):
        programs = {name: method_to_edge_program[name] for name in unit}
        lowered |= _lower_together(programs, {name: partitioners[name] for name in unit})
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
    return any(
        "preprocess_multimethod" in vars(parent)
        for backend in BackendDetails.__subclasses__()
        if backend.__name__ == spec.backend_id
        for parent in backend.__mro__
        if parent is not BackendDetails
    )


def _lower_together(
    programs: dict[str, ExportedProgram], partitioners: Mapping[str, tuple[Partitioner, ...]]
) -> dict[str, ExportedProgram]:
    """One round per place in the sequences, as `to_edge_transform_and_lower` goes through them."""
    for turn in range(max(map(len, partitioners.values()))):
        now = {name: own[turn] for name, own in partitioners.items() if turn < len(own)}
        programs = to_backend(MethodProgramsPartitionerSpec(programs, now))
    return programs


def lower(
    programs: Mapping[str, ExportedProgram],
    method_to_partitioners: Mapping[str, Sequence[Partitioner]],
    constant_methods: Mapping[str, Any] | None = None,
) -> EdgeProgramManager:
    """`to_edge_transform_and_lower`, with `to_backend_multiple` as its way to the backends."""
    with _lowering_through_to_backend_multiple():
        return to_edge_transform_and_lower(
            dict(programs),
            partitioner={name: list(own) for name, own in method_to_partitioners.items()},
            constant_methods=dict(constant_methods) if constant_methods else None,
        )


@contextmanager
def _lowering_through_to_backend_multiple() -> Iterator[None]:
    """`EdgeProgramManager.to_backend` finds its `to_backend` in its own module, and takes no
    other. This can go when it does."""

    def through(spec: MethodProgramsPartitionerSpec) -> dict[str, ExportedProgram]:
        return to_backend_multiple(spec.method_to_edge_program, spec.method_to_partitioner)

    original = _program.to_backend
    _program.to_backend = through
    try:
        yield
    finally:
        _program.to_backend = original


def emit(
    lowered: EdgeProgramManager, external_constants: bool, initialized_buffers: Sequence[str]
) -> ExecutorchProgramManager:
    """`to_executorch`: memory planning and emission. Consumes `lowered`.

    Args:
        external_constants: portable constants go to a `.ptd` file.
        initialized_buffers: patterns of mutable buffers whose initial values are stored
            (`InitializedMutableBufferPass`); ExecuTorch starts all others at whatever memory holds.
    """
    passes = (
        [InitializedMutableBufferPass(list(initialized_buffers))] if initialized_buffers else []
    )
    config = ExecutorchBackendConfig(passes=passes, external_constants=external_constants)
    return lowered.to_executorch(config)
