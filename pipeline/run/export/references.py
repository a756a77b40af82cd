"""Runs the references of methods beside their exporter, and records what they give.

Each is run as the exporter hands it over, mode and dtype included, without gradients: on the
method's examples and on generated inputs, at several sizes where sizes are dynamic. What it changes
is restored; one that keeps state is called in sequence, with those that change the same state.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import torch
from torch.export import ExportedProgram

from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import generate_inputs
from pipeline.program.random_operators import find_random_operators
from pipeline.program.recordings import (
    Outputs,
    RecordedCall,
    Recording,
    call_reference,
    count_bytes,
)
from pipeline.run.export.reference_state import (
    KeptState,
    Key,
    iter_reachable,
    preserving_globals,
    seed_all,
)
from pipeline.store.errors import PipelineError
from pipeline.store.reasons import reason
from pipeline.validate.locate.reference_departure import describe_departure
from pipeline.validate.randomness import REPEATS
from pipeline.validate.recording_judge import describe_difference, find_departure

Reference = Callable[..., Any]
_SEED = 0
# Generated input sets of each method: the least sizes, the greatest, and some between.
_GENERATED = 3
_STEPS = 3  # calls of a method in sequence, where it keeps state
_MOST_STARTS = 4  # of such sequences
_MOST_EXAMPLES = 32
_RUNS, _RUNS_OF_RANDOM = 2, 6  # as validate/determinism.py has it
_MOST_BYTES = 1 << 28  # of the outputs of a method, which the store keeps
_OTHERWISE_IN_TRAINING = (
    torch.nn.modules.dropout._DropoutNd,
    torch.nn.modules.batchnorm._NormBase,
    torch.nn.RNNBase,
)


@dataclass(frozen=True)
class Defaults:
    """torch's defaults while the exporter ran, in which its references run."""

    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    device: torch.device = field(default_factory=torch.get_default_device)

    @contextmanager
    def applied(self) -> Iterator[None]:
        with preserving_globals():
            torch.set_default_dtype(self.dtype)
            if self.device != torch.get_default_device():
                torch.set_default_device(self.device)
            yield


def record_references(
    references: Mapping[str, Reference],
    programs: Mapping[str, ExportedProgram],
    examples: Mapping[str, Sequence[InputSet]],
    defaults: Defaults,
) -> dict[str, Recording]:
    """Run references, and return their recordings by method, each with where the exported program
    departs from it. All that they change is as before."""
    if not references:
        return {}
    recorder = _Recorder(references, programs, examples, defaults)
    recordings = {method: recorder.record(method) for method in references}
    for first, calls in recorder.joint_sequences(recordings):
        sequences = [*recordings[first].sequences, calls]
        recordings[first] = replace(recordings[first], sequences=sequences)
    for method, recording in recordings.items():
        departure = recorder.locate(recording)
        recordings[method] = _leave_out_large(replace(recording, departure=departure))
    return recordings


