"""Runs a method on a device that records times, and attributes the times to operators and lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from executorch.exir import schema
from torch.fx import Node

from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.package_data import read_package
from pipeline.features.native.device import LoadedMethods, NativeDevice
from pipeline.features.native.etdump import read_runs
from pipeline.features.native.process import TIMES
from pipeline.features.native.profile_rows import (
    InstructionFacts,
    ProfileRow,
    make_rows,
    make_trace,
)
from pipeline.plan.actions import Action
from pipeline.plan.kinds.validate import ValidateInputs
from pipeline.program.graphs import iter_nodes
from pipeline.program.inputs import InputSet
from pipeline.program.module_paths import innermost_module
from pipeline.program.operator_libraries import load_libraries
from pipeline.program.random_inputs import generate_inputs
from pipeline.program.signature import flatten
from pipeline.program.source_lines import source_line
from pipeline.run.build.planned import guard_sources
from pipeline.run.prove.subject import Subject
from pipeline.store.errors import PipelineError
from pipeline.store.source_line import SourceLine
from pipeline.store.workspace import Workspace
from pipeline.validate.sequences import rounds, usual_sequences

# The backend of instructions outside delegates: the runtime's kernels, portable or optimized.
_KERNELS = "kernel"


class Profile:
    """The profile of a method on a device: the ETDump, its rows, and the trace for Perfetto.
    `milliseconds` is the median time of a call."""

    def __init__(
        self,
        etdump: bytes,
        rows: Sequence[ProfileRow],
        trace: Mapping[str, Any],
        milliseconds: float,
    ) -> None:
        self.etdump = etdump
        self.rows = rows
        self.trace = trace
        self.milliseconds = milliseconds


def profile_method(
    action: Action[ValidateInputs],
    workspace: Workspace,
    method: str,
    device: str,
    repeats: int,
) -> Profile:
    """Call a method `repeats` times on the first inputs of its validation, and record the calls.

    Methods that share its state and precede it in their sequence are called first.

    Raises:
        PipelineError: the device can't run the method.
    """
    load_libraries(action.libraries, workspace.root)
    title = f"{action.package}/{method} on {device}"
    with guard_sources(list(action.inputs.sources.values()), workspace.store):
        subject = Subject.load(action, workspace)
        files = PackageFiles.of(subject.pte, subject.ptds)
        runner = NativeDevice(device, workspace.root, subject.settings.timeout)
        try:
            etdump, times = _record(runner, files, subject, method, repeats)
        except DeviceError as error:
            raise PipelineError(f"{title}: {error}") from error
        finally:
            runner.close(files)
        instructions = describe_instructions(subject, files, method)
    runs = read_runs(etdump)
    if not runs:
        raise PipelineError(f"{title}: its runner recorded no times")
    facts = {"method": f"{action.package}/{method}", "device": device}
    trace = make_trace(
        runs, instructions, title, facts | {"files": subject.key["files"]}
    )
    return Profile(etdump, make_rows(runs, instructions), trace, median(times))


def _record(
    device: NativeDevice,
    files: PackageFiles,
    subject: Subject,
    method: str,
    repeats: int,
) -> tuple[bytes, list[float]]:
    """Return the ETDump of the calls and the milliseconds of each.

    Raises DeviceError if the device can't run them.
    """
    sequence = find_sequence(subject, method)
    members = list(dict.fromkeys(sequence))
    sets = {name: _find_inputs(subject, name) for name in members}
    loaded = device.load_traced(files, members, TIMES)
    before, (_, inputs) = _split(rounds(sequence, sets)[0], method)
    for name, earlier in before:
        loaded.call(name, flatten(subject.programs[name], earlier))
    values = flatten(subject.programs[method], inputs)
    return _call(loaded, method, values, repeats)


def _call(
    loaded: LoadedMethods, method: str, values: Sequence[Any], repeats: int
) -> tuple[bytes, list[float]]:
    # The trace starts after the warm-up, so it contains no earlier call.
    _, times, _ = loaded.call(method, values, repeats, warm_up=1)
    etdump, _ = loaded.take_trace()
    return etdump, times


def find_sequence(subject: Subject, method: str) -> Sequence[str]:
    """Return the first sequence with shared state that calls a method, or just the method."""
    sequences = subject.key["sequences"]
    if sequences is None:
        sequences = usual_sequences(subject.programs, subject.settings.steps)
    for sequence in sequences:
        if method in sequence:
            return list(sequence)
    return [method]


def _split(
    calls: Sequence[tuple[str, InputSet]], method: str
) -> tuple[Sequence[tuple[str, InputSet]], tuple[str, InputSet]]:
    """Return the calls before the first call of a method, and that call."""
    number = [name for name, _ in calls].index(method)
    return calls[:number], calls[number]


def _find_inputs(subject: Subject, method: str) -> list[InputSet]:
    """Return a method's examples, or one input set generated as for a validation if it has none."""
    if subject.examples.get(method):
        return subject.examples[method]
    settings = subject.settings
    shapes = subject.listed_shapes.get(method)
    return generate_inputs(subject.programs[method], 1, settings.seed, [], shapes)


