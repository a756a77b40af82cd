"""Records the outputs of references, for an exporter.

They run on a method's examples and on generated inputs, including zeros and large values, at
several sizes if sizes are dynamic, and in sequence if they keep state. What they change is
restored.

The process may die (`guarded`): each sequence is announced before it is run, and skipped once it
has ended the process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from time import monotonic
from typing import Any

from torch.export import ExportedProgram

from pipeline.config.units import merge_groups
from pipeline.features.references.generated_sets import SEED, generate_sets
from pipeline.features.references.guarded import Begin
from pipeline.features.references.own_program import (
    OWN_PROGRAM,
    has_same_operators,
    watching_programs,
)
from pipeline.features.references.random_calls import (
    describe_random_calls,
    draws_numbers,
    find_random_calls,
)
from pipeline.features.references.recording_judge import (
    RecordingComparison,
    describe_difference,
)
from pipeline.features.references.recordings import (
    Outputs,
    RecordedCall,
    Recording,
    UncomparableOutputError,
    call_reference,
    count_bytes,
)
from pipeline.features.references.reference_state import (
    ChangedParameterError,
    KeptState,
    Key,
    seed_all,
)
from pipeline.features.references.training_mode import find_modules_in_training
from pipeline.moments import call_all
from pipeline.program.inputs import InputSet
from pipeline.program.random_operators import find_random_operators
from pipeline.store.errors import log_traceback
from pipeline.store.reasons import reason
from pipeline.store.remedies import add_remedy
from pipeline.validate.determinism import REPEATS

Reference = Callable[..., Any]
Calls = Sequence[tuple[str, InputSet]]
_STEPS = 3  # calls of a method in sequence, if it keeps state
_MOST_STARTS = 6  # number of such sequences
_MOST_EXAMPLES = 32
# The least number of runs of a reference, and of one that draws random numbers; the latter runs
# more often, for about this number of seconds, and so does one that changes values in Python.
_RUNS, _RUNS_OF_RANDOM, _MOST_RUNS, _MOST_SECONDS = 2, 6, 64, 5
_MOST_BYTES = 1 << 28  # of a method's outputs, which the store keeps


def name_origin(method: str) -> str:
    """Return the name of the recording of an exporter's reference."""
    return f"the reference of {method!r}"


