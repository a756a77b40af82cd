"""Runs the references of methods beside their exporter, and records what they give.

Each is run as the exporter hands it over, mode and dtype included, without gradients: on the
method's examples and on generated inputs, at several sizes where sizes are dynamic. What it changes
is restored; one that keeps state is called in sequence, with those that change the same state.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    with_departure,
)
from pipeline.run.export.reference_state import KeptState, Key, preserving_globals, seed_all
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
_MOST_BYTES = 1 << 28  # of the outputs of a call, which the store keeps


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
        own = recordings[first]
        recordings[first] = Recording(
            own.origin,
            [*own.sequences, calls],
            random=own.random,
            repeats=own.repeats,
            skipped=own.skipped,
        )
    return {
        method: with_departure(recording, recorder.locate(recording))
        for method, recording in recordings.items()
    }


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
        random, repeats = self._describe_randomness(method, sets[0], first[0])
        if random:
            return Recording(origin, [first], random=random, repeats=repeats)
        if self._changes[method]:
            starts = [0, 1, *range(len(sets) - _GENERATED, len(sets))]
            chosen = sorted({start for start in starts if start < len(sets)})[:_MOST_STARTS]
            runs = [self._run(self._following(method, start)) for start in chosen]
        else:
            runs = [first, *(self._run([(method, inputs)]) for inputs in sets[1:])]
        return _leave_out_large(Recording(origin, runs))

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
            calls = self._run([(name, next(sets[name])) for name in order])
            if not any(call.error for call in calls) and not _is_large(calls):
                yield first, calls

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
        for method in {method for method, _ in calls}:
            self._changes[method] |= self._state.changed() if len(calls) == 1 else set()
        self._state.restore()
        return done

    def _call(self, method: str, inputs: InputSet) -> RecordedCall:
        try:
            outputs = call_reference(self._references[method], self._programs[method], inputs)
        except Exception as error:  # whatever it raises
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
        repeats = (
            [self._run([(method, inputs)], seed)[0] for seed in range(REPEATS)] if keeps else []
        )
        return random, [call.outputs for call in repeats]

    def locate(self, recording: Recording) -> str:
        """Say where the exported program departs from a reference; "" where it does not, or where
        that can't be found."""
        if recording.random or (departure := find_departure(recording, self._programs)) is None:
            return ""
        calls = departure.calls
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
    from pipeline.run.export.reference_state import iter_reachable

    kinds = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase)
    found = []
    for value in iter_reachable(reference):
        for name, module in value.named_modules() if isinstance(value, torch.nn.Module) else ():
            if module.training and isinstance(module, kinds):
                found.append(f"{name or 'itself'} ({type(module).__name__})")
        if found:
            break
    return found


def _is_large(calls: Sequence[RecordedCall]) -> bool:
    return sum(count_bytes(call.outputs) for call in calls) > _MOST_BYTES


def _leave_out_large(recording: Recording) -> Recording:
    """Leave out the sequences whose outputs are too large to be kept."""
    skipped = [
        (calls[0].inputs.origin, f"more than {_MOST_BYTES >> 20} MiB of outputs are not kept")
        for calls in recording.sequences
        if _is_large(calls)
    ]
    kept = [calls for calls in recording.sequences if not _is_large(calls)]
    return Recording(recording.origin, kept, skipped=skipped)
