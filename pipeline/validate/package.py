"""Proves a package against the programs that it came from, by running both.

Both run on devices (pipeline/devices): a method on one that can run its delegates, its source on
the reference device. Every method is loaded, its declared inputs and outputs are compared with the
source's, and it runs on real values: the examples and generated input sets, in sequence where it
has state. A failure is data: it fails its method, and the other methods still run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from pipeline.devices.interface import Computation, DeviceError, PackageFiles
from pipeline.devices.registry import devices
from pipeline.devices.session import INTERPRETER, REFERENCE, Session
from pipeline.program.inputs import InputSet
from pipeline.store.errors import PipelineError
from pipeline.validate.limits import LIMITS
from pipeline.validate.method import Keep, Settings, Trial
from pipeline.validate.metrics import compare
from pipeline.validate.results import LACKS, Failure, MethodValidation, Run, Validation
from pipeline.validate.sequences import rounds, usual_sequences

_AMOUNTS = ("inputs", "seed", "steps")


def validate_package(
    pte: Path,
    ptds: Sequence[Path],
    programs: Mapping[str, ExportedProgram],
    examples: Mapping[str, Sequence[InputSet]],
    settings: Settings,
    constant_methods: Mapping[str, object],
    not_run: Mapping[str, str] | None = None,
    lines: Mapping[str, Mapping[int, str]] | None = None,
    cases: Mapping[str, Sequence[str]] | None = None,
    sequences: Sequence[Sequence[str]] | None = (),
    keep: Keep | None = None,
) -> Validation:
    """Validates every method that a package should have, and that it has no other.

    The programs are left as they are, state included. What fails is in the result; nothing is
    raised for it.

    Args:
        not_run: by method, why this machine can't run it. Only what it declares is compared.
        lines: by method and debug handle, the line of the source that a delegate's instruction
            comes from, for failures.
        cases: by method, which inputs are generated beside random ones (cases.py).
        sequences: methods that share state, in the order in which they are called on one opened
            package; None for the usual ones, by the programs' buffers.
        keep: is given each call from the initial state, also of methods that are not run.
    """
    limits = {name: getattr(settings, name) for name in (*LIMITS, *_AMOUNTS)}
    files = PackageFiles.of(pte, ptds)
    try:
        present = Session(files).methods()
    except PipelineError as error:
        return Validation(pte.name, (), (str(error),), limits)
    methods: list[MethodValidation | Trial] = []
    trials: dict[str, Trial] = {}
    for name in [*programs, *constant_methods]:
        if name not in present:
            what = f"{LACKS}; it has {', '.join(present) or 'none'}"
            methods.append(MethodValidation(name, failures=(Failure(name, what),)))
        elif name in programs:
            reason = (not_run or {}).get(name, "")
            own = (lines or {}).get(name, {})
            trial = Trial(name, programs[name], lambda: Session(files), settings, reason, own)
            trial.keep = keep
            trial.cases = (cases or {}).get(name, ())
            trial.run(examples.get(name, ()))
            trials[name] = trial
            methods.append(trial)
        else:
            methods.append(_validate_constant(name, constant_methods[name], Session(files)))
    for name in present:
        if name not in programs and name not in constant_methods:
            failure = Failure(name, "the package has this method, its source has not")
            methods.append(MethodValidation(name, "unknown", failures=(failure,)))
    if sequences is None:
        sequences = usual_sequences(programs, settings.steps)
    for sequence in sequences:
        _run_together(sequence, trials, files)
    records = tuple(m.result() if isinstance(m, Trial) else m for m in methods)
    sentences = tuple(failure.sentence for method in records for failure in method.failures)
    return Validation(pte.name, records, sentences, limits)


def _run_together(
    sequence: Sequence[str], trials: Mapping[str, Trial], files: PackageFiles
) -> None:
    """Calls methods one after another on state that they share, in a package just opened, on each
    of some inputs. It runs on the interpreter: the bindings of ExecuTorch's runtime give each
    method memory of its own. Where a method failed before it ran, nothing is called."""
    if any(name not in trials or not trials[name].sets for name in sequence):
        return
    trial = {name: trials[name] for name in dict.fromkeys(sequence)}
    first = trial[sequence[0]]
    named: dict[str, int] = {}
    for calls in rounds(sequence, {name: each.sets for name, each in trial.items()}):
        name = f"{' > '.join(sequence)} from {calls[0][1].origin}"
        named[name] = named.get(name, 0) + 1
        name += ", again" if named[name] > 1 else ""
        package = Session(files, INTERPRETER)
        try:
            package.load_together([*trial])
            sources = _sources_together({m: each.program for m, each in trial.items()})
        except DeviceError as error:  # ExecuTorch's runtime, which loaded them, may know more
            first.skipped.append((name, f"the interpreter: {error.reason}"))
            return
        except Exception as error:
            first.stopped(error)
            return
        done: list[tuple[str, InputSet]] = []
        for method, each in trial.items():
            each.take(package, sources[method], done)
        for step, (method, inputs) in enumerate(calls):
            if not trial[method].call(inputs, step + 1, name):
                break


def _sources_together(programs: Mapping[str, ExportedProgram]) -> dict[str, Computation]:
    """The source programs, with the initial state that they share."""
    reference = devices().get(REFERENCE)
    lowered = [reference.lower(method, programs) for method in programs]
    return dict(zip(programs, reference.compile_together(lowered), strict=True))


def _validate_constant(method: str, value: object, package: Session) -> MethodValidation:
    """A constant method returns the leaves of its value, exactly."""
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
