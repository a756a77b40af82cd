"""Chooses the sequences of calls of methods that share state, and their inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle, islice

from torch.export import ExportedProgram

from pipeline.program.eager import common_buffers
from pipeline.program.inputs import InputSet

MOST_ROUNDS = 2  # runs of a sequence, each on different inputs


def usual_sequences(
    programs: Mapping[str, ExportedProgram], steps: int
) -> list[tuple[str, ...]]:
    """Return a sequence for each group of methods that change common buffers.

    It calls the first method once, then each other `steps` times, in the order of the model.
    """
    order = list(programs)
    sequences = []
    for group in _group_by_state(programs):
        first, *later_names = (name for name in order if name in group)
        sequence = [first]
        for name in later_names:
            sequence += [name] * steps
        sequences.append(tuple(sequence))
    return sorted(sequences, key=lambda sequence: order.index(sequence[0]))


def _group_by_state(programs: Mapping[str, ExportedProgram]) -> list[set[str]]:
    groups: list[set[str]] = []
    for methods in common_buffers(programs).values():
        joined = {*methods}
        apart = []
        for group in groups:
            if group.isdisjoint(methods):
                apart.append(group)
            else:
                joined |= group
        groups = [*apart, joined]
    return groups


def with_shared_state(
    selected: Collection[str],
    programs: Mapping[str, ExportedProgram],
    sequences: Sequence[Sequence[str]] | None,
    steps: int,
) -> list[str]:
    """Return the `selected` methods and all methods that are called on the same state.

    These can be validated without any others.
    """
    connected = {*selected}
    if sequences is None:
        sequences = usual_sequences(programs, steps)
    for _ in sequences:  # a sequence may connect to the next one
        for sequence in sequences:
            if connected & {*sequence}:
                connected.update(sequence)
    return [name for name in programs if name in connected]


def rounds(
    sequence: Sequence[str], sets: Mapping[str, Sequence[InputSet]]
) -> list[list[tuple[str, InputSet]]]:
    """Return the calls of each round of a sequence, on successive input sets of each method.

    The first round is repeated at the end.
    """
    longest = max(len(sets[name]) for name in sequence)
    call_lists = []
    for number in range(min(MOST_ROUNDS, longest)):
        next_sets = {name: islice(cycle(sets[name]), number, None) for name in sequence}
        call_lists.append([(name, next(next_sets[name])) for name in sequence])
    return [*call_lists, *call_lists[:1]]
