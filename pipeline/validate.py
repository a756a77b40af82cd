"""Proves a package against the programs that it came from, by running both.

Both run on devices (pipeline/devices): a method on one that can run its delegates, its source on
the reference device. Every method is loaded, its declared inputs and outputs are compared with the
source's, and it runs on real values: the examples and generated input sets, in sequence where it
has state. A failure is data: it fails its method, and the other methods still run.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from pipeline.devices.interface import DeclaredTensor, DeviceError, PackageFiles
from pipeline.devices.registry import devices
from pipeline.devices.session import REFERENCE, Session, executed
from pipeline.eager import Source
from pipeline.errors import PipelineError
from pipeline.generate import generate_inputs
from pipeline.inputs import InputSet
from pipeline.metrics import OutputError, compare, within
from pipeline.signature import bounds, check_inputs, expression, flatten, signature
from pipeline.validation import Failure, MethodValidation, Run, Validation

# Limits but for the tolerances: of which figure of an `OutputError`, and how it is called.
_FIGURES = {
    "max_mean_abs": ("mean_abs", "mean absolute error"),
    "max_p999_abs": ("p999_abs", "99.9th percentile of the absolute error"),
    "max_relative": ("relative", "relative error"),
    "min_sqnr": ("sqnr_db", "SQNR"),
    "min_cosine": ("cosine", "cosine"),
    "min_agreement": ("agreement", "agreement of the greatest values"),
}
LIMITS = ("atol", "rtol", *_FIGURES)
_AMOUNTS = ("inputs", "seed", "steps")


class Limits(Protocol):
    """An output passes where |a - e| <= atol + rtol |e| everywhere and its figures (`OutputError`)
    are at most, or at least, what is given of the others. A figure that is undefined passes."""

    @property
    def atol(self) -> float: ...
    @property
    def rtol(self) -> float: ...
    @property
    def max_mean_abs(self) -> float | None: ...
    @property
    def max_p999_abs(self) -> float | None: ...
    @property
    def max_relative(self) -> float | None: ...
    @property
    def min_sqnr(self) -> float | None: ...
    @property
    def min_cosine(self) -> float | None: ...
    @property
    def min_agreement(self) -> float | None: ...


# Takes a method, where an input set is from, its flat values and what the source gives on them.
Keep = Callable[[str, str, Sequence[Any], Sequence[Any]], None]


class Settings(Limits, Protocol):
    """Limits and amounts: `inputs` sets are generated from `seed`; a method with state is called
    `steps` times in a row; a method keeps to the limits that `of` gives."""

    @property
    def inputs(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def steps(self) -> int: ...
    def of(self, method: str) -> Limits: ...


def validate_package(
    pte: Path,
    ptds: Sequence[Path],
    programs: Mapping[str, ExportedProgram],
    examples: Mapping[str, Sequence[InputSet]],
    settings: Settings,
    constant_methods: Mapping[str, object],
    not_run: Mapping[str, str] | None = None,
    lines: Mapping[str, Mapping[int, str]] | None = None,
    keep: Keep | None = None,
) -> Validation:
    """Validates every method that a package should have, and that it has no other.

    The programs are left as they are, state included. What fails is in the result; nothing is
    raised for it.

    Args:
        not_run: by method, why this machine can't run it. Only what it declares is compared.
        lines: by method and debug handle, the line of the source that a delegate's instruction
            comes from, for failures.
        keep: is given each call from the initial state, also of methods that are not run.
    """
    limits = {name: getattr(settings, name) for name in (*LIMITS, *_AMOUNTS)}
    files = PackageFiles.of(pte, ptds)
    try:
        present = Session(files).methods()
    except PipelineError as error:
        return Validation(pte.name, (), (str(error),), limits)
    methods = []
    for name in [*programs, *constant_methods]:
        if name not in present:
            what = f"the package lacks this method; it has {', '.join(present) or 'none'}"
            methods.append(MethodValidation(name, failures=(Failure(name, what),)))
        elif name in programs:
            reason = (not_run or {}).get(name, "")
            own = (lines or {}).get(name, {})
            trial = _Trial(
                name, programs[name], lambda: Session(files), settings, reason, own, keep
            )
            methods.append(trial.result(examples.get(name, ())))
        else:
            methods.append(_validate_constant(name, constant_methods[name], Session(files)))
    for name in present:
        if name not in programs and name not in constant_methods:
            failure = Failure(name, "the package has this method, its source has not")
            methods.append(MethodValidation(name, "unknown", failures=(failure,)))
    sentences = tuple(failure.sentence for method in methods for failure in method.failures)
    return Validation(pte.name, tuple(methods), sentences, limits)


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


class _Trial:
    """One method of a package against its source program; collects what comes of it."""

    def __init__(
        self,
        method: str,
        program: ExportedProgram,
        open_package: Callable[[], Session],
        settings: Settings,
        not_run: str = "",
        lines: Mapping[int, str] | None = None,
        keep: Keep | None = None,
    ) -> None:
        self.keep = keep
        self.not_run = not_run
        self.lines = lines or {}
        self.method = method
        self.program = program
        self.open_package = open_package
        self.settings = settings
        self.limits = settings.of(method)
        self.state: tuple[str, ...] = ()
        self.examples: list[InputSet] = []
        self.runs: list[Run] = []
        self.skipped: list[tuple[str, str]] = []
        self.failures: list[Failure] = []
        self.seconds = 0.0

    def result(self, examples: Sequence[InputSet]) -> MethodValidation:
        """Where torch fails on the source itself, outside a run, that too is this method's
        failure, with its traceback on stderr."""
        try:
            self._validate(examples)
        except Exception as error:
            traceback.print_exc()
            self._fail(f"validation stopped at {type(error).__name__}: {_first_line(error)}")
        return MethodValidation(
            self.method,
            state=self.state,
            limits={name: getattr(self.limits, name) for name in LIMITS},
            runs=tuple(self.runs),
            skipped=tuple(self.skipped),
            failures=tuple(self.failures),
            not_run=self.not_run,
            seconds=self.seconds,
        )

    def _validate(self, examples: Sequence[InputSet]) -> None:
        self._begin_source()
        self.state = self.source.state
        self.package = self.open_package()
        if self.not_run:
            if self._declares_the_same():
                self._keep_expected(examples)
            return
        if not (self._loads() and self._declares_the_same()):
            return
        sets = self._input_sets(examples)
        if self.state:
            self._run_with_state(sets)
        else:
            for inputs in sets:
                self._call(inputs)
        if not self.runs and not self.failures:
            self._fail("no input set ran: give examples, or have inputs generated")

    def _begin_source(self) -> None:
        """The source program, with its initial state."""
        reference = devices().get(REFERENCE)
        lowered = reference.lower(self.method, {self.method: self.program})
        (self.computation,) = reference.compile([lowered])
        self.source: Source = self.computation.compiled

    def _fail(self, what: str, inputs: str = "", output: str = "") -> None:
        self.failures.append(Failure(self.method, what, inputs, output))

    def _reason(self, error: DeviceError) -> str:
        """Why the package failed, with the line of the source that a delegate failed at."""
        if error.debug_handle is None:
            return error.reason
        known = self.lines.get(error.debug_handle, f"debug handle {error.debug_handle}")
        return f"{error.reason}; of {known}"

    def _loads(self) -> bool:
        try:
            self.package.load(self.method)
        except DeviceError as error:
            self._fail(self._reason(error))
        return not self.failures

    def _declares_the_same(self) -> bool:
        declared = self.package.declared(self.method)
        inputs = [(f"input '{a.name}'", a.value) for a in signature(self.program)]
        for what in (
            *_differences("input", declared.inputs, inputs, self.program),
            *_differences("output", declared.outputs, self.source.outputs, self.program),
        ):
            self._fail(what)
        return not self.failures

    def _input_sets(self, examples: Sequence[InputSet]) -> list[InputSet]:
        """The examples that fit the source's signature, then the generated sets."""
        for inputs in examples:
            try:
                check_inputs(self.program, inputs, self.method)
                self.examples.append(inputs)
            except PipelineError as error:
                prefix = f"{self.method}: {inputs.origin}: "
                for line in str(error).splitlines():
                    self._fail(line.removeprefix(prefix), inputs.origin)
        count, seed = self.settings.inputs, self.settings.seed
        return self.examples + generate_inputs(self.program, count, seed, self.examples)

    def _run_with_state(self, sets: Sequence[InputSet]) -> None:
        """A sequence of `steps` calls from each set on, going on with the sets that follow it;
        then the first sequence again. Each begins with the initial state."""
        sequences = [(number, inputs.origin) for number, inputs in enumerate(sets)]
        sequences += [(number, f"{origin}, again") for number, origin in sequences[:1]]
        for number, name in sequences:
            self.package = self.open_package()
            self._begin_source()
            for step in range(self.settings.steps):
                if not self._call(sets[(number + step) % len(sets)], step + 1, name):
                    break

    def _keep_expected(self, examples: Sequence[InputSet]) -> None:
        """What the source gives, for a device that can run what this machine can't."""
        for inputs in self._input_sets(examples) if self.keep is not None else ():
            self.source.reset()
            try:
                self._keep(inputs, executed(self.computation, flatten(self.program, inputs)))
            except DeviceError as error:
                self.skipped.append((inputs.origin, error.reason))

    def _keep(self, inputs: InputSet, expected: Sequence[Any]) -> None:
        if self.keep is not None:
            self.keep(self.method, inputs.origin, flatten(self.program, inputs), expected)

    def _call(self, inputs: InputSet, step: int = 0, sequence: str = "") -> bool:
        """Whether both sides ran, so that a sequence can go on."""
        where = f"{inputs.origin} (call {step} from {sequence})" if step else inputs.origin
        try:
            expected = executed(self.computation, flatten(self.program, inputs))
        except DeviceError as error:
            if inputs in self.examples:
                self._fail(f"the source program itself fails: {error.reason}", where)
            else:
                self.skipped.append((where, error.reason))
            return False
        try:
            started = time.perf_counter()
            actual = self.package.run(self.method, flatten(self.program, inputs))
            self.seconds += time.perf_counter() - started
        except DeviceError as error:
            self._fail(self._reason(error), where)
            return False
        self._judge(actual, expected, Run(inputs.origin, (), step, sequence), where)
        if step <= 1:  # others go on from a state that a test case can't hold
            self._keep(inputs, expected)
        return True

    def _judge(self, actual: list[Any], expected: list[Any], run: Run, where: str) -> None:
        errors = tuple(compare(a, e) for a, e in zip(actual, expected, strict=True))
        self.runs.append(replace(run, outputs=errors))
        hint = ""
        if run.step == 1 and self.source.nonzero:
            names = ", ".join(self.source.nonzero)
            hint = f"; {names} starts with other values than zeros, which a package holds only"
            hint += " where InitializedMutableBufferPass names the buffer"
        for (name, _), error, a, e in zip(
            self.source.outputs, errors, actual, expected, strict=True
        ):
            for what in _excesses(error, a, e, self.limits):
                self._fail(what + hint, where, name)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _excesses(error: OutputError, actual: Any, expected: Any, limits: Limits) -> Iterator[str]:
    """What is wrong with an output, each with its figure and its limit."""
    if error.mismatch is not None:
        yield error.mismatch
        return
    worst = within(error, actual, expected, limits.atol, limits.rtol)
    at = f" at {list(worst.index)}" if worst.index else ""
    values = f"({worst.actual:.6g}, must be {worst.expected:.6g})"
    if error.disagreeing:
        count = f"{error.disagreeing} value{'s' if error.disagreeing > 1 else ''}"
        yield f"{count} NaN or infinite on one side only, as{at} {values}"
        return
    if not worst.ok:
        distance = abs(worst.actual - worst.expected)
        yield f"absolute error {distance:.3g}{at} {values} exceeds {worst.allowed:.3g}"
    for name, (figure, words) in _FIGURES.items():
        found, limit = getattr(error, figure), getattr(limits, name)
        if found is None or limit is None:
            continue
        if name == "min_sqnr":
            shown, limited = f"{found:.1f} dB", f"{limit:g} dB"
        else:
            shown, limited = f"{found:.6g}", f"{limit:g}"
        if name.startswith("max_") and found > limit:
            yield f"{words} {shown} exceeds {limited}"
        elif name.startswith("min_") and found < limit:
            yield f"{words} {shown} is below {limited}"


