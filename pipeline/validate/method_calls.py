"""Calls a method of a package and its source program with the same inputs, and judges each call.

This module makes calls, alone or in a sequence, and words failures; `method.py` chooses the calls.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from torch.export import ExportedProgram

from pipeline.config.validation import ValidateConfig
from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.session import Session
from pipeline.program.eager import Source
from pipeline.program.graphs import iter_nodes
from pipeline.program.inputs import InputSet
from pipeline.program.operators import base_name
from pipeline.program.quantized_values import is_quantized
from pipeline.program.random_operators import find_random_operators, find_uninitialized
from pipeline.program.signature import flatten
from pipeline.program.source_lines import source_line
from pipeline.store.errors import log_traceback
from pipeline.store.reasons import reason
from pipeline.store.remedies import add_remedy
from pipeline.validate.budget import Budget
from pipeline.validate.call_judge import Call, CallJudge
from pipeline.validate.call_limits import CallLimits
from pipeline.validate.cases import describe_source_error
from pipeline.validate.default_limits import (
    CONFIG_REASON,
    explain_rounding,
    most_share,
    what_it_computes_in,
)
from pipeline.validate.determinism import describe_nondeterminism
from pipeline.validate.limits import LIMITS
from pipeline.validate.method_result import MethodValidation
from pipeline.validate.references import Lane, OpenLane, References
from pipeline.validate.runs import JudgedCall

# How the runtime reports a missing kernel: `kernel 'aten::cummax.out' not found`.
_KERNEL = re.compile(r"kernel '\w+::(\w+)")

# Takes a method, the origin of an input set, its flat values, and the source's outputs for them.
Keep = Callable[[str, str, Sequence[Any], Sequence[Any]], None]
# Takes a result whose last run was just judged, its inputs, and the outputs of the program that was
# lowered.
Watch = Callable[[MethodValidation, InputSet, Sequence[Any]], None]


@dataclass
class MethodCalls:
    """A method of a package and its source program, called side by side.

    Attributes:
        result: receives the outcomes.
        lines: by debug handle, the source line that a delegate's instruction comes from.
        describe_instruction: returns the source line that an instruction of the method comes from,
            given its number, or "".
        keep: receives each call from the initial state, also for a method that is not run.
        quantized: the quantized program, which the package is held to.
        examples: the examples that fit the source's signature.
        calls: the calls since the package was opened.
        budget: the time for all methods of the package; a call that has begun is completed.
        has_examples: as in `CallJudge`.
        open_lane: opens the objects that run the programs the package is compared with.
        watchers: receive each call that was judged.
    """

    result: MethodValidation
    program: ExportedProgram
    files: PackageFiles
    settings: ValidateConfig
    lines: Mapping[int, str] = field(default_factory=dict)
    describe_instruction: Callable[[int], str] = lambda instruction: ""
    keep: Keep | None = None
    quantized: ExportedProgram | None = None
    examples: list[InputSet] = field(default_factory=list)
    calls: list[tuple[str, InputSet]] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)
    references: References = field(init=False)
    has_examples: bool = True
    open_lane: OpenLane = Lane
    watchers: Sequence[Watch] = ()

    def __post_init__(self) -> None:
        self.limits = self.settings.select_limits(self.result.method)
        self.result.limits = {name: getattr(self.limits, name) for name in LIMITS}
        lowered = self.quantized or self.program
        self.held_to = CallLimits(self.limits, most_share(lowered))
        self.judge = CallJudge(
            self.result,
            self.held_to,
            lowered,
            self.has_examples,
            for_devices=bool(self.keep or self.watchers),
        )
        self._may_vary = bool(
            find_random_operators(self.program)
            or find_uninitialized(self.program, None)
        )
        self._describe_limits()

    @property
    def source(self) -> Source:
        return self.references.source

    @property
    def measures_rounding(self) -> bool:
        return self.held_to.derived or self.quantized is not None

    @property
    def is_random(self) -> bool:
        """Whether the config declares that the method samples."""
        return self.settings.select_random(self.result.method)

    def fail_for(self, error: Exception) -> None:
        """Record an unexpected error from torch as a failure, and print its traceback to stderr."""
        log_traceback(error)
        self.result.fail(
            f"validation stopped at {type(error).__name__}: {reason(error)}"
        )

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except DeviceError as error:
            self.result.fail(self._reason(error))
        except Exception as error:
            self.fail_for(error)

    def _describe_limits(self) -> None:
        """Record what the limits on outputs are derived from, and why."""
        result = self.result
        result.source_is_quantized = self.quantized is None and is_quantized(
            self.program
        )
        if self.quantized is not None:
            result.limits_from = "quantized"
            result.quantized_reason = explain_rounding(self.quantized)
        elif not self.held_to.derived:
            result.limits_from = "config"
            result.limits_reason = CONFIG_REASON
        else:
            result.limits_from = what_it_computes_in(self.program)
            result.limits_reason = explain_rounding(self.program)

    def _fails_for_nondeterminism(self, sets: Sequence[InputSet]) -> bool:
        """Record a failure if the source's runs differ and it isn't declared to sample.

        Returns whether it failed.
        """
        if self.is_random or not (varies := self._describe_nondeterminism(sets)):
            return False
        self.result.fail(varies, about="source")
        return True

    def _describe_nondeterminism(self, sets: Sequence[InputSet]) -> str:
        """Describe how the source's runs differ; "" if they agree, or if the source fails."""
        # Each set costs further runs, which only programs with such operators justify.
        tried = sets if self._may_vary else sets[:1]
        for inputs in tried:
            with suppress(Exception):  # reported by the call on these inputs
                if varies := describe_nondeterminism(self.source, inputs):
                    return varies
        return ""

    def leaves_out(self, name: str) -> bool:
        """Return whether the budget is used up; if so, record a call or case as left out."""
        if self.budget.spent:
            self.result.left_out.append(name)
        return self.budget.spent

    def call_alone(self, inputs: InputSet) -> None:
        """Make one call of a method without state."""
        self.calls = []
        self.call(inputs)

    def run_in_sequence(self, sets: Sequence[InputSet], name: str = "") -> None:
        """Make a sequence of calls on a newly opened package, until one side fails."""
        self.package = Session(self.files)
        self.calls = []
        self.references.reset()
        name = name or sets[0].origin
        for step, inputs in enumerate(sets, 1):
            if step > 1 and self.leaves_out(f"{name}, from call {step} on"):
                break
            if not self.call(inputs, step, name):
                break

    def call(self, inputs: InputSet, step: int = 0, sequence: str = "") -> bool:
        """Make one call; return whether both sides ran, so that a sequence can continue."""
        where = (
            f"{inputs.origin} (call {step} from {sequence})" if step else inputs.origin
        )
        self.calls.append((self.result.method, inputs))
        as_it_lies = inputs.case in ("strided", "expanded")
        try:
            expected = self._expected(inputs, as_it_lies)
        except DeviceError as error:
            # A source may take only so many calls in a row: a cache is full, for example.
            if inputs in self.examples and step < 3:
                self.result.fail(error.reason, where)
            else:
                self.result.skipped.append((where, error.reason))
            return False
        failed = len(self.result.failures)
        if step <= 1 and self._may_vary and self._fails_for_nondeterminism([inputs]):
            return False
        run = JudgedCall(
            inputs.origin, (), step, sequence, inputs.generated, inputs.case
        )
        try:
            actual = self._run_package(inputs, as_it_lies)
            call = Call(
                actual, expected, inputs, run, where, as_it_lies, self._hint(run)
            )
            lowered = self.judge.judge(call, self.references, self.calls)
            for watch in self.watchers:
                watch(self.result, inputs, lowered)
            # Later calls start from another state, large cases have other limits, and strided
            # cases, whose layout a bundle replaces by the plan's, would only repeat other inputs.
            if len(self.calls) == 1 and not inputs.growth and not as_it_lies:
                self._keep(inputs, expected)
            return True
        except DeviceError as error:
            self.result.fail(self._reason(error), where)
            return False
        finally:
            if len(self.result.failures) > failed and not self.result.failing:
                self._keep_failing(failed)

    def _run_package(self, inputs: InputSet, as_it_lies: bool) -> list[Any]:
        leaves = flatten(self.program, inputs, as_it_lies)
        started = time.perf_counter()
        outputs = self.package.run(self.result.method, leaves)
        self.result.seconds += time.perf_counter() - started
        return outputs

    def _keep(self, inputs: InputSet, expected: Sequence[Any]) -> None:
        if self.keep is not None:
            self.keep(
                self.result.method,
                inputs.origin,
                flatten(self.program, inputs),
                expected,
            )

    def _keep_failing(self, failed: int) -> None:
        """Keep the calls up to the failure; the last call's failures start at number `failed`."""
        result = self.result
        result.failing = tuple(self.calls)
        shown = result.failures[failed:]
        result.fails_quantized = all(
            failure["about"] == "quantized" for failure in shown
        )
        runs = result.quantized_runs if result.fails_quantized else result.runs
        result.failing_limits = runs[-1].limits if runs else ()

    def _expected(self, inputs: InputSet, as_it_lies: bool = False) -> list[Any]:
        """Run the source on tensors as they lie in memory, or as exported. Raises DeviceError."""
        try:
            return self.references.run_source(inputs, as_it_lies)
        except Exception as error:  # an operator may raise anything
            raise DeviceError(
                f"{self.result.method}: ", describe_source_error(error)
            ) from error

    def _reason(self, error: DeviceError) -> str:
        """Describe why the package failed, with the source line of the failing instruction.

        The line is that of a failed delegate or kernel, or of the operator that lacks a kernel.
        """
        if error.instruction is not None:
            line = self.describe_instruction(error.instruction)
            return add_remedy("; of ".join(filter(None, (error.reason, line))))
        if error.debug_handle is None:
            lines = self._find_lines(_KERNEL.findall(error.reason))
            return add_remedy("; of ".join([error.reason, *lines]))
        line = self.lines.get(error.debug_handle, f"debug handle {error.debug_handle}")
        return f"{error.reason}; of {line}"

    def _find_lines(self, kernels: Sequence[str]) -> list[str]:
        """Return the lines of the source that call operators of these names, without duplicates."""
        lines: dict[str, None] = {}
        for node in iter_nodes(self.program):
            if base_name(node) in kernels:
                place = source_line(node)
                if place:
                    lines[str(place)] = None
        return list(lines)

    def _hint(self, run: JudgedCall) -> str:
        if run.step != 1 or not self.source.nonzero:
            return ""
        names = ", ".join(self.source.nonzero)
        hint = f"; {names} starts with values other than zeros, which a package contains only"
        return f"{hint} if InitializedMutableBufferPass names the buffer"
