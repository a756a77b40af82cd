"""Records what references give: on a method's examples and on generated inputs, zeros and large
values too, at several sizes where sizes are dynamic, in sequence where they keep state. What they
change is restored.

It runs in a process that may die of it (`guarded`): each sequence is announced before it is run,
and left out once it has ended the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from pipeline.features.references.guarded import Begin
from pipeline.features.references.random_calls import (
    describe_random_calls,
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
    iter_reachable,
    preserving_globals,
    seed_all,
)
from pipeline.moments import call_all
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import (
    Fill,
    Generator,
    fill_large,
    fill_zeros,
    generate_inputs,
)
from pipeline.program.random_operators import find_random_operators
from pipeline.store.errors import log_traceback
from pipeline.store.reasons import reason
from pipeline.store.remedies import add_remedy
from pipeline.validate.determinism import REPEATS

Reference = Callable[..., Any]
Calls = Sequence[tuple[str, InputSet]]
_SEED = 0
# Generated input sets of each method: the least sizes, the greatest, and some between.
_GENERATED = 3
# What random values leave out: an export that saturates or divides otherwise shows there.
_EXTREMES: tuple[tuple[str, Fill], ...] = (
    ("zeros", fill_zeros),
    ("large, 1024 times", partial(fill_large, 10)),
)
_STEPS = 3  # calls of a method in sequence, where it keeps state
_MOST_STARTS = 6  # of such sequences
_MOST_EXAMPLES = 32
_RUNS, _RUNS_OF_RANDOM = 2, 6  # as validate/determinism.py has it
_MOST_BYTES = 1 << 28  # of the outputs of a method, which the store keeps
_OTHERWISE_IN_TRAINING = (
    torch.nn.modules.dropout._DropoutNd,
    torch.nn.modules.batchnorm._NormBase,
    torch.nn.RNNBase,
)


@contextmanager
def with_defaults(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Run references with torch's defaults as they were while the exporter ran."""
    with preserving_globals():
        torch.set_default_dtype(dtype)
        if device != torch.get_default_device():
            torch.set_default_device(device)
        yield


def name_origin(method: str) -> str:
    """Return what the recording of an exporter's reference is called."""
    return f"reference({method!r})"


