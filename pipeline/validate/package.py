"""Validates a package against the programs that it came from, by running both.

A method runs on a device that has its delegates (pipeline/devices), its source in eager mode. Every
method is loaded, its declared inputs and outputs are compared with the source's, and it runs on
real values: the examples and generated input sets, in sequence where it has state. A failure is
data: it fails its method, and the other methods still run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from pipeline.config.validation import Limits, ValidateConfig
from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.session import INTERPRETER, Session
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.store.errors import PipelineError
from pipeline.validate.limits import LIMITS
from pipeline.validate.method import Keep, MethodValidator
from pipeline.validate.metrics import compare
from pipeline.validate.results import LACKS, Failure, MethodValidation, Run, Validation
from pipeline.validate.sequences import rounds, usual_sequences

_AMOUNTS = ("inputs", "seed", "steps")


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
    limits: Mapping[str, Limits] | None = None,
) -> Validation:
    """Validate every method that a package should have, and that it has no other.

    The programs are left as they are, state included. What fails is in the result; nothing is
    raised for it.

    Args:
        not_run: by method, why this machine can't run it; only its declarations are compared.
        lines: by method and debug handle, the line of the source that a delegate's instruction
            comes from, for failures.
        cases: by method, the kinds of inputs that are generated beside random ones (cases.py).
        sequences: methods that share state, in the order in which they are called on one opened
            package; None for the usual ones, by the programs' buffers.
        keep: is given each call from the initial state, also of methods that are not run.
        limits: the limits of each method, in place of those of `settings`.
    """
    kept_to = {name: getattr(settings, name) for name in (*LIMITS, *_AMOUNTS)}
    files = PackageFiles.of(pte, ptds)
    try:
        present = Session(files).methods()
    except PipelineError as error:
        return Validation(pte.name, (), (str(error),), kept_to)
    methods: list[MethodValidation | MethodValidator] = []
    validators: dict[str, MethodValidator] = {}
    for name in [*programs, *constant_methods]:
        if name not in present:
            what = f"{LACKS}; it has {', '.join(present) or 'none'}"
            methods.append(MethodValidation(name, failures=(Failure(name, what),)))
        elif name in programs:
            validator = MethodValidator(
                name,
                programs[name],
                lambda: Session(files),
                settings,
                settings.select_limits(name) if limits is None else limits[name],
                not_run=(not_run or {}).get(name, ""),
                lines=(lines or {}).get(name, {}),
                cases=(cases or {}).get(name, ()),
                keep=keep,
            )
            validator.run(examples.get(name, ()))
            validators[name] = validator
            methods.append(validator)
        else:
            methods.append(_validate_constant(name, constant_methods[name], Session(files)))
    for name in present:
        if name not in programs and name not in constant_methods:
            failure = Failure(name, "the package has this method, its source has not")
            methods.append(MethodValidation(name, "unknown", failures=(failure,)))
    if sequences is None:
        sequences = usual_sequences(programs, settings.steps)
    for sequence in sequences:
        _run_together(sequence, validators, files)
    records = tuple(m.result() if isinstance(m, MethodValidator) else m for m in methods)
    sentences = tuple(failure.sentence for method in records for failure in method.failures)
    return Validation(pte.name, records, sentences, kept_to)


def _run_together(
    sequence: Sequence[str], validators: Mapping[str, MethodValidator], files: PackageFiles
) -> None:
    """Call methods one after another on state that they share, in a package just opened.

    It runs on the interpreter: the bindings of ExecuTorch's runtime give each method memory of its
    own. Where a method failed before it ran, nothing is called.
    """
    if any(name not in validators or not validators[name].sets for name in sequence):
        return
    own = {name: validators[name] for name in dict.fromkeys(sequence)}
    first = own[sequence[0]]
    times: Counter[str] = Counter()
    for calls in rounds(sequence, {name: each.sets for name, each in own.items()}):
        name = f"{' > '.join(sequence)} from {calls[0][1].origin}"
        times[name] += 1
        name += ", again" if times[name] > 1 else ""
        package = Session(files, INTERPRETER)
        try:
            package.load_together([*own])
            sources = Source.with_common_state({m: each.program for m, each in own.items()})
        except DeviceError as error:  # ExecuTorch's runtime, which loaded them, may know more
            first.skipped.append((name, f"the interpreter: {error.reason}"))
            return
        except Exception as error:
            first.fail_for(error)
            return
        done: list[tuple[str, InputSet]] = []
        for method, each in own.items():
            each.continue_on(package, sources[method], done)
        for step, (method, inputs) in enumerate(calls, 1):
            if not own[method].call(inputs, step, name):
                break


def _validate_constant(method: str, value: object, package: Session) -> MethodValidation:
    """Check that a constant method returns the leaves of its value, exactly."""
    expected = pytree.tree_leaves(value)
    try:
        actual = package.run(method, ())
    except DeviceError as error:
        return MethodValidation(method, "constant", failures=(Failure(method, error.reason),))
    errors = tuple(compare(a, e) for a, e in zip(actual, expected, strict=False))
    failures = []
    if len(actual) != len(expected) or any(e.mismatch or e.max_abs for e in errors):
        shown = actual[0] if len(actual) == 1 else actual
        failures.append(Failure(method, f"returns {shown}, must return {value}"))
    run = Run("constant", errors)
    return MethodValidation(method, "constant", runs=(run,), failures=tuple(failures))
