"""One method of a package on trial: run beside its source program on one input set after another.

Methods that share state are on trial together: each then goes on with the package and the source
that the others were called on (`Trial.take`).
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from torch.export import ExportedProgram

from pipeline.devices.interface import Computation, DeviceError
from pipeline.devices.registry import devices
from pipeline.devices.session import REFERENCE, Session, executed
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import generate_inputs
from pipeline.program.signature import check_inputs, flat_as_given, flatten, signature
from pipeline.store.errors import PipelineError
from pipeline.validate.cases import Case, make_cases
from pipeline.validate.declared import differences
from pipeline.validate.limits import LIMITS, Limits, excesses
from pipeline.validate.metrics import compare
from pipeline.validate.results import Failure, MethodValidation, Run

# How often a method with state is called on one case: what one call leaves, the next one reads.
_STEPS_OF_A_CASE = 2

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


class Trial:
    """One method of a package against its source program; collects what comes of it."""

    def __init__(
        self,
        method: str,
        program: ExportedProgram,
        open_package: Callable[[], Session],
        settings: Settings,
        not_run: str = "",
        lines: Mapping[int, str] | None = None,
    ) -> None:
        self.keep: Keep | None = None
        self.not_run = not_run
        self.lines = lines or {}
        self.method = method
        self.program = program
        self.open_package = open_package
        self.settings = settings
        self.limits = settings.of(method)
        self.cases: Sequence[str] = ()
        self.sets: list[InputSet] = []
        self.calls: list[tuple[str, InputSet]] = []
        self.state: tuple[str, ...] = ()
        self.examples: list[InputSet] = []
        self.runs: list[Run] = []
        self.skipped: list[tuple[str, str]] = []
        self.failures: list[Failure] = []
        self.failing: tuple[tuple[str, InputSet], ...] = ()
        self.seconds = 0.0

    def run(self, examples: Sequence[InputSet]) -> None:
        """Where torch fails on the source itself, outside a run, that too is this method's
        failure, with its traceback on stderr."""
        try:
            self._validate(examples)
        except Exception as error:
            self.stopped(error)

    def stopped(self, error: Exception) -> None:
        """Fails for what torch raises where nothing should."""
        traceback.print_exception(error)
        self._fail(f"validation stopped at {type(error).__name__}: {_first_line(error)}")

    def result(self) -> MethodValidation:
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
        self.sets = self._input_sets(examples)
        cases = self._made_cases()
        if self.state:
            self._run_with_state(self.sets)
            for case in cases:
                self._run_in_sequence([case] * min(self.settings.steps, _STEPS_OF_A_CASE))
        for inputs in () if self.state else (*self.sets, *cases):
            self.calls = []
            self.call(inputs)
        if not self.runs and not self.failures:
            self._fail("no input set ran: give examples, or have inputs generated")

    def _begin_source(self) -> None:
        """The source program, with its initial state."""
        reference = devices().get(REFERENCE)
        lowered = reference.lower(self.method, {self.method: self.program})
        (self.computation,) = reference.compile([lowered])

    @property
    def source(self) -> Source:
        source: Source = self.computation.compiled
        return source

    def take(
        self, package: Session, source: Computation, calls: list[tuple[str, InputSet]]
    ) -> None:
        """Goes on with these, which other methods may use too; `calls` are all made on them."""
        self.package, self.computation, self.calls = package, source, calls

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
            *differences("input", declared.inputs, inputs, self.program),
            *differences("output", declared.outputs, self.source.outputs, self.program),
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

    def _made_cases(self) -> list[Case]:
        """The cases that are wanted; what can't be made is skipped."""
        count, seed = self.settings.inputs, self.settings.seed

        def run(inputs: InputSet) -> list[Any]:
            self.source.reset()
            return self.source.run(inputs)

        found = make_cases(self.program, self.cases, count, seed, self.examples, self.limits, run)
        self.source.reset()
        self.skipped += found.skipped
        return found.sets

    def _run_with_state(self, sets: Sequence[InputSet]) -> None:
        """A sequence of `steps` calls from each set on, going on with the sets that follow it;
        then the first sequence again. Each begins with the initial state."""
        starts = [(number, inputs.origin) for number, inputs in enumerate(sets)]
        starts += [(number, f"{origin}, again") for number, origin in starts[:1]]
        for number, name in starts:
            following = [sets[(number + step) % len(sets)] for step in range(self.settings.steps)]
            self._run_in_sequence(following, name)

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

    def _run_in_sequence(self, sets: Sequence[InputSet], name: str = "") -> None:
        """Calls on a package just opened, until one side fails."""
        self.package, self.calls = self.open_package(), []
        self._begin_source()
        for step, inputs in enumerate(sets):
            if not self.call(inputs, step + 1, name or sets[0].origin):
                break

    def call(self, inputs: InputSet, step: int = 0, sequence: str = "") -> bool:
        """Whether both sides ran, so that a sequence can go on."""
        where = f"{inputs.origin} (call {step} from {sequence})" if step else inputs.origin
        self.calls.append((self.method, inputs))
        case = inputs.case if isinstance(inputs, Case) else ""
        as_it_lies = case in ("strided", "expanded")
        flat = flat_as_given if as_it_lies else flatten
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
            actual = self.package.run(self.method, flat(self.program, inputs))
            self.seconds += time.perf_counter() - started
            run = Run(inputs.origin, (), step, sequence, inputs.generated, case)
            self._judge(actual, expected, inputs, run, where)
            # Further calls go on from a state, large cases are held to other limits, and without
            # their layout, which is the plan's in a bundle, strided ones are another's again.
            other_limits = isinstance(inputs, Case) and inputs.growth
            if len(self.calls) == 1 and not other_limits and not as_it_lies:
                self._keep(inputs, expected)
            return True
        except DeviceError as error:
            self._fail(self._reason(error), where)
            return False
        finally:
            if len(self.failures) > failed and not self.failing:
                self.failing = tuple(self.calls)

    def _expected(self, inputs: InputSet, as_it_lies: bool) -> list[Any]:
        """What the source gives, which is handed tensors as they lie, or as it was exported. Raises
        DeviceError."""
        if not as_it_lies:
            return executed(self.computation, flatten(self.program, inputs))
        try:
            return self.source.run_as_given(inputs)
        except Exception as error:  # whatever an operator raises
            reason = f"{type(error).__name__}: {_first_line(error)}"
            raise DeviceError(f"{self.method}: ", reason) from error

    def _judge(
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
            if isinstance(inputs, Case):
                limits = inputs.eased(limits, place, e)
            for what in excesses(error, a, e, limits):
                self._fail(what + hint, where, name)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
