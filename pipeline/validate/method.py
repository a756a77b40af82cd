"""Validates one method of a package by running it side by side with its source program.

This module chooses the calls; `method_calls.py` makes them. Methods that share state are validated
together: they use the same package, source and list of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pipeline.config.validation import Limits
from pipeline.devices.interface import DeviceError
from pipeline.devices.session import Session
from pipeline.moments import call_all, has_feature
from pipeline.program.inputs import InputSet
from pipeline.program.mapped_files import release_pages
from pipeline.program.random_inputs import Shapes, generate_inputs
from pipeline.program.signature import check_inputs, flatten, signature
from pipeline.report.method_records import ALL
from pipeline.store.errors import PipelineError
from pipeline.validate.call_judge import Call
from pipeline.validate.conclusions import (
    QUANTIZATION_UNJUDGED,
    conclude_movement,
    describe_ill_conditioning,
)
from pipeline.validate.determinism import REPEATS, outputs_of_runs
from pipeline.validate.interface import (
    NarrowedInput,
    compare_declared,
    find_unlisted,
)
from pipeline.validate.method_calls import MethodCalls
from pipeline.validate.references import References
from pipeline.validate.runs import JudgedCall

# For example float16 with 4-bit weights, which in XNNPACK requires a processor with float16
# arithmetic (xnnpack/src/subgraph/*.c).
_LACKS_INSTRUCTIONS = "xnn_status_unsupported_hardware"


@dataclass
class MethodValidator(MethodCalls):
    """Runs a method and its source program, and collects the results.

    If the result says why the method is not run, only its declarations are compared.

    Attributes:
        cases: kinds of inputs to generate in addition to random ones (`InputSet.case`).
        diverges: how the program with observers differs from the float program, in words.
        narrowed: the sizes whose range was narrowed by lowering.
        shapes: the only input shapes that the package accepts, if it lists them.
        sets: the examples that fit, followed by the generated sets.
        is_observed: whether methods that share its state were called after it.
    """

    cases: Sequence[str] = ()
    diverges: str = ""
    narrowed: Sequence[NarrowedInput] = ()
    shapes: Shapes | None = None
    sets: list[InputSet] = field(default_factory=list)
    is_observed: bool = False
    _ready: bool = False
    _pending: list[tuple[str, Callable[[], object]]] = field(default_factory=list)
    _on_generated: list[tuple[str, Callable[[], object]]] = field(default_factory=list)

    def start(self, examples: Sequence[InputSet], is_first: bool) -> None:
        """Load the method and make its first call, or the calls of its first sequence.

        For the first method of a package the budget doesn't apply. An error of torch on the source
        itself, outside a run, is a failure of this method too.
        """
        if not is_first and self.leaves_out(ALL):
            return
        with self._failing():
            self._prepare(examples)
            for _, call in self._pending[:1]:
                call()

    def finish(self) -> None:
        """Make all other calls within the budget, and release the loaded program."""
        with self._failing():
            self._go_on()
        # A new session releases the loaded program and its memory.
        self.package = Session(self.files)
        if self.judge.quantization is not None:
            self.judge.quantization.release()
        for movement in self.judge.movement:
            movement.release()

    def conclude(self) -> None:
        """Judge what only all calls together show."""
        result = self.result
        judge = self.judge
        if judge.quantization is not None:
            judge.quantization.conclude(self.program, self.examples)
        elif self.quantized is not None:
            result.quantization = QUANTIZATION_UNJUDGED
        with self._failing():
            conclude_movement(
                result, judge, self.examples, self.is_observed, self.budget
            )
        if result.verdict == "not judged" and judge.unjudged is not None:
            result.ill_conditioned = describe_ill_conditioning(
                self.quantized or self.program,
                judge.unjudged,
                self.held_to.most_share,
                self.budget,
            )

    def _prepare(self, examples: Sequence[InputSet]) -> None:
        self.references = self._make_references()
        names = tuple(name for name, _ in self.source.outputs)
        self.result.state = self.source.state
        self.result.outputs = names
        self.package = Session(self.files)
        if self.quantized is not None:
            facts = (self.judge, self.limits, self.diverges, self.quantized)
            judges = call_all("judge_quantization", *facts)
            self.judge.quantization = next(judges, None)
        if not self.result.not_run:
            self.result.not_run = self._load()
        if self.result.not_run:
            if self._declares_the_same() and self._payloads_are_whole():
                self._keep_expected(examples)
            return
        if not self._declares_the_same():
            return
        self.sets = self._input_sets(examples)
        if varies := self._describe_nondeterminism(self.sets):
            inputs = self.sets[0]
            self.sets = []  # sequences with other inputs mean nothing
            if not self.is_random:
                self.result.fail(varies, about="source")
                return
            self._pending = [("repeated calls", partial(self._judge_random, inputs))]
            self.cases = ()
        elif self.source.state:
            self._add_sequences(self.sets)
        else:
            for inputs in self.sets:
                call = partial(self.call_alone, inputs)
                self._queue(inputs).append((inputs.origin, call))
        self._ready = True

    def _queue(self, inputs: InputSet) -> list[tuple[str, Callable[[], object]]]:
        """Return the queue for calls on an input set; random sets reveal least, and come last."""
        if inputs.generated and self._pending:
            return self._on_generated
        return self._pending

    def _load(self) -> str:
        """Load the method; return why this machine's processor can't run it, or ""."""
        release_pages()  # pages that other methods' sources have read
        try:
            self.package.load(self.result.method)
        except DeviceError as error:
            if _LACKS_INSTRUCTIONS not in error.reason:
                raise
            return f"XNNPACK has no kernels for it on this processor ({_LACKS_INSTRUCTIONS})"
        return ""

    def _make_references(self) -> References:
        name = self.result.method
        quantized = {}
        if self.quantized is not None:
            quantized[name] = self.quantized
        return References.make(
            {name: self.program}, quantized, self.measures_rounding, self.open_lane
        )[name]

    def _judge_random(self, inputs: InputSet) -> None:
        """Compare repeated calls on one input set, each from the initial state."""
        if not has_feature("randomness"):
            self.result.fail(
                'is random, but this installation has no feature "randomness"'
            )
            return
        method = self.result.method
        expected = outputs_of_runs(self.source, inputs, range(2 * REPEATS))
        leaves = flatten(self.program, inputs)
        actual = []
        for _ in range(REPEATS):
            if self.source.state:
                self.package = Session(self.files)
            actual.append(self.package.run(method, leaves))
        for outputs in expected:
            unlimited = [Limits() for _ in outputs]
            self.judge.add_movement(outputs, unlimited, inputs)
        names = self.result.outputs
        (wrong,) = call_all("judge_random", names, expected, actual)
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
        self._make_calls(self._pending[1:])
        self._run_cases()
        self._make_calls(self._on_generated)
        result = self.result
        if not (result.runs or result.random or result.failures or result.left_out):
            result.fail(
                "no input set ran: provide examples, or let inputs be generated"
            )

    def _make_calls(self, calls: Sequence[tuple[str, Callable[[], object]]]) -> None:
        for name, call in calls:
            if not self.leaves_out(name):
                call()

    def _run_cases(self) -> None:
        if not any(call_all("run_cases", self, self.cases)):
            reason = 'this installation has no feature "cases"'
            self.result.skipped += [(kind, reason) for kind in self.cases]

    def _declares_the_same(self) -> bool:
        declared = self.package.signature(self.result.method)
        inputs = [
            (f"input '{argument.name}'", argument.value)
            for argument in signature(self.program)
        ]
        faults = [
            *compare_declared("input", declared.inputs, inputs, self.program),
            *compare_declared(
                "output", declared.outputs, self.source.outputs, self.program
            ),
        ]
        for fault in faults:
            for narrowed in call_all("judge_narrowed", self.narrowed):
                fault = narrowed.add_remedy(fault)
            self.result.fail(fault, about="declared")
        return not self.result.failures

    def _payloads_are_whole(self) -> bool:
        """Check payloads that can't run here, if their backends can read them."""
        for faults in call_all("check_payloads", self.files, self.result.method):
            for fault in faults:
                self.result.fail(fault, about="declared")
        return not self.result.failures

    def _input_sets(self, examples: Sequence[InputSet]) -> list[InputSet]:
        """Return the examples that fit the source's signature, then the generated sets."""
        for inputs in examples:
            self._add_example(inputs)
        count = self.settings.inputs
        seed = self.settings.seed
        generated = generate_inputs(
            self.program, count, seed, self.examples, self.shapes
        )
        return self.examples + generated

    def _add_example(self, inputs: InputSet) -> None:
        """Add an example if it fits the source; fail if the package doesn't accept it."""
        try:
            check_inputs(self.program, inputs, self.result.method)
            self.examples.append(inputs)
            faults: list[str] = []
            for narrowed in call_all("judge_narrowed", self.narrowed):
                faults += narrowed.find_outside(self.program, inputs)
            faults += find_unlisted(self.program, inputs, self.shapes)
            for fault in faults:
                self.result.fail(f"{inputs.origin}: {fault}", about="declared")
        except PipelineError as error:
            prefix = f"{self.result.method}: {inputs.origin}: "
            for line in str(error).splitlines():
                self.result.fail(line.removeprefix(prefix), inputs.origin)

    def _add_sequences(self, sets: Sequence[InputSet]) -> None:
        """Queue a sequence of `steps` calls starting at each input set, then the first one again.

        Each sequence starts from the initial state and continues with the following sets.
        """
        starts = [(number, inputs.origin) for number, inputs in enumerate(sets)]
        # State that survives reopening the package shows only the second time.
        starts += [(number, f"{origin}, again") for number, origin in starts[:1]]
        for number, name in starts:
            steps = range(number, number + self.settings.steps)
            following = [sets[step % len(sets)] for step in steps]
            call = partial(self.run_in_sequence, following, name)
            self._queue(sets[number]).append((name, call))

    def _keep_expected(self, examples: Sequence[InputSet]) -> None:
        """Keep the source's outputs for a device that can run what this machine can't."""
        sets = self._input_sets(examples)
        if self._fails_for_nondeterminism(sets):
            return
        if self.keep is None and self.judge.quantization is None:
            return
        if self._describe_nondeterminism(sets):
            return
        for inputs in sets:
            self.references.reset()
            try:
                expected = self._expected(inputs)
            except DeviceError as error:
                self.result.skipped.append((inputs.origin, error.reason))
                continue
            self._keep(inputs, expected)
            self._compare_quantized(inputs, expected)

    def _compare_quantized(self, inputs: InputSet, expected: Sequence[Any]) -> None:
        """Judge the quantized program's outputs, and add the limits for a device."""
        quantized = self.references.run_quantized(inputs)
        if quantized is not None and self.judge.quantization is not None:
            run = JudgedCall(inputs.origin, (), generated=inputs.generated)
            call = Call(quantized, expected, inputs, run, inputs.origin)
            self.judge.quantization.judge_call(
                call, [(self.result.method, inputs)], quantized
            )
        if self.keep is not None:
            rounded = [*self.references.run_rounded(inputs)]
            self.result.device_limits += self.held_to.on_device(
                expected, quantized, rounded
            )
