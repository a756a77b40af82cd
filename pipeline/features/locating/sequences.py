"""Calls methods that share state in sequence, on the interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.session import INTERPRETER, Session
from pipeline.moments import call_all
from pipeline.program.eager import (
    common_buffers,
    describe_used_buffers,
    find_effects,
)
from pipeline.program.inputs import InputSet
from pipeline.validate.conclusions import QUANTIZATION_UNJUDGED
from pipeline.validate.method import MethodValidator
from pipeline.validate.references import References
from pipeline.validate.sequences import rounds, usual_sequences


def call_together(
    sequence: Sequence[str],
    members: Mapping[str, MethodValidator],
    files: PackageFiles,
) -> bool:
    """Call methods in sequence on their shared state, in a freshly opened package; return True.

    The interpreter runs them, because the bindings of ExecuTorch's runtime give each method memory
    of its own.

    Args:
        members: the methods of the sequence.
    """
    first = members[sequence[0]]
    budget = first.budget
    programs = {name: member.program for name, member in members.items()}
    if tuple(sequence) in usual_sequences(programs, first.settings.steps):
        sequence = add_readers(sequence, programs)
    times: Counter[str] = Counter()
    for calls in rounds(
        sequence, {name: member.sets for name, member in members.items()}
    ):
        # The last round repeats the first: state that a call leaves behind must not change it.
        name = f"{' > '.join(sequence)} from {calls[0][1].origin}"
        times[name] += 1
        if times[name] > 1:
            name += ", again"
        if budget.spent:
            first.result.left_out.append(name)
            continue
        try:
            package = Session(files, INTERPRETER)
            _prepare_together(sequence, members, package)
        except DeviceError as error:
            # ExecuTorch's runtime, which loaded the methods, may give a better reason.
            first.result.skipped.append((name, f"the interpreter: {error.reason}"))
            return True
        except Exception as error:
            first.fail_for(error)
            return True
        for step, (method, inputs) in enumerate(calls, 1):
            if budget.spent:
                first.result.left_out.append(f"{name}, from call {step} on")
                break
            if not members[method].call(inputs, step, name):
                break
    return True


def add_readers(
    sequence: Sequence[str], programs: Mapping[str, ExportedProgram]
) -> list[str]:
    """Add calls to the end of a sequence, so that what any method writes is read.

    Otherwise, no comparison would show a wrong value that the last method of a model writes for the
    others, if its own outputs don't depend on it.
    """
    extended = [*sequence]
    for buffer, names in common_buffers(programs).items():
        readers = [name for name in names if _returns(programs[name], buffer)]
        for name in names:
            if buffer not in find_effects(programs[name]).state or name in readers:
                continue
            last = len(extended) - extended[::-1].index(name)
            if readers and not {*readers} & {*extended[last:]}:
                extended.append(readers[0])
    return extended


def _returns(program: ExportedProgram, buffer: str) -> bool:
    """Return whether a program returns anything that it computes from a buffer."""
    specs = program.graph_signature
    dependent: set[Node] = set()
    for node in program.graph.nodes:
        reads = specs.inputs_to_buffers.get(node.name) == buffer
        if reads or not dependent.isdisjoint(node.all_input_nodes):
            dependent.add(node)
    names = {node.name for node in dependent}
    return not names.isdisjoint(map(str, specs.user_outputs))


def _prepare_together(
    sequence: Sequence[str], members: Mapping[str, MethodValidator], package: Session
) -> None:
    """Load methods that share state, and give their sources the same shared state.

    Raises:
        DeviceError: the methods can't be loaded.
        Exception: anything that making the sources raises.
    """
    package.load_together([*members])
    programs = {}
    quantized = {}
    open_lane = next(member.open_lane for member in members.values())
    for method, member in members.items():
        programs[method] = member.program
        if member.quantized is not None:
            quantized[method] = member.quantized
    rounding = any(member.measures_rounding for member in members.values())
    references = References.make(programs, quantized, rounding, open_lane)
    for method, writers in find_quantized_writers(programs, quantized).items():
        last = len(sequence) - [*reversed(sequence)].index(method)
        if not {*writers}.isdisjoint(sequence[:last]):
            _measure_loss(members[method], writers)
    calls_so_far: list[tuple[str, InputSet]] = []
    for method, member in members.items():
        member.package = package
        member.references = references[method]
        member.calls = calls_so_far
        later_calls = sequence[sequence.index(method) + 1 :]
        member.is_observed |= any(later != method for later in later_calls)


def find_quantized_writers(
    programs: Mapping[str, ExportedProgram], quantized: Mapping[str, ExportedProgram]
) -> dict[str, list[str]]:
    """Return, by float method, the quantized methods on whose state its own calls may depend.

    The state may pass through other float methods, which compute their state from it.
    """
    lowered = {**programs, **quantized}
    changed = {name: find_effects(program).state for name, program in lowered.items()}
    writers = {method: {method} & {*quantized} for method in programs}
    for _ in programs:  # state can pass through each method once
        for method in programs.keys() - quantized.keys():
            used = describe_used_buffers(programs[method])
            for writer, state in changed.items():
                if not used.keys().isdisjoint(state):
                    writers[method] |= writers[writer]
    by_reader = {}
    for method, names in writers.items():
        if names and method not in quantized:
            by_reader[method] = [name for name in programs if name in names]
    return by_reader


def _measure_loss(member: MethodValidator, writers: Sequence[str]) -> None:
    """Compare a float method with its float program, too, for the loss that others cause."""
    judge = member.judge
    if judge.quantization is None:
        facts = (judge, member.limits, "", member.program)
        judge.quantization = next(call_all("judge_quantization", *facts), None)
    if judge.quantization is None:
        member.result.quantization = QUANTIZATION_UNJUDGED
    else:
        judge.quantization.add_writers(writers)