class ReferenceRecorder:
    """Runs the references of an exporter.

    Args:
        defaults: returns a context with torch's defaults while the exporter ran.
        root: the workspace, by whose files lines of the model are named.
        begin: is called with a label before each thing that may end this process.
        deaths: the labels of those that did, with the signal.

    Attributes:
        changed_for_good: whether a reference changed what can't be restored.
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
        self._references, self._programs, self._defaults = (
            references,
            programs,
            defaults,
        )
        self._root = root
        self._begin, self._deaths = begin, deaths
        self._comparison = RecordingComparison(programs, checks_errors=True)
        self._state = KeptState(references.values())
        self.changed_for_good = False
        self._reachable = {
            n: self._state.reachable(reference) for n, reference in references.items()
        }
        self._changes: dict[str, set[Key]] = {name: set() for name in references}
        self._examples = {
            name: list(examples[name][:_MOST_EXAMPLES]) for name in references
        }
        self._generated = {
            name: _generate_sets(programs[name], examples[name]) for name in references
        }

    def record(self) -> dict[str, Recording]:
        """Return the recordings by method; that of the first one holds a sequence of several."""
        recordings = {method: self._record(method) for method in self._references}
        for group in self._groups():
            if not any(recordings[method].random for method in group):
                recordings[group[0]] = self._add(
                    recordings[group[0]], self._calls_of(group)
                )
        return recordings

    def _record(self, method: str) -> Recording:
        recording = Recording(name_origin(method))
        sets = [*self._examples[method], *self._generated[method]]
        (first,) = self._run([(method, sets[0])])
        if self.changed_for_good:
            return replace(recording, sequences=[[first]])
        random, repeats = self._describe_randomness(method, sets[0], first)
        if random:
            return replace(
                recording, sequences=[[first]], random=random, repeats=repeats
            )
        for calls in self._sequences(method, sets):
            recording = self._add(recording, calls)
        return recording

    def _sequences(self, method: str, sets: Sequence[InputSet]) -> list[Calls]:
        """Return the calls of each sequence: single ones where the reference keeps no state."""
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

    def _groups(self) -> list[list[str]]:
        """Return the methods of each group that changes one state, in the order of the model."""
        groups: list[set[str]] = []
        for method, changes in self._changes.items():
            joined = {method} | {
                n for n, keys in self._reachable.items() if keys & changes
            }
            joined = joined.union(*(group for group in groups if group & joined))
            groups = [group for group in groups if not group & joined] + [joined]
        ordered = [
            [name for name in self._references if name in group] for group in groups
        ]
        return [group for group in ordered if len(group) > 1]

    def _calls_of(self, group: Sequence[str]) -> Calls:
        """Return the calls of methods in sequence: the first once, then the others repeatedly."""
        first, *following = group
        sets = {
            name: cycle(self._examples[name] or self._generated[name]) for name in group
        }
        order = [first, *(name for name in following for _ in range(_STEPS))]
        return [(name, next(sets[name])) for name in order]

    def _add(self, recording: Recording, calls: Calls) -> Recording:
        """Return a recording with a sequence of calls, which the exported programs are compared
        with at once."""
        recorded = self._run(calls)
        departure, skipped = recording.departure, [*recording.skipped]
        if self._label(calls) not in self._deaths:
            for step, outcome in enumerate(self._comparison.compare(recorded), 1):
                if outcome.skipped:
                    skipped.append((outcome.where, outcome.skipped))
                    recorded = recorded[: step - 1]
                elif outcome.departs and not (outcome.is_form or departure):
                    departure = self._locate(recorded[:step])
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
            recording, sequences=sequences, departure=departure, skipped=skipped
        )

    def _label(self, calls: Calls, seed: int = _SEED) -> str:
        return f"{seed}: {' > '.join(f'{method} on {inputs.origin}' for method, inputs in calls)}"

    def _run(self, calls: Calls, seed: int = _SEED) -> list[RecordedCall]:
        """Call references one after another from the initial state, until one raises."""
        label = self._label(calls, seed)
        if label in self._deaths:
            method, inputs = calls[0]
            mistake = f"no error, but ends its process ({self._deaths[label]})"
            return [RecordedCall(method, inputs, {}, mistake)]
        self._begin(label)
        recorded: list[RecordedCall] = []
        with self._defaults():
            seed_all(seed)
            for method, inputs in calls:
                recorded.append(self._call(method, inputs))
                if recorded[-1].error:
                    break
        # After a sequence, nobody could tell which of its references changed what.
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
        """Say how a reference differs from itself on the same inputs, with its outputs on repeated
        calls where the exported program is random too; "" where it does not."""
        if first.error:
            return "", []
        draws = bool(find_random_operators(self._programs[method]))
        training = _modules_in_training(self._references[method])
        # After few draws, runs may agree by chance.
        runs = _RUNS_OF_RANDOM if draws or training else _RUNS
        for seed in range(1, runs):
            (repeated,) = self._run([(method, inputs)], seed)
            if differs := describe_difference(repeated.outputs, first.outputs):
                break
        else:
            return "", []
        random = (
            f"the reference is random: {differs} between two runs on the same inputs"
        )
        if training:
            random += f"; it is in training mode: {', '.join(training[:3])}"
        elif calls := find_random_calls(
            lambda: self._run([(method, inputs)]), self._root
        ):
            random += f"; {describe_random_calls(calls)}"
        seeds = range(REPEATS if draws else 0)
        return random, [
            self._run([(method, inputs)], seed)[0].outputs for seed in seeds
        ]

    def _locate(self, calls: Sequence[RecordedCall]) -> str:
        """Say where the exported program departs in the last of these calls; "" where that can't be
        found, or is said by what the reference raises."""
        *before, last = calls
        label = (
            f"locating {self._label([(call.method, call.inputs) for call in calls])}"
        )
        if last.error or self.changed_for_good or label in self._deaths:
            return ""
        self._begin(label)
        try:
            with self._defaults():
                seed_all(_SEED)
                for call in before:  # the state that the last call begins with
                    self._call(call.method, call.inputs)
                program, reference = (
                    self._programs[last.method],
                    self._references[last.method],
                )
                arguments = program, reference, last.inputs, self._root
                return "; ".join(
                    filter(None, call_all("explain_departure", *arguments))
                )
        except Exception as problem:  # it must not hide the departure
            log_traceback(problem)
            return ""
        finally:
            self._state.restore()


def _generate_sets(
    program: ExportedProgram, examples: Sequence[InputSet]
) -> list[InputSet]:
    """Return random input sets of several sizes, then zeros and large values."""
    sets = generate_inputs(program, _GENERATED, _SEED, examples)
    generator = Generator(program, _SEED, examples)
    for number, (note, fill) in enumerate(_EXTREMES, len(sets)):
        sets.append(generator.set(number, 2, fill, note))
    return sets


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