class ReferenceRecorder:
    """Runs the references of an exporter.

    Args:
        defaults: returns a context with torch's defaults while the exporter ran.
        root: the workspace; lines of the model are named by its files.
        begin: called with a label before anything that may end this process.
        deaths: the labels that ended a process, with the signal.

    Attributes:
        changed_for_good: whether a reference changed something that can't be restored.
    """

    def __init__(
        self,
        references: Mapping[str, Reference],
        programs: Mapping[str, ExportedProgram],
        examples: Mapping[str, Sequence[InputSet]],
        defaults: Callable[[], AbstractContextManager[None]],
        root: Path,
        begin: Begin,
        deaths: Mapping[str, str],
    ) -> None:
        self._references, self._programs = references, programs
        self._defaults, self._root = defaults, root
        self._begin, self._deaths = begin, deaths
        self._comparison = RecordingComparison(programs, checks_errors=True)
        self._state = KeptState(references.values())
        self.changed_for_good = False
        self._of_own_program: set[str] = set()
        self._reachable = {
            n: self._state.reachable(reference) for n, reference in references.items()
        }
        self._changes: dict[str, set[Key]] = {name: set() for name in references}
        self._examples = {
            name: list(examples[name][:_MOST_EXAMPLES]) for name in references
        }
        self._generated = {
            name: generate_sets(programs[name], examples[name]) for name in references
        }

    def record(self) -> dict[str, Recording]:
        """Return the recordings by method.

        A sequence of several methods is stored with the first of them.
        """
        recordings = {method: self._record(method) for method in self._references}
        for group in self._groups():
            if not any(recordings[method].random for method in group):
                for calls in self._sequences_of(group):
                    recordings[group[0]] = self._add(recordings[group[0]], calls)
        return recordings

    def _record(self, method: str) -> Recording:
        recording = Recording(name_origin(method))
        sets = [*self._examples[method], *self._generated[method]]
        (first,) = self._run([(method, sets[0])])
        if self.changed_for_good:
            return replace(recording, sequences=[[first]])
        random, repeats = self._describe_randomness(method, sets[0], first)
        if method in self._of_own_program:
            refused = replace(first, outputs={}, error=OWN_PROGRAM)
            return replace(recording, sequences=[[refused]])
        if random:
            return replace(
                recording, sequences=[[first]], random=random, repeats=repeats
            )
        for calls in self._sequences(method, sets):
            recording = self._add(recording, calls)
        if not recording.divergence and (calls := self._find_late_divergence(first)):
            recording = self._add(recording, calls)
        return recording

    def _find_late_divergence(self, first: RecordedCall) -> Calls:
        """Return the calls of a long sequence up to one that diverges, or none.

        Tracing freezes what a reference changes in Python. A counter, for example, may matter only
        after many calls.
        """
        if not self._state.is_python(self._changes[first.method]):
            return []
        most = _MOST_BYTES // max(count_bytes(first.outputs), 1)
        calls = [(first.method, first.inputs)] * min(_MOST_RUNS, most)
        recorded = self._run(calls, most_seconds=_MOST_SECONDS) if calls else []
        if recorded and recorded[-1].error:  # such as a full cache
            recorded.pop()
        for step, outcome in enumerate(self._comparison.compare(recorded), 1):
            if outcome.diverges and not outcome.is_form:
                return calls[:step]
        return []

    def _sequences(self, method: str, sets: Sequence[InputSet]) -> list[Calls]:
        """Return the calls of each sequence: single calls if the reference keeps no state."""
        if not self._changes[method]:
            return [[(method, inputs)] for inputs in sets]
        starts = [*self._examples[method][:1], *self._generated[method]][:_MOST_STARTS]
        following = self._examples[method] or sets
        return [
            [
                (method, inputs)
                for inputs in (start, *islice(cycle(following), 1, _STEPS))
            ]
            for start in starts
        ]

    def _groups(self) -> list[tuple[str, ...]]:
        """Return the groups of methods that change the same state, in the model's order."""
        groups = [
            {method} | {n for n, keys in self._reachable.items() if keys & changes}
            for method, changes in self._changes.items()
        ]
        merged = merge_groups(self._references, groups)
        return [group for group in merged if len(group) > 1]

    def _sequences_of(self, group: Sequence[str]) -> list[Calls]:
        """Return sequences of calls of methods that change the same state.

        In the first, the first method is called once, then the others repeatedly. Nothing reads
        what the last method leaves behind there, so another sequence does.
        """
        first, *following = group
        orders = [[first, *(name for name in following for _ in range(_STEPS))]]
        last = group[-1]
        for name in group[:-1]:
            if self._reachable[name] & self._changes[last]:
                orders.append([last, name])
                break
        sequences: list[Calls] = []
        for order in orders:
            sets = {
                name: cycle(self._examples[name] or self._generated[name])
                for name in group
            }
            sequences.append([(name, next(sets[name])) for name in order])
        return sequences

    def _add(self, recording: Recording, calls: Calls) -> Recording:
        """Return a recording with a sequence of calls added.

        The exported programs are compared with the sequence right away.
        """
        recorded = self._run(calls)
        divergence, skipped = recording.divergence, [*recording.skipped]
        # It may take only so many calls in a row: a cache is full, for example.
        if len(recorded) > 2 and recorded[-1].error and not self.changed_for_good:
            late = recorded.pop()
            place = f"call {len(recorded) + 1} from {recorded[0].inputs.origin}"
            where = f"{late.inputs.origin} ({place})"
            skipped.append((where, f"the reference raises {late.error}"))
        if self._label(calls) not in self._deaths:
            for step, outcome in enumerate(self._comparison.compare(recorded), 1):
                if outcome.skipped:
                    skipped.append((outcome.where, outcome.skipped))
                    recorded = recorded[: step - 1]
                elif outcome.diverges and not (outcome.is_form or divergence):
                    divergence = self._locate(recorded[:step])
        elif recorded[0].inputs.generated or len(calls) > 1:
            skipped.append(
                (recorded[0].inputs.origin, f"the reference raises {recorded[0].error}")
            )
            recorded = []
        size = sum(
            count_bytes(call.outputs)
            for sequence in recording.sequences
            for call in sequence
        )
        if size + sum(count_bytes(call.outputs) for call in recorded) > _MOST_BYTES:
            why = (
                f"more than {_MOST_BYTES >> 20} MiB of a method's outputs are not kept"
            )
            skipped.append((recorded[0].inputs.origin, why))
            recorded = []
        sequences = [*recording.sequences, *([recorded] if recorded else [])]
        return replace(
            recording, sequences=sequences, divergence=divergence, skipped=skipped
        )

    def _label(self, calls: Calls, seed: int = SEED) -> str:
        return f"{seed}: {' > '.join(f'{method} on {inputs.origin}' for method, inputs in calls)}"

    def _run(
        self, calls: Calls, seed: int = SEED, most_seconds: float = math.inf
    ) -> list[RecordedCall]:
        """Call references one after another from the initial state, until one raises."""
        label = self._label(calls, seed)
        if label in self._deaths:
            method, inputs = calls[0]
            mistake = f"no error, but ends its process ({self._deaths[label]})"
            return [RecordedCall(method, inputs, {}, mistake)]
        self._begin(label)
        recorded: list[RecordedCall] = []
        started = monotonic()
        with self._defaults():
            seed_all(seed)
            for method, inputs in calls:
                recorded.append(self._call(method, inputs))
                if recorded[-1].error or monotonic() - started > most_seconds:
                    break
        # After a longer sequence, it is unknown which reference changed what.
        if len(calls) == 1:
            self._changes[calls[0][0]] |= self._state.changed()
        try:
            self._state.restore()
        except ChangedParameterError as error:
            self.changed_for_good = True
            recorded[-1] = replace(recorded[-1], outputs={}, error=str(error))
        return recorded

    def _call(self, method: str, inputs: InputSet) -> RecordedCall:
        try:
            outputs = call_reference(
                self._references[method], self._programs[method], inputs
            )
        except UncomparableOutputError as error:
            return RecordedCall(method, inputs, {}, f"no error, but {error}")
        except Exception as error:  # whatever it raises
            if not inputs.generated:
                log_traceback(error)
            raised = add_remedy(f"{type(error).__name__}: {reason(error)}", error=error)
            return RecordedCall(method, inputs, {}, raised)
        return RecordedCall(method, inputs, outputs)

    def _describe_randomness(
        self, method: str, inputs: InputSet, first: RecordedCall
    ) -> tuple[str, list[Outputs]]:
        """Return how a reference differs from itself on the same inputs, or "".

        If the exported program is random too, the outputs of repeated calls are returned as well.
        """
        if first.error:
            return "", []
        draws = bool(find_random_operators(self._programs[method]))
        training = find_modules_in_training(self._references[method])
        random = self._find_difference(first, range(1, _RUNS))
        calls = self._watch(method, inputs)
        if not random and (draws or training or draws_numbers(calls)):
            # Runs may agree by chance: a layer may be dropped in few of them.
            random = self._find_difference(first, range(_RUNS, _MOST_RUNS))
        if not random:
            return "", []
        if training:
            random += f"; it is in training mode: {', '.join(training[:3])}"
        elif calls:
            random += f"; {describe_random_calls(calls)}"
        seeds = range(REPEATS if draws else 0)
        return random, [
            self._run([(method, inputs)], seed)[0].outputs for seed in seeds
        ]

    def _find_difference(self, first: RecordedCall, seeds: range) -> str:
        """Return how a call with another of these seeds differs from an earlier one, or "".

        The seeds from `_RUNS_OF_RANDOM` on are left out once `_MOST_SECONDS` have passed.
        """
        started = monotonic()
        for seed in seeds:
            if seed >= _RUNS_OF_RANDOM and monotonic() - started > _MOST_SECONDS:
                break
            (repeated,) = self._run([(first.method, first.inputs)], seed)
            if differs := _describe_repetition(repeated, first):
                return differs
        return ""

    def _watch(self, method: str, inputs: InputSet) -> list[str]:
        """Return a reference's calls of random functions; note if it calls its own program.

        The result of the watched run doesn't count: torch can't compile while it is watched.
        """

        def run() -> None:
            with watching_programs() as called:
                self._run([(method, inputs)], _MOST_RUNS)
            program = self._programs[method]
            if any(has_same_operators(module, program) for module in called):
                self._of_own_program.add(method)

        return find_random_calls(run, self._root)

    def _locate(self, calls: Sequence[RecordedCall]) -> str:
        """Return where the exported program diverges in the last of these calls.

        It is "" if the place can't be found, or if the reference's own error says it.
        """
        *before, last = calls
        label = (
            f"locating {self._label([(call.method, call.inputs) for call in calls])}"
        )
        if last.error or self.changed_for_good or label in self._deaths:
            return ""
        self._begin(label)
        try:
            with self._defaults():
                seed_all(SEED)
                for call in before:  # to reach the last call's initial state
                    self._call(call.method, call.inputs)
                program = self._programs[last.method]
                reference = self._references[last.method]
                arguments = program, reference, last.inputs, self._root
                words = call_all("explain_divergence", *arguments)
                return "; ".join(filter(None, words))
        except Exception as problem:  # this must not hide the divergence
            log_traceback(problem)
            return ""
        finally:
            self._state.restore()


def _describe_repetition(repeated: RecordedCall, first: RecordedCall) -> str:
    """Return how a call differs from an earlier one on the same inputs, or ""."""
    if repeated.error:
        return (
            f"the reference is random: it raises {repeated.error}, but in an earlier run on the "
            "same inputs it raised nothing"
        )
    if differs := describe_difference(repeated.outputs, first.outputs):
        return f"the reference is random: {differs} between two runs on the same inputs"
    return ""