def describe_instructions(
    subject: Subject, files: PackageFiles, method: str
) -> dict[int, InstructionFacts]:
    """Return the operator, backend and source of a method's instructions, keyed by index.

    Raises PipelineError if the package can't be read.
    """
    plan = read_package(files).plans[method]
    lines = _InstructionLines(subject, method)
    facts = {}
    for index, instruction in enumerate(plan.chains[0].instructions):
        call = instruction.instr_args
        if isinstance(call, schema.KernelCall):
            operator = plan.operators[call.op_index]
            name = ".".join(filter(None, (operator.name, operator.overload)))
            facts[index] = InstructionFacts(
                name, _KERNELS, lines.find_line(index), lines.find_module(index)
            )
        elif isinstance(call, schema.DelegateCall):
            backend = plan.delegates[call.delegate_index].id
            where = lines.find_partition(index, call.delegate_index)
            facts[index] = InstructionFacts(
                "", backend, where, lines.find_module(index)
            )
    return facts


class _InstructionLines:
    """Finds the source lines and modules of a model that a method's instructions come from."""

    def __init__(self, subject: Subject, method: str) -> None:
        lowered = subject.load_lowered(method)
        self._instructions = lowered.instructions
        self._origins = lowered.origins
        self._nodes: list[Node] = list(iter_nodes(subject.programs[method]))
        self._root = subject.workspace.root

    def find_line(self, index: int) -> str:
        """Return the source line of an instruction outside delegates, or "" if it is unknown."""
        lines = self._find_lines(self._find_places(index))
        return next((line.where for line in lines), "")

    def find_module(self, index: int) -> str:
        """Return the innermost module that contains all source nodes of an instruction, or ""."""
        nodes = self._find_nodes(self._find_places(index))
        paths = [innermost_module(node).split(".") for node in nodes]
        common = []
        for parts in zip(*paths, strict=False):
            if len({*parts}) > 1:
                break
            common.append(parts[0])
        return ".".join(common)

    def find_partition(self, index: int, number: int) -> str:
        """Return a delegate's partition number, with its source lines if all are in one file."""
        text = f"partition {number}"
        lines = list(self._find_lines(self._find_places(index)))
        if len({line.file for line in lines}) != 1:
            return text
        numbers = sorted(line.line for line in lines)
        first, last = numbers[0], numbers[-1]
        span = f"{first}-{last}" if first != last else f"{first}"
        return f"{text} ({lines[0].file}:{span})"

    def _find_places(self, index: int) -> list[int]:
        """Return the places of an instruction's nodes in the lowered program."""
        if index in self._instructions.node_places:
            return [self._instructions.node_places[index]]
        places: list[int] = []
        for call in self._instructions.delegates:
            if call.index == index:
                places += call.places
        return places

    def _find_nodes(self, places: Sequence[int]) -> Iterator[Node]:
        """Yield the source nodes that nodes of the lowered program come from."""
        for place in places:
            origin = place if self._origins is None else self._origins.get(place)
            if origin is not None:
                yield self._nodes[origin]

    def _find_lines(self, places: Sequence[int]) -> Iterator[SourceLine]:
        for node in self._find_nodes(places):
            line = source_line(node, self._root)
            if line is not None:
                yield line
