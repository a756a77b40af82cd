"""Delegates the partitions that partitioners choose, unit by unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from executorch.exir.backend import backend_api
from executorch.exir.backend.backend_api import MethodProgramsPartitionerSpec
from executorch.exir.backend.partitioner import Partitioner
from torch.export import ExportedProgram

from pipeline.compile.preprocess.cache import cached_preprocess, sees_all_methods
from pipeline.config.units import merge_groups
from pipeline.store.store import Store

_ANY = ""  # in place of an unknown backend id
_ByMethod: TypeAlias = Mapping[str, Sequence[Partitioner]]


def delegate_methods(
    programs: Mapping[str, ExportedProgram],
    partitioners: _ByMethod,
    store: Store | None = None,
) -> dict[str, ExportedProgram]:
    """Return the edge programs after delegating the partitions that their partitioners choose.

    Args:
        partitioners: for each method, one or more partitioners, applied in order; programs of
            methods without any stay as they are.
        store: holds preprocessing results and receives new ones.

    Raises AssertionError if a partitioner changes the graph.
    """
    delegated: dict[str, ExportedProgram] = {}
    for unit in make_units(partitioners):
        delegated |= delegate_unit(programs, partitioners, unit, store)
    return {name: delegated.get(name, edge) for name, edge in programs.items()}


def make_units(partitioners: _ByMethod) -> list[tuple[str, ...]]:
    """Return methods by unit: those that a backend sees together, then each other method alone.

    Each unit is lowered in one call. A partitioner without a `delegation_spec` may use any backend,
    so its method joins all methods that a backend sees together in the same round.
    """
    calls: dict[tuple[int, str], list[str]] = {}
    for name, method_partitioners in partitioners.items():
        for turn, partitioner in enumerate(method_partitioners):
            spec = getattr(partitioner, "delegation_spec", None)
            backend_id = spec.backend_id if spec is not None else _ANY
            if spec is None or sees_all_methods(backend_id):
                calls.setdefault((turn, backend_id), []).append(name)
    groups = list(calls.values())
    for turn, backend_id in calls:
        if backend_id == _ANY:
            groups.append(
                [
                    name
                    for (at, _), method_partitioners in calls.items()
                    if at == turn
                    for name in method_partitioners
                ]
            )
    return merge_groups(partitioners, groups)


def delegate_unit(
    programs: Mapping[str, ExportedProgram],
    partitioners: _ByMethod,
    unit: tuple[str, ...],
    store: Store | None,
) -> dict[str, ExportedProgram]:
    """Return the methods of a unit after delegation in rounds, as in `to_edge_transform_and_lower`.

    Round n applies the partitioner at index n of each method.
    """
    lowered = {name: programs[name] for name in unit}
    with cached_preprocess(store):
        for turn in range(max(len(partitioners[name]) for name in unit)):
            now = {}
            for n in unit:
                if turn < len(partitioners[n]):
                    now[n] = partitioners[n][turn]
            lowered = backend_api.to_backend(
                MethodProgramsPartitionerSpec(lowered, now)
            )
    return lowered