class _Recorder:
    def __init__(
        self,
        references: Mapping[str, Reference],
        programs: Mapping[str, ExportedProgram],
        examples: Mapping[str, Sequence[InputSet]],
        defaults: Defaults,
    ) -> None:
        self._references, self._programs, self._defaults = references, programs, defaults
        self._state = KeptState(references.values())
        self._reachable = {n: self._state.reachable(each) for n, each in references.items()}
        self._changed_for_good = False
        self._changes: dict[str, set[Key]] = {name: set() for name in references}
        self._sets = {
            name: [
                *examples[name][:_MOST_EXAMPLES],
                *generate_inputs(programs[name], _GENERATED, _SEED, examples[name]),
            ]
            for name in references
        }

    def record(self, method: str) -> Recording:
        origin, sets = f"reference({method!r})", self._sets[method]
        first = self._run([(method, sets[0])])
        if self._changed_for_good:
            return Recording(origin, [first])
        random, repeats = self._describe_randomness(method, sets[0], first[0])
        if random:
            return Recording(origin, [first], random=random, repeats=repeats)
        if self._changes[method]:
            starts = [0, 1, *range(len(sets) - _GENERATED, len(sets))]
            chosen = sorted({start for start in starts if start < len(sets)})[:_MOST_STARTS]
            runs = [self._run(self._following(method, start)) for start in chosen]
        else:
            runs = [first, *(self._run([(method, inputs)]) for inputs in sets[1:])]
        return Recording(origin, runs)

    def _following(self, method: str, start: int) -> list[tuple[str, InputSet]]:
        sets = self._sets[method]
        return [(method, sets[(start + step) % len(sets)]) for step in range(_STEPS)]

    def joint_sequences(
        self, recordings: Mapping[str, Recording]
    ) -> Iterator[tuple[str, list[RecordedCall]]]:
        """Yield the calls of methods whose references change one state, with the method that is
        called first: once, and then each other method several times."""
        for group in self._groups():
            if any(recordings[method].random for method in group):
                continue
            first, *others = group
            order = [first, *(name for name in others for _ in range(_STEPS))]
            sets = {name: cycle(self._sets[name]) for name in group}
            yield first, self._run([(name, next(sets[name])) for name in order])

    def _groups(self) -> list[list[str]]:
        """Return the methods of each group that shares state, in the order of the model."""
        groups: list[set[str]] = []
        for method, changes in self._changes.items():
            joined = {method} | {n for n, keys in self._reachable.items() if keys & changes}
            joined = joined.union(*(group for group in groups if group & joined))
            groups = [group for group in groups if not group & joined] + [joined]
        ordered = [[name for name in self._references if name in group] for group in groups]
        return [group for group in ordered if len(group) > 1]

    def _run(self, calls: Sequence[tuple[str, InputSet]], seed: int = _SEED) -> list[RecordedCall]:
        """Call references one after another from the initial state, until one raises."""
        done: list[RecordedCall] = []
        with self._defaults.applied():
            seed_all(seed)
            for method, inputs in calls:
                call = self._call(method, inputs)
                done.append(call)
                if call.error:
                    break
        if len(calls) == 1:
            self._changes[calls[0][0]] |= self._state.changed()
        try:
            self._state.restore()
        except PipelineError as error:
            self._changed_for_good = True
            done[-1] = replace(done[-1], outputs={}, error=str(error))
        return done

    def _call(self, method: str, inputs: InputSet) -> RecordedCall:
        try:
            outputs = call_reference(self._references[method], self._programs[method], inputs)
        except Exception as error:  # whatever it raises
            if not inputs.generated:
                traceback.print_exc()
            what = f"{type(error).__name__}: {reason(error)}"
            return RecordedCall(method, inputs, {}, what)
        return RecordedCall(method, inputs, outputs)

    def _describe_randomness(
        self, method: str, inputs: InputSet, first: RecordedCall
    ) -> tuple[str, list[Outputs]]:
        """Say how a reference differs from itself on the same inputs, with its outputs on repeated
        calls where the exported program is random too; "" where it does not."""
        if first.error:
            return "", []
        draws = bool(find_random_operators(self._programs[method]))
        training = _modules_in_training(self._references[method])
        runs = _RUNS_OF_RANDOM if draws or training else _RUNS
        for seed in range(1, runs):
            (again,) = self._run([(method, inputs)], seed)
            if differs := describe_difference(again.outputs, first.outputs):
                break
        else:
            return "", []
        random = f"the reference is random: {differs} between two runs on the same inputs"
        if training:
            random += f"; it is in training mode: {', '.join(training[:3])}"
        keeps = draws and count_bytes(first.outputs) * REPEATS <= _MOST_BYTES
        seeds = range(REPEATS if keeps else 0)
        return random, [self._run([(method, inputs)], seed)[0].outputs for seed in seeds]

    def locate(self, recording: Recording) -> str:
        """Say where the exported program departs from a reference; "" where it does not, or where
        that can't be found."""
        if recording.random or (departure := find_departure(recording, self._programs)) is None:
            return ""
        calls = departure.calls
        if calls[-1].error or self._changed_for_good:
            return ""
        try:
            with self._defaults.applied():
                seed_all(_SEED)
                for call in calls[:-1]:  # the state that the last call begins with
                    call_reference(
                        self._references[call.method], self._programs[call.method], call.inputs
                    )
                last = calls[-1].method
                program, reference = self._programs[last], self._references[last]
                return describe_departure(program, reference, calls[-1].inputs)
        except Exception:  # it must not hide the departure
            traceback.print_exc()
            return ""
        finally:
            self._state.restore()


def _modules_in_training(reference: Reference) -> list[str]:
    """Name the modules of a reference in training mode that behave otherwise in it."""
    for value in iter_reachable(reference):
        if not isinstance(value, torch.nn.Module):
            continue
        names = [
            f"{name or 'the module'} ({type(module).__name__})"
            for name, module in value.named_modules()
            if module.training and isinstance(module, _OTHERWISE_IN_TRAINING)
        ]
        if names:
            return names
    return []


def _leave_out_large(recording: Recording) -> Recording:
    """Leave out the sequences for whose outputs there is no room."""
    kept, skipped, size = [], [*recording.skipped], 0
    for calls in recording.sequences:
        own = sum(count_bytes(call.outputs) for call in calls)
        if size + own <= _MOST_BYTES:
            size += own
            kept.append(calls)
        else:
            why = f"more than {_MOST_BYTES >> 20} MiB of a method's outputs are not kept"
            skipped.append((calls[0].inputs.origin, why))
    return replace(recording, sequences=kept, skipped=skipped)
