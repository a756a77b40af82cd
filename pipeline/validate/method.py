"""Validates one method of a package by running it beside its source program.

Methods that share state are validated together: each then goes on with the package and the source
that the others were called on (`MethodValidator.continue_on`).
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.export import ExportedProgram

from pipeline.config.validation import Limits, ValidateConfig
from pipeline.devices.interface import DeviceError
from pipeline.devices.session import Session
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import generate_inputs
from pipeline.program.signature import check_inputs, flatten, signature
from pipeline.store.errors import PipelineError, first_line
from pipeline.validate.cases import InputCase, make_cases
from pipeline.validate.declared import compare_declared
from pipeline.validate.limits import LIMITS, check_limits
from pipeline.validate.metrics import compare
from pipeline.validate.results import Failure, MethodValidation, Run

# How often a method with state is called on one case: the next call reads the state of the last.
_STEPS_OF_A_CASE = 2

# Takes a method, where an input set is from, its flat values and what the source gives on them.
Keep = Callable[[str, str, Sequence[Any], Sequence[Any]], None]


@dataclass
class MethodValidator:
    """Runs a method and its source program, and collects the results.

    Attributes:
        open_package: opens the package with its initial state.
        not_run: why this machine can't run it; only its declarations are compared then.
        lines: by debug handle, the line of the source that a delegate's instruction comes from.
        cases: kinds of inputs that are generated beside random ones (cases.py).
        keep: is given each call from the initial state, also of a method that is not run.
        sets: the examples that fit, and the generated sets.
        calls: those since the package was opened.
    """

    method: str
    program: ExportedProgram
    open_package: Callable[[], Session]
    settings: ValidateConfig
    limits: Limits
    not_run: str = ""
    lines: Mapping[int, str] = field(default_factory=dict)
    cases: Sequence[str] = ()
    keep: Keep | None = None
    examples: list[InputSet] = field(default_factory=list)
    sets: list[InputSet] = field(default_factory=list)
    calls: list[tuple[str, InputSet]] = field(default_factory=list)
    state: tuple[str, ...] = ()
    runs: list[Run] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    failing: tuple[tuple[str, InputSet], ...] = ()
    seconds: float = 0.0

    def run(self, examples: Sequence[InputSet]) -> None:
        """Validate the method by itself.

        Where torch fails on the source itself, outside a run, that too is this method's failure.
        """
        try:
            self._validate(examples)
        except Exception as error:
            self.fail_for(error)

    def fail_for(self, error: Exception) -> None:
        """Fail for what torch raises where nothing should, with its traceback on stderr."""
        traceback.print_exception(error)
        self._fail(f"validation stopped at {type(error).__name__}: {first_line(error)}")

    def result(self) -> MethodValidation:
        """Return the results so far."""
        return MethodValidation(
            self.method,
            state=self.state,
            limits={name: getattr(self.limits, name) for name in LIMITS},
            runs=tuple(self.runs),
            skipped=tuple(self.skipped),
            failures=tuple(self.failures),
            not_run=self.not_run,
            seconds=self.seconds,
            failing=self.failing,
        )

    def continue_on(
        self, package: Session, source: Source, calls: list[tuple[str, InputSet]]
    ) -> None:
        """Go on with these, which other methods may use too; `calls` are all made on them."""
        self.package, self.source, self.calls = package, source, calls

    def _validate(self, examples: Sequence[InputSet]) -> None:
        self.source = Source(self.program)
        self.state = self.source.state
        self.package = self.open_package()
        if self.not_run:
            if self._declares_the_same():
                self._keep_expected(examples)
            return
        if not (self._loads() and self._declares_the_same()):
            return
        self.sets = self._input_sets(examples)
        cases = self._make_cases()
        if self.state:
            self._run_with_state(self.sets)
            for case in cases:
                self._run_in_sequence([case] * min(self.settings.steps, _STEPS_OF_A_CASE))
        for inputs in () if self.state else (*self.sets, *cases):
            self.calls = []
            self.call(inputs)
        if not self.runs and not self.failures:
            self._fail("no input set ran: give examples, or have inputs generated")

    def _fail(self, what: str, inputs: str = "", output: str = "") -> None:
        self.failures.append(Failure(self.method, what, inputs, output))

    def _reason(self, error: DeviceError) -> str:
        """Say why the package failed, with the line of the source that a delegate failed at."""
        if error.debug_handle is None:
            return error.reason
        line = self.lines.get(error.debug_handle, f"debug handle {error.debug_handle}")
        return f"{error.reason}; of {line}"

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
            *compare_declared("input", declared.inputs, inputs, self.program),
            *compare_declared("output", declared.outputs, self.source.outputs, self.program),
        ):
            self._fail(what)
        return not self.failures

    def _input_sets(self, examples: Sequence[InputSet]) -> list[InputSet]:
        """Return the examples that fit the source's signature, then the generated sets."""
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

    def _make_cases(self) -> list[InputCase]:
        count, seed = self.settings.inputs, self.settings.seed

        def run(inputs: InputSet) -> list[Any]:
            self.source.reset()
            return self.source.run(inputs)

        cases, skipped = make_cases(
            self.program, self.cases, count, seed, self.examples, self.limits, run
        )
        self.source.reset()
        self.skipped += skipped
        return cases

    def _run_with_state(self, sets: Sequence[InputSet]) -> None:
        """Call in sequences of `steps` from each set on, going on with the sets that follow it.

        Then comes the first sequence again. Each begins with the initial state.
        """
        starts = [(number, inputs.origin) for number, inputs in enumerate(sets)]
        starts += [(number, f"{origin}, again") for number, origin in starts[:1]]
        for number, name in starts:
            following = [sets[(number + step) % len(sets)] for step in range(self.settings.steps)]
            self._run_in_sequence(following, name)

    def _keep_expected(self, examples: Sequence[InputSet]) -> None:
        """Keep the source's outputs, for a device that can run what this machine can't."""
        for inputs in self._input_sets(examples) if self.keep is not None else ():
            self.source.reset()
            try:
                self._keep(inputs, self._expected(inputs))
            except DeviceError as error:
                self.skipped.append((inputs.origin, error.reason))

    def _keep(self, inputs: InputSet, expected: Sequence[Any]) -> None:
        if self.keep is not None:
            self.keep(self.method, inputs.origin, flatten(self.program, inputs), expected)

    def _run_in_sequence(self, sets: Sequence[InputSet], name: str = "") -> None:
        """Call a package just opened, until one side fails."""
        self.package, self.calls = self.open_package(), []
        self.source = Source(self.program)
        for step, inputs in enumerate(sets):
            if not self.call(inputs, step + 1, name or sets[0].origin):
                break

    def call(self, inputs: InputSet, step: int = 0, sequence: str = "") -> bool:
        """Make one call; return whether both sides ran, so that a sequence can go on."""
        where = f"{inputs.origin} (call {step} from {sequence})" if step else inputs.origin
        self.calls.append((self.method, inputs))
        case = inputs.case if isinstance(inputs, InputCase) else ""
        as_it_lies = case in ("strided", "expanded")
        try:
            expected = self._expected(inputs, as_it_lies)
        except DeviceError as error:
            if inputs in self.examples:
                self._fail(f"the source program itself fails: {error.reason}", where)
            else:
                self.skipped.append((where, error.reason))
            return False
        failed = len(self.failures)
        try:
            started = time.perf_counter()
            actual = self.package.run(self.method, flatten(self.program, inputs, as_it_lies))
            self.seconds += time.perf_counter() - started
            run = Run(inputs.origin, (), step, sequence, inputs.generated, case)
            self._check(actual, expected, inputs, run, where)
            # Further calls go on from a state, large cases are held to other limits, and without
            # their layout, which is the plan's in a bundle, strided ones are another's again.
            other_limits = isinstance(inputs, InputCase) and inputs.growth
            if len(self.calls) == 1 and not other_limits and not as_it_lies:
                self._keep(inputs, expected)
            return True
        except DeviceError as error:
            self._fail(self._reason(error), where)
            return False
        finally:
            if len(self.failures) > failed and not self.failing:
                self.failing = tuple(self.calls)

    def _expected(self, inputs: InputSet, as_it_lies: bool = False) -> list[Any]:
        """Run the source on tensors as they lie, or as it was exported. Raises DeviceError."""
        try:
            return self.source.run(inputs, as_it_lies)
        except Exception as error:  # whatever an operator raises
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise DeviceError(f"{self.method}: ", reason) from error

    def _check(
        self, actual: list[Any], expected: list[Any], inputs: InputSet, run: Run, where: str
    ) -> None:
        errors = tuple(compare(a, e) for a, e in zip(actual, expected, strict=True))
        self.runs.append(replace(run, outputs=errors))
        hint = ""
        if run.step == 1 and self.source.nonzero:
            names = ", ".join(self.source.nonzero)
            hint = f"; {names} starts with other values than zeros, which a package holds only"
            hint += " where InitializedMutableBufferPass names the buffer"
        pairs = zip(self.source.outputs, errors, actual, expected, strict=True)
        for place, ((name, _), error, a, e) in enumerate(pairs):
            limits = self.limits
            if isinstance(inputs, InputCase):
                limits = inputs.ease(limits, place, e)
            for what in check_limits(error, a, e, limits):
                self._fail(what + hint, where, name)
