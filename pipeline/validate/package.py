"""Validates a package against the programs that it came from, by running both.

A method runs on a device that has its delegates (pipeline/devices), its source in eager mode. Every
method is loaded, its declared inputs and outputs are compared with the source's, and it runs on
real values: the examples and generated input sets, in sequence if it has state. A failure is data:
it fails its method, and the other methods still run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from pipeline.config.validation import ValidateConfig
from pipeline.devices.bindings import find_unpassable
from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.session import Session
from pipeline.moments import call_all
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import Shapes
from pipeline.program.signature import signature
from pipeline.program.training import MISCOUNTED, trained_method, training_methods
from pipeline.report.method_records import UNASKED
from pipeline.store.errors import PipelineError
from pipeline.validate.budget import Budget
from pipeline.validate.interface import NarrowedInput
from pipeline.validate.limits import LIMITS
from pipeline.validate.method import MethodValidator
from pipeline.validate.method_calls import Keep, Watch
from pipeline.validate.method_result import MethodValidation
from pipeline.validate.metrics import compare
from pipeline.validate.references import Lane, OpenLane
from pipeline.validate.results import Validation
from pipeline.validate.runs import JudgedCall
from pipeline.validate.sequences import usual_sequences

_AMOUNTS = ("inputs", "seed", "steps")
_MOST_SHOWN = 8  # values of a tensor in a message


def validate_package(
    pte: Path,
    ptds: Sequence[Path],
    programs: Mapping[str, ExportedProgram],
    examples: Mapping[str, Sequence[InputSet]],
    settings: ValidateConfig,
    constant_methods: Mapping[str, object],
    not_run: Mapping[str, str] | None = None,
    lines: Mapping[str, Mapping[int, str]] | None = None,
    cases: Mapping[str, Sequence[str]] | None = None,
    sequences: Sequence[Sequence[str]] | None = (),
    keep: Keep | None = None,
    quantized: Mapping[str, ExportedProgram] | None = None,
    crashes: Mapping[str, str] | None = None,
    budget: Budget | None = None,
    selected: Collection[str] | None = None,
    describe_instruction: Callable[[str, int], str] = lambda method, instruction: "",
    divergences: Mapping[str, str] | None = None,
    narrowed: Mapping[str, Sequence[NarrowedInput]] | None = None,
    without_examples: Collection[str] = (),
    shapes: Mapping[str, Shapes] | None = None,
    open_lane: OpenLane = Lane,
    watchers: Sequence[Watch] = (),
) -> Validation:
    """Validate every method that a package should have, and that it has no others.

    The programs are left unchanged, including their state. Failures are part of the result and not
    raised.

    Args:
        not_run: by method, why this machine can't run it; only its declarations are compared.
        lines: by method and debug handle, the source line that a delegate's instruction comes from,
            for failures.
        cases: by method, the kinds of inputs to generate in addition to random ones
            (`InputSet.case`).
        sequences: methods that share state, in the order in which to call them on one opened
            package; None for the default, derived from the programs' buffers.
        keep: receives each call from the initial state, also for methods that are not run.
        quantized: the quantized programs of some methods, which they are held to as well: the
            difference allowed between a float program and its int8 package would hide a wrong
            scale.
        crashes: by method, how it crashed the process that ran it; it then fails without being run.
            The entry for "" is about opening the package.
        budget: the time for the validation; a call that has begun is completed. None for no limit.
        selected: the methods to validate, by default all; others get no verdict.
        describe_instruction: returns the source line that an instruction of a method comes from, or
            "".
        divergences: by method, how its program with observers differs from the float program.
        narrowed: by method, the sizes whose range was narrowed by lowering.
        without_examples: the methods whose only examples are the arguments of their export.
        shapes: by method, the only input shapes that the package accepts, if it lists some.
        open_lane: opens the objects that run programs, for example one that caches their outputs.
        watchers: receive each call that was judged.
    """
    kept_to = {name: getattr(settings, name) for name in (*LIMITS, *_AMOUNTS)}
    budget = budget or Budget()
    files = PackageFiles.of(pte, ptds)
    crashes = crashes or {}
    if "" in crashes:  # even its list of methods can't be read
        return Validation(pte.name, (), (f"{pte.name}: {crashes['']}",), kept_to)
    try:
        present = Session(files).methods()
    except PipelineError as error:
        return Validation(pte.name, (), (str(error),), kept_to)
    constants = {**constant_methods}
    for name, program in programs.items():
        constants |= training_methods(name, program)
    methods: list[MethodValidation] = []
    validators: dict[str, MethodValidator] = {}
    for name in dict.fromkeys((*programs, *constants, *present)):
        reason = crashes.get(name) or (not_run or {}).get(name, "")
        if not reason and name in programs:
            reason = find_unpassable(
                (a.name, a.value) for a in signature(programs[name])
            )
        result = MethodValidation(name, not_run=reason)
        methods.append(result)
        if selected is not None and name not in selected:
            result.kind = "program" if name in programs else "constant"
            result.not_run = ""
            result.left_out = [UNASKED]
            continue
        if name in crashes:
            result.fail(crashes[name])
        if name in programs and name in present:
            validators[name] = MethodValidator(
                result,
                programs[name],
                files,
                settings,
                lines=(lines or {}).get(name, {}),
                describe_instruction=partial(describe_instruction, name),
                cases=(cases or {}).get(name, ()),
                keep=keep,
                quantized=(quantized or {}).get(name),
                diverges=(divergences or {}).get(name, ""),
                narrowed=(narrowed or {}).get(name, ()),
                shapes=(shapes or {}).get(name),
                budget=budget,
                has_examples=name not in without_examples,
                open_lane=open_lane,
                watchers=watchers,
            )
            validators[name].start(
                examples.get(name, ()), is_first=len(validators) == 1
            )
        else:
            _validate_other(result, present, constants, files)
    # Worst first, so that if the budget runs out, calls of passing methods are left out.
    for validator in sorted(
        validators.values(), key=lambda validator: validator.result.badness
    ):
        validator.finish()
    if sequences is None:
        sequences = usual_sequences(programs, settings.steps)
    for sequence in sequences:
        _run_together(sequence, validators, files)
    for validator in validators.values():
        validator.conclude()
    return Validation(pte.name, tuple(methods), (), kept_to)


def _run_together(
    sequence: Sequence[str],
    validators: Mapping[str, MethodValidator],
    files: PackageFiles,
) -> None:
    """Let a feature call methods in sequence on the state that they share.

    Calls nothing if one of the methods failed before it ran.
    """
    members = {}
    for name in dict.fromkeys(sequence):
        if name not in validators or not validators[name].sets:
            return
        members[name] = validators[name]
    if not any(call_all("call_together", sequence, members, files)):
        reason = 'this installation has no feature "locating"'
        members[sequence[0]].result.skipped.append((" > ".join(sequence), reason))


def _validate_other(
    result: MethodValidation,
    present: Sequence[str],
    constants: Mapping[str, object],
    files: PackageFiles,
) -> None:
    """Check a method that the package lacks, that its source lacks, or that is constant.

    A constant method must return exactly the leaves of its value.
    """
    if result.method not in present:
        method_names = ", ".join(present) or "none"
        result.fail(
            f"the package lacks this method; it has {method_names}", about="lacking"
        )
        return
    if result.method not in constants:
        result.kind = "unknown"
        result.fail("the package has this method, but its source does not")
        return
    result.kind = "constant"
    if result.not_run:
        return
    value = constants[result.method]
    expected = pytree.tree_leaves(value)
    try:
        actual = Session(files).run(result.method, ())
    except DeviceError as error:
        result.fail(error.reason)
        return
    pairs = zip(actual, expected, strict=False)
    errors = tuple(compare(value, reference) for value, reference in pairs)
    if len(actual) != len(expected) or any(e.mismatch or e.max_abs for e in errors):
        is_trained = trained_method(result.method) != result.method
        hint = MISCOUNTED if is_trained else ""
        returned = actual[0] if len(actual) == 1 else actual
        result.fail(
            f"returns {_describe(returned)}, must return {_describe(value)}{hint}"
        )
    result.runs.append(JudgedCall("constant", errors))


def _describe(value: object) -> str:
    """Format a constant's value in one line, without the values of long tensors."""
    if isinstance(value, list):
        return f"[{', '.join(map(_describe, value))}]"
    if isinstance(value, torch.Tensor) and value.numel() > _MOST_SHOWN:
        return (
            f"a {str(value.dtype).removeprefix('torch.')} tensor of {list(value.shape)}"
        )
    if isinstance(value, torch.Tensor):
        return repr(value.tolist())
    return repr(value)
