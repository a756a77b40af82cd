"""Calls methods that share state in sequence, on the interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.session import INTERPRETER, Session
from pipeline.program.inputs import InputSet
from pipeline.validate.method import MethodValidator
from pipeline.validate.references import References
from pipeline.validate.sequences import rounds


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
            _prepare_together(members, package)
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


def _prepare_together(members: Mapping[str, MethodValidator], package: Session) -> None:
    """Load methods that share state, and give their sources the same shared state.

    Raises:
        DeviceError: the methods can't be loaded.
        Exception: anything that making the sources raises.
    """
    package.load_together([*members])
    programs = {}
    quantized = {}
    rounding = []
    open_lane = next(member.open_lane for member in members.values())
    for method, member in members.items():
        programs[method] = member.program
        if member.quantized is not None:
            quantized[method] = member.quantized
        if member.measures_rounding:
            rounding.append(method)
    references = References.make(programs, quantized, rounding, open_lane)
    calls_so_far: list[tuple[str, InputSet]] = []
    for method, member in members.items():
        member.package = package
        member.references = references[method]
        member.calls = calls_so_far
        member.is_observed = len(members) > 1