def _differences(
    kind: str,
    declared: Sequence[DeclaredTensor | None],
    expected: Sequence[tuple[str, Any]],
    program: ExportedProgram,
) -> Iterator[str]:
    """How a package's declared inputs or outputs differ from the source's, fake values and all."""
    if len(declared) != len(expected):
        yield f"declares {len(declared)} {kind}s, must be {len(expected)}"
        return
    for tensor, (name, value) in zip(declared, expected, strict=True):
        if not isinstance(value, torch.Tensor) or tensor is None:
            if isinstance(value, torch.Tensor) or tensor is not None:
                yield f"{name} is declared as {'no' if tensor is None else 'a'} tensor"
        elif tensor.dtype != value.dtype:
            yield f"{name} is declared with dtype {tensor.dtype}, must be {value.dtype}"
        elif len(tensor.sizes) != value.ndim:
            yield f"{name} is declared with rank {len(tensor.sizes)}, must be {value.ndim}"
        else:
            for dimension, (size, wanted) in enumerate(zip(tensor.sizes, value.shape, strict=True)):
                if what := _size_difference(size, wanted, kind, program):
                    yield f"{name}: {what} at dimension {dimension}"


def _size_difference(
    declared: int, wanted: int | torch.SymInt, kind: str, program: ExportedProgram
) -> str | None:
    """A dynamic size is declared as its upper bound, so a package declares at least the source's;
    an output's follows from the inputs'."""
    if not isinstance(wanted, torch.SymInt):
        return None if declared == wanted else f"declares size {declared}, must be {wanted}"
    greatest = bounds(program, expression(wanted))[1]
    if kind == "output" or (greatest is not None and declared >= greatest):
        return None
    if greatest is not None:
        return f"declares room for size {declared}, the source takes up to {greatest}"
    return (
        f"declares room for size {declared}, the source has no limit: ExecuTorch plans memory for "
        "the size in the example where the export gives no maximum, so give one"
    )
