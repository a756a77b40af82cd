"""Plans the calls of methods that share state: their order, and their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.export import ExportedProgram

from pipeline.program.eager import common_buffers
from pipeline.program.inputs import InputSet

MOST_ROUNDS = 2  # runs of a sequence, each on other inputs


def usual_sequences(programs: Mapping[str, ExportedProgram], steps: int) -> list[tuple[str, ...]]:
    """Return a sequence for each group of methods that have changing buffers in common.

    It is the first one once, then each other `steps` times, in the order of the model.
    """
    groups: list[set[str]] = []
    for methods in common_buffers(programs).values():
        joined = {*methods}.union(*(group for group in groups if group & {*methods}))
        groups = [group for group in groups if not group & joined] + [joined]
    found = []
    for group in groups:
        first, *others = (name for name in programs if name in group)
        found.append((first, *(name for name in others for _ in range(steps))))
    return sorted(found, key=lambda sequence: list(programs).index(sequence[0]))


def rounds(
    sequence: Sequence[str], sets: Mapping[str, Sequence[InputSet]]
) -> list[list[tuple[str, InputSet]]]:
    """Return the calls of each round of a sequence, on the sets of its methods in turn.

    The first round comes again at the end.
    """
    count = min(MOST_ROUNDS, max(len(sets[name]) for name in sequence))
    found = []
    for number in range(count):
        taken = dict.fromkeys(sequence, number)
        calls = []
        for name in sequence:
            calls.append((name, sets[name][taken[name] % len(sets[name])]))
            taken[name] += 1
        found.append(calls)
    return [*found, *found[:1]]
