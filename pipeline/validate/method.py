"""Validates one method of a package by running it beside its source program.

Methods that share state are validated together: each is then given the package, the source and the
list of calls that the others use too.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.export import ExportedProgram

from pipeline.config.validation import Limits, ValidateConfig
from pipeline.devices.interface import DeclaredTensor, DeviceError, PackageFiles
from pipeline.devices.session import Session
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet
from pipeline.program.random_inputs import generate_inputs
from pipeline.program.signature import bounds, check_inputs, expression, flatten, signature
from pipeline.store.errors import PipelineError, first_line
from pipeline.validate.cases import CaseMaker, InputCase, describe_source_error
from pipeline.validate.limits import LIMITS, check_limits
from pipeline.validate.metrics import compare
from pipeline.validate.results import MethodValidation, Run

# How often a method with state is called on one case: the next call reads the state of the last.
_STEPS_OF_A_CASE = 2

# Takes a method, where an input set is from, its flat values and what the source gives on them.
Keep = Callable[[str, str, Sequence[Any], Sequence[Any]], None]


@dataclass
class MethodValidator:
    """Runs a method and its source program, and collects the results.

    Attributes:
        result: is filled in. Where it says why the method is not run, only declarations are
            compared.
        lines: by debug handle, the line of the source that a delegate's instruction comes from.
        cases: kinds of inputs that are generated beside random ones (cases.py).
        keep: is given each call from the initial state, also of a method that is not run.
        sets: the examples that fit, and the generated sets.
        calls: those since the package was opened.
    """

    result: MethodValidation
    program: ExportedProgram
    files: PackageFiles
    settings: ValidateConfig
    limits: Limits
    lines: Mapping[int, str] = field(default_factory=dict)
    cases: Sequence[str] = ()
    keep: Keep | None = None
    examples: list[InputSet] = field(default_factory=list)
    sets: list[InputSet] = field(default_factory=list)
    calls: list[tuple[str, InputSet]] = field(default_factory=list)

    def run(self, examples: Sequence[InputSet]) -> None:
        """Validate the method by itself.

        Where torch fails on the source itself, outside a run, that too is this method's failure.
        """
        self.result.limits = {name: getattr(self.limits, name) for name in LIMITS}
        try:
            self._validate(examples)
        except DeviceError as error:
            self.result.fail(self._reason(error))
        except Exception as error:
            self.fail_for(error)

    def fail_for(self, error: Exception) -> None:
        """Fail for what torch raises where nothing should, with its traceback on stderr."""
        traceback.print_exception(error)
        self.result.fail(f"validation stopped at {type(error).__name__}: {first_line(error)}")

    def _validate(self, examples: Sequence[InputSet]) -> None:
        self.source = Source(self.program)
        self.result.state = self.source.state
        self.result.outputs = tuple(name for name, _ in self.source.outputs)
        self.package = Session(self.files)
        if self.result.not_run:
            if self._declares_the_same():
                self._keep_expected(examples)
            return
        self.package.load(self.result.method)
        if not self._declares_the_same():
            return
        self.sets = self._input_sets(examples)
        settings = self.settings
        maker = CaseMaker(self.source, settings.inputs, settings.seed, self.examples, self.limits)
        maker.make(self.cases)
        self.result.skipped += maker.skipped
        if self.source.state:
            self._run_with_state(self.sets)
            for case in maker.sets:
                self._run_in_sequence([case] * min(settings.steps, _STEPS_OF_A_CASE))
        for inputs in () if self.source.state else (*self.sets, *maker.sets):
            self.calls = []
            self.call(inputs)
        if not self.result.runs and not self.result.failures:
            self.result.fail("no input set ran: give examples, or have inputs generated")

    def _reason(self, error: DeviceError) -> str:
        """Say why the package failed, with the line of the source that a delegate failed at."""
        if error.debug_handle is None:
            return error.reason
        line = self.lines.get(error.debug_handle, f"debug handle {error.debug_handle}")
        return f"{error.reason}; of {line}"

    def _declares_the_same(self) -> bool:
        declared = self.package.declared(self.result.method)
        inputs = [(f"input '{a.name}'", a.value) for a in signature(self.program)]
        for what in (
            *_compare_declared("input", declared.inputs, inputs, self.program),
            *_compare_declared("output", declared.outputs, self.source.outputs, self.program),
        ):
            self.result.fail(what)
        return not self.result.failures

    def _input_sets(self, examples: Sequence[InputSet]) -> list[InputSet]:
        """Return the examples that fit the source's signature, then the generated sets."""
        for inputs in examples:
            try:
                check_inputs(self.program, inputs, self.result.method)
                self.examples.append(inputs)
            except PipelineError as error:
                prefix = f"{self.result.method}: {inputs.origin}: "
                for line in str(error).splitlines():
                    self.result.fail(line.removeprefix(prefix), inputs.origin)
        count, seed = self.settings.inputs, self.settings.seed
        return self.examples + generate_inputs(self.program, count, seed, self.examples)

    def _run_with_state(self, sets: Sequence[InputSet]) -> None:
        """Call in sequences of `steps` from each set on, going on with the sets that follow it, and
        then the first sequence again. Each begins with the initial state."""
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
                self.result.skipped.append((inputs.origin, error.reason))

    def _keep(self, inputs: InputSet, expected: Sequence[Any]) -> None:
        if self.keep is not None:
            self.keep(self.result.method, inputs.origin, flatten(self.program, inputs), expected)

    def _run_in_sequence(self, sets: Sequence[InputSet], name: str = "") -> None:
        """Call a package just opened, until one side fails."""
        self.package, self.calls = Session(self.files), []
        self.source = Source(self.program)
        for step, inputs in enumerate(sets):
            if not self.call(inputs, step + 1, name or sets[0].origin):
                break

    def call(self, inputs: InputSet, step: int = 0, sequence: str = "") -> bool:
        """Make one call; return whether both sides ran, so that a sequence can go on."""
        where = f"{inputs.origin} (call {step} from {sequence})" if step else inputs.origin
        self.calls.append((self.result.method, inputs))
        case = inputs.case if isinstance(inputs, InputCase) else ""
        as_it_lies = case in ("strided", "expanded")
        try:
            expected = self._expected(inputs, as_it_lies)
        except DeviceError as error:
            if inputs in self.examples:
                self.result.fail(error.reason, where)
            else:
                self.result.skipped.append((where, error.reason))
            return False
        failed = len(self.result.failures)
        try:
            started = time.perf_counter()
            actual = self.package.run(self.result.method, flatten(self.program, inputs, as_it_lies))
            self.result.seconds += time.perf_counter() - started
            run = Run(inputs.origin, (), step, sequence, inputs.generated, case)
            self._check(actual, expected, inputs, run, where)
            # Further calls go on from a state, large cases are held to other limits, and without
            # their layout, which is the plan's in a bundle, strided ones are another's again.
            other_limits = isinstance(inputs, InputCase) and inputs.growth
            if len(self.calls) == 1 and not other_limits and not as_it_lies:
                self._keep(inputs, expected)
            return True
        except DeviceError as error:
            self.result.fail(self._reason(error), where)
            return False
        finally:
            if len(self.result.failures) > failed and not self.result.failing:
                self.result.failing = tuple(self.calls)

    def _expected(self, inputs: InputSet, as_it_lies: bool = False) -> list[Any]:
        """Run the source on tensors as they lie, or as it was exported. Raises DeviceError."""
        try:
            return self.source.run(inputs, as_it_lies)
        except Exception as error:  # whatever an operator raises
            raise DeviceError(f"{self.result.method}: ", describe_source_error(error)) from error

    def _check(
        self, actual: list[Any], expected: list[Any], inputs: InputSet, run: Run, where: str
    ) -> None:
        errors = tuple(compare(a, e) for a, e in zip(actual, expected, strict=True))
        self.result.runs.append(replace(run, outputs=errors))
        hint = ""
        if run.step == 1 and self.source.nonzero:
            names = ", ".join(self.source.nonzero)
            hint = f"; {names} starts with other values than zeros, which a package holds only"
            hint += " where InitializedMutableBufferPass names the buffer"
        pairs = zip(self.source.outputs, errors, actual, expected, strict=True)
        for place, ((name, _), error, a, e) in enumerate(pairs):
            limits = (
                inputs.ease(self.limits, place, e) if isinstance(inputs, InputCase) else self.limits
            )
            for what in check_limits(error, a, e, limits):
                self.result.fail(what + hint, where, name)


def _compare_declared(
    kind: str,
    declared: Sequence[DeclaredTensor | None],
    expected: Sequence[tuple[str, Any]],
    program: ExportedProgram,
) -> Iterator[str]:
    """Yield how declared inputs or outputs differ from the source's names and (fake) values."""
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
    """Describe how a size differs; None where it doesn't.

    A dynamic size is declared as its upper bound, so a package declares at least the source's; an
    output's follows from the inputs'.
    """
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
