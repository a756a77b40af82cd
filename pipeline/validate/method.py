"""Validates one method of a package by running it beside its source program.

Methods that share state are validated together: each is then given the package, the source and the
list of calls that the others use too.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch.export import ExportedProgram

from pipeline.config.validation import Limits, ValidateConfig
from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.session import Session
from pipeline.program.eager import Source
from pipeline.program.graphs import iter_nodes
from pipeline.program.inputs import InputSet
from pipeline.program.mapped_files import release_pages
from pipeline.program.operators import base_name
from pipeline.program.random_inputs import Shapes, generate_inputs
from pipeline.program.random_operators import find_random_operators, find_uninitialized
from pipeline.program.signature import check_inputs, flatten, signature
from pipeline.program.source_lines import source_line
from pipeline.report.records import ALL
from pipeline.report.verdicts import PASSED
from pipeline.store.errors import PipelineError, listed
from pipeline.store.reasons import reason
from pipeline.store.remedies import add_remedy
from pipeline.validate.budget import Budget
from pipeline.validate.call_judge import Call, CallJudge
from pipeline.validate.call_limits import CallLimits
from pipeline.validate.cases import CaseMaker, InputCase, describe_source_error
from pipeline.validate.conditioning import describe_conditioning
from pipeline.validate.default_limits import (
    CONFIG_REASON,
    explain_rounding,
    most_share,
    what_it_computes_in,
)
from pipeline.validate.determinism import describe_nondeterminism, outputs_of_runs
from pipeline.validate.interface import (
    NarrowedSize,
    add_range_remedy,
    compare_declared,
    find_outside,
    find_unlisted,
)
from pipeline.validate.limits import LIMITS
from pipeline.validate.payloads import checks, find_payload_faults
from pipeline.validate.quantization import QuantizationJudge
from pipeline.validate.randomness import REPEATS, judge_random
from pipeline.validate.references import References
from pipeline.validate.results import MethodValidation, Run
from pipeline.validate.rounding import finds_ranges, is_quantized
from pipeline.validate.standstill import (
    RETURNS_NOTHING,
    StandstillJudge,
    find_indifferent_outputs,
)

# How often a method with state is called on one case: the next call reads the state of the last.
_STEPS_OF_A_CASE = 2
# Measured on two linears with a tanh: 40 runs with values rounded anew leave 129 dB as a rule, and
# 27 dB at worst, so a few runs say nothing.
_SELDOM = (
    "quantized by ranges that are found as values come, the source seldom rounds large values "
    "otherwise, but then by much; `cases` of the config may ask for them"
)

# How the runtime names what it lacks: `kernel 'aten::cummax.out' not found`.
_KERNEL = re.compile(r"kernel '\w+::(\w+)")

# Takes a method, where an input set is from, its flat values and what the source gives on them.
Keep = Callable[[str, str, Sequence[Any], Sequence[Any]], None]


@dataclass
class MethodValidator:
    """Runs a method and its source program, and collects the results.

    Attributes:
        result: is filled in. Where it says why the method is not run, only declarations are
            compared.
        lines: by debug handle, the line of the source that a delegate's instruction comes from.
        describe_instruction: returns the line of the source that an instruction of the method comes
            from, by its number, or "".
        cases: kinds of inputs that are generated beside random ones (cases.py).
        keep: is given each call from the initial state, also of a method that is not run.
        quantized: the program that quantization made of it, which the package is held to.
        departs: how the program with observers departs from the float one (`QuantizationJudge`).
        narrowed: the sizes that the package was lowered for a smaller range of.
        shapes: the only ones that the package takes, where it does not take all sizes.
        has_examples: as in `CallJudge`.
        sets: the examples that fit, and the generated sets.
        calls: those since the package was opened.
        budget: the time for all methods of the package; a call that has begun is made.
        is_observed: whether methods that share its state were called after it.
    """

    result: MethodValidation
    program: ExportedProgram
    files: PackageFiles
    settings: ValidateConfig
    lines: Mapping[int, str] = field(default_factory=dict)
    describe_instruction: Callable[[int], str] = lambda instruction: ""
    cases: Sequence[str] = ()
    keep: Keep | None = None
    quantized: ExportedProgram | None = None
    departs: str = ""
    narrowed: Sequence[NarrowedSize] = ()
    shapes: Shapes | None = None
    examples: list[InputSet] = field(default_factory=list)
    sets: list[InputSet] = field(default_factory=list)
    calls: list[tuple[str, InputSet]] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)
    references: References = field(init=False)
    has_examples: bool = True
    is_observed: bool = False
    _ready: bool = False

    def __post_init__(self) -> None:
        self.limits = self.settings.select_limits(self.result.method)
        self.result.limits = {name: getattr(self.limits, name) for name in LIMITS}
        self.held_to = CallLimits(self.limits, most_share(self.quantized or self.program))
        self.judge = CallJudge(self.result, self.held_to, has_examples=self.has_examples)
        operators = find_random_operators(self.program) + find_uninitialized(self.program)
        self._may_vary = bool(operators)
        self._pending: list[tuple[str, Callable[[], object]]] = []
        self._describe_limits()

    @property
    def source(self) -> Source:
        return self.references.source

    def start(self, examples: Sequence[InputSet], is_first: bool) -> None:
        """Load the method, and make its first call, or those of its first sequence; the first
        method of a package does so whatever that takes.

        Where torch fails on the source itself, outside a run, that too is this method's failure.
        """
        if not is_first and self._leaves_out(ALL):
            return
        with self._failing():
            self._prepare(examples)
            for _, call in self._pending[:1]:
                call()

    def finish(self) -> None:
        """Make all other calls, as long as the budget lasts, and let go of what was loaded."""
        with self._failing():
            self._go_on()
        self.package = Session(self.files)
        self.judge.movement.release()
        self.judge.float_movement.release()

    def conclude(self) -> None:
        """Judge what only all calls together show."""
        if self.judge.quantization is not None:
            self._conclude_quantization(self.judge.quantization)
        with self._failing():
            self._conclude_movement()
        if self.result.verdict == "not judged" and self.judge.unjudged is not None:
            self.result.ill_conditioned = self._describe_conditioning()

    def _conclude_quantization(self, judge: QuantizationJudge) -> None:
        for output, fault in judge.find_departures():
            self.result.fail(fault, output=output, about="quantization")
            if not self.result.failing:
                self.result.failing = self.judge.noisiest
        failed = any(failure.about == "quantization" for failure in self.result.failures)
        left_out = [inputs for inputs in self.examples if inputs.origin in self.result.left_out]
        record = judge.judge(failed, len(left_out), bool(self.result.random))
        still = find_indifferent_outputs(
            self.program, self.result.outputs, self.result.state, self.judge.float_movement
        )
        if still and record["verdict"] == PASSED:
            record["verdict"] = "not judged"
            record["reason"] = (
                f"its limits could not fail for {listed(still, 3)}: they are wider than the float "
                "program moves over all calls; set stricter ones"
            )
        self.result.quantization = record

    def _conclude_movement(self) -> None:
        """Say which outputs carried no information, whatever was compared."""
        result = self.result
        movement = self.judge.movement
        if result.runs and result.state and not (result.outputs or self.is_observed):
            result.returns_nothing = RETURNS_NOTHING
        if not movement.outputs:
            return
        judge = StandstillJudge(
            self.quantized or self.program,
            result.outputs,
            result.state,
            self.examples,
            movement,
            result.unjudged_places,
            is_random=bool(result.random),
            is_observed=self.is_observed,
            budget=self.budget,
        )
        result.movement = judge.judge()

    def _describe_conditioning(self) -> str:
        """Say where the source itself loses what the package can't keep; "" if that is not seen."""
        inputs = self.judge.unjudged or next(iter(self.sets), None)
        if inputs is None or self.budget.spent:
            return ""
        program = self.quantized or self.program
        with suppress(Exception):  # whatever an operator raises: then it is not known
            return describe_conditioning(program, inputs, self.held_to.most_share)
        return ""

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except DeviceError as error:
            self.result.fail(self._reason(error))
        except Exception as error:
            self.fail_for(error)

    @property
    def measures_rounding(self) -> bool:
        return self.held_to.derived or self.quantized is not None

    @property
    def is_random(self) -> bool:
        """Return whether the config declares that the method samples."""
        return self.settings.select_random(self.result.method)

    def _make_references(self) -> References:
        name = self.result.method
        quantized = self.quantized
        quantized_programs = {} if quantized is None else {name: quantized}
        rounding = [name] if self.measures_rounding else []
        return References.make({name: self.program}, quantized_programs, rounding)[name]

    def _describe_limits(self) -> None:
        """Say what the limits of outputs follow, and why."""
        result = self.result
        result.source_is_quantized = self.quantized is None and is_quantized(self.program)
        if self.quantized is not None:
            result.limits_from = "quantized"
            result.quantized_reason = explain_rounding(self.quantized)
        elif not self.held_to.derived:
            result.limits_from = "config"
            result.limits_reason = CONFIG_REASON
        else:
            result.limits_from = what_it_computes_in(self.program)
            result.limits_reason = explain_rounding(self.program)

    def fail_for(self, error: Exception) -> None:
        """Fail for what torch raises where nothing should, with its traceback on stderr."""
        traceback.print_exception(error)
        self.result.fail(f"validation stopped at {type(error).__name__}: {reason(error)}")

    def _prepare(self, examples: Sequence[InputSet]) -> None:
        self.references = self._make_references()
        self.result.state = self.source.state
        self.result.outputs = tuple(name for name, _ in self.source.outputs)
        self.package = Session(self.files)
        names = self.result.outputs
        if self.quantized is not None:
            self.judge.quantization = QuantizationJudge(names, self.limits, self.departs)
        if self.result.not_run:
            if self._declares_the_same() and self._payloads_are_whole():
                self._keep_expected(examples)
            return
        release_pages()  # which the sources of other methods have read
        self.package.load(self.result.method)
        if not self._declares_the_same():
            return
        self.sets = self._input_sets(examples)
        if varies := self._describe_nondeterminism(self.sets):
            inputs, self.sets = self.sets[0], []  # no sequence with others means anything
            if not self.is_random:
                self.result.fail(varies, about="source")
                return
            self._pending = [("repeated calls", partial(self._judge_random, inputs))]
            self.cases = ()
        elif self.source.state:
            self._pending = list(self._sequences(self.sets))
        else:
            self._pending = [
                (input_set.origin, partial(self._call_alone, input_set)) for input_set in self.sets
            ]
        self._ready = True

    def _fails_for_nondeterminism(self, sets: Sequence[InputSet]) -> bool:
        """Fail for a source that differs from itself, unless it is declared to sample; return
        whether it does so."""
        if self.is_random or not (varies := self._describe_nondeterminism(sets)):
            return False
        self.result.fail(varies, about="source")
        return True

    def _describe_nondeterminism(self, sets: Sequence[InputSet]) -> str:
        """Say how the source differs from itself; "" where it does not, or fails anyway."""
        for inputs in sets if self._may_vary else sets[:1]:
            with suppress(Exception):  # reported by the call on these inputs
                if varies := describe_nondeterminism(self.source, inputs):
                    return varies
        return ""

    def _judge_random(self, inputs: InputSet) -> None:
        """Compare repeated calls on one input set, each from the initial state."""
        method = self.result.method
        expected = outputs_of_runs(self.source, inputs, range(2 * REPEATS))
        leaves = flatten(self.program, inputs)
        actual = []
        for _ in range(REPEATS):
            if self.source.state:
                self.package = Session(self.files)
            actual.append(self.package.run(method, leaves))
        for outputs in expected:
            self.judge.movement.add(outputs, [Limits() for _ in outputs], inputs)
        wrong = judge_random(self.result.outputs, expected, actual)
        for output, fault in wrong:
            self.result.fail(fault, inputs.origin, output)
        if wrong:
            self.result.random = "declared random"
        else:
            self.result.random = (
                f"declared random: shapes, ranges, means and variances of {REPEATS} calls on "
                f"{inputs.origin} are those of {2 * REPEATS} calls of its source"
            )

    def _go_on(self) -> None:
        if not self._ready:
            return
        for name, call in self._pending[1:]:
            if not self._leaves_out(name):
                call()
        settings = self.settings
        result = self.result
        maker = CaseMaker(
            self.source,
            settings.inputs,
            settings.seed,
            self.examples,
            self.limits,
            self.budget,
            self.shapes,
        )
        for case in maker.make(self._choose_cases()):
            if self._leaves_out(case.origin):
                continue
            if self.source.state:
                self._run_in_sequence([case] * min(settings.steps, _STEPS_OF_A_CASE))
            else:
                self._call_alone(case)
        result.skipped += maker.skipped
        result.left_out += maker.left_out
        if not (result.runs or result.random or result.failures or result.left_out):
            result.fail("no input set ran: give examples, or have inputs generated")

    def _choose_cases(self) -> list[str]:
        """Return the cases that suit the program, or those that the config lists."""
        method_config = self.settings.methods.get(self.result.method)
        listed = self.settings.cases is not None or (
            method_config is not None and method_config.cases is not None
        )
        chosen = list(self.cases)
        if "large" in chosen and self.held_to.derived and not listed and finds_ranges(self.program):
            chosen.remove("large")
            self.result.skipped.append(("large", _SELDOM))
        return chosen

    def _leaves_out(self, name: str) -> bool:
        """Leave out what the budget has no time for."""
        if self.budget.spent:
            self.result.left_out.append(name)
        return self.budget.spent

    def _call_alone(self, inputs: InputSet) -> None:
        self.calls = []
        self.call(inputs)

    def _reason(self, error: DeviceError) -> str:
        """Say why the package failed, with the line of the source that a delegate failed at, that
        a kernel refused, or that calls an operator without a kernel."""
        if error.instruction is not None:
            line = self.describe_instruction(error.instruction)
            return add_remedy("; of ".join(filter(None, (error.reason, line))))
        if error.debug_handle is None:
            kernels = _KERNEL.findall(error.reason)
            nodes = [n for n in iter_nodes(self.program) if base_name(n) in kernels]
            lines = dict.fromkeys(str(place) for place in map(source_line, nodes) if place)
            return add_remedy("; of ".join([error.reason, *lines]))
        line = self.lines.get(error.debug_handle, f"debug handle {error.debug_handle}")
        return f"{error.reason}; of {line}"

    def _declares_the_same(self) -> bool:
        declared = self.package.signature(self.result.method)
        inputs = [(f"input '{a.name}'", a.value) for a in signature(self.program)]
        for fault in (
            *compare_declared("input", declared.inputs, inputs, self.program),
            *compare_declared("output", declared.outputs, self.source.outputs, self.program),
        ):
            self.result.fail(add_range_remedy(fault, self.narrowed), about="declared")
        return not self.result.failures

    def _payloads_are_whole(self) -> bool:
        """Check payloads that can't be run here, as far as their backends read them."""
        method = self.result.method
        if checks(self.files, method):
            for fault in find_payload_faults(self.files, method):
                self.result.fail(fault, about="declared")
        return not self.result.failures

    def _input_sets(self, examples: Sequence[InputSet]) -> list[InputSet]:
        """Return the examples that fit the source's signature, then the generated sets."""
        for inputs in examples:
            try:
                check_inputs(self.program, inputs, self.result.method)
                self.examples.append(inputs)
                outside = find_outside(self.program, inputs, self.narrowed)
                for fault in (*outside, *find_unlisted(self.program, inputs, self.shapes)):
                    self.result.fail(f"{inputs.origin}: {fault}", about="declared")
            except PipelineError as error:
                prefix = f"{self.result.method}: {inputs.origin}: "
                for line in str(error).splitlines():
                    self.result.fail(line.removeprefix(prefix), inputs.origin)
        count = self.settings.inputs
        seed = self.settings.seed
        generated = generate_inputs(self.program, count, seed, self.examples, self.shapes)
        return self.examples + generated

    def _sequences(self, sets: Sequence[InputSet]) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield sequences of `steps` calls from each set on, going on with the sets that follow it,
        and then the first sequence again. Each begins with the initial state."""
        starts = [(number, inputs.origin) for number, inputs in enumerate(sets)]
        starts += [(number, f"{origin}, again") for number, origin in starts[:1]]
        for number, name in starts:
            following = []
            for step in range(self.settings.steps):
                following.append(sets[(number + step) % len(sets)])
            yield name, partial(self._run_in_sequence, following, name)

    def _keep_expected(self, examples: Sequence[InputSet]) -> None:
        """Keep the source's outputs, for a device that can run what this machine can't."""
        sets = self._input_sets(examples)
        if self._fails_for_nondeterminism(sets):
            return
        quantization = self.judge.quantization
        needs_values = self.keep is not None or quantization is not None
        for inputs in sets if needs_values and not self._describe_nondeterminism(sets) else ():
            self.references.reset()
            try:
                expected = self._expected(inputs)
            except DeviceError as error:
                self.result.skipped.append((inputs.origin, error.reason))
                continue
            self._keep(inputs, expected)
            quantized = self.references.run_quantized(inputs)
            if quantized is not None and quantization is not None:
                run = Run(inputs.origin, (), generated=inputs.generated)
                call = Call(quantized, expected, inputs, run, inputs.origin)
                self.judge.judge_quantization(call, [(self.result.method, inputs)])
            if self.keep is None:
                continue
            rounded = self.references.run_rounded(inputs)
            self.result.device_limits += self.held_to.on_device(expected, quantized, rounded)

    def _keep(self, inputs: InputSet, expected: Sequence[Any]) -> None:
        if self.keep is not None:
            self.keep(self.result.method, inputs.origin, flatten(self.program, inputs), expected)

    def _run_in_sequence(self, sets: Sequence[InputSet], name: str = "") -> None:
        """Call a package just opened, until one side fails."""
        self.package = Session(self.files)
        self.calls = []
        self.references.reset()
        name = name or sets[0].origin
        for step, inputs in enumerate(sets, 1):
            if step > 1 and self._leaves_out(f"{name}, from call {step} on"):
                break
            if not self.call(inputs, step, name):
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
        if step <= 1 and self._may_vary and self._fails_for_nondeterminism([inputs]):
            return False
        try:
            started = time.perf_counter()
            actual = self.package.run(self.result.method, flatten(self.program, inputs, as_it_lies))
            self.result.seconds += time.perf_counter() - started
            run = Run(inputs.origin, (), step, sequence, inputs.generated, case)
            hint = self._hint(run)
            call = Call(actual, expected, inputs, run, where, as_it_lies, hint)
            self.judge.judge(call, self.references, self.calls)
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
                self._keep_failing(failed)

    def _keep_failing(self, failed: int) -> None:
        """Keep the calls that failed, the last one with failures from number `failed` on."""
        result = self.result
        result.failing = tuple(self.calls)
        shown = result.failures[failed:]
        result.fails_quantized = all(failure.about == "quantized" for failure in shown)
        runs = result.quantized_runs if result.fails_quantized else result.runs
        result.failing_limits = runs[-1].limits if runs else ()

    def _expected(self, inputs: InputSet, as_it_lies: bool = False) -> list[Any]:
        """Run the source on tensors as they lie, or as it was exported. Raises DeviceError."""
        try:
            return self.source.run(inputs, as_it_lies)
        except Exception as error:  # whatever an operator raises
            raise DeviceError(f"{self.result.method}: ", describe_source_error(error)) from error

    def _hint(self, run: Run) -> str:
        if run.step != 1 or not self.source.nonzero:
            return ""
        names = ", ".join(self.source.nonzero)
        hint = f"; {names} starts with other values than zeros, which a package holds only"
        return f"{hint} where InitializedMutableBufferPass names the buffer"
