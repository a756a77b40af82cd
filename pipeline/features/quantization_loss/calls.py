"""Judges what quantization costs a method, call by call, then over all calls.

The outputs of the package are compared with those of the float programs. Not only a quantized
method loses: a float one does, too, if it reads state that a quantized one writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from pipeline.config.validation import Limits
from pipeline.features.quantization_loss.input_ranges import describe_far_inputs
from pipeline.features.quantization_loss.judge import QuantizationJudge
from pipeline.features.quantization_loss.labels import find_labels
from pipeline.features.quantization_loss.parts import find_parts
from pipeline.features.quantization_loss.pooled_output import OF_LABELS
from pipeline.moments import call_all
from pipeline.program.inputs import InputSet
from pipeline.report.verdicts import PASSED
from pipeline.store.errors import listed
from pipeline.validate.call_judge import Call, CallJudge, compare_outputs
from pipeline.validate.limits import OutputLimits
from pipeline.validate.metrics import OutputError
from pipeline.validate.runs import JudgedCall, figures_to_json, find_worst

_OF_FLOAT = ", against the float program: lost in quantization"
_MOST_NAMED = 3


class FloatComparison:
    """Compares the calls of a method with its float program.

    The findings are added to the method's result.

    Attributes:
        writers: the quantized methods that write state of a float method; empty for a quantized
            method.

    Args:
        calls: the judge of the method's calls.
        limits: the limits of the config.
        diverges: how the program with observers diverges from the float one; "" if it doesn't.
        lowered: the quantized program; the program itself for a float method.
    """

    def __init__(
        self,
        calls: CallJudge,
        limits: Limits,
        diverges: str,
        lowered: ExportedProgram,
    ) -> None:
        self.writers: list[str] = []
        self._calls = calls
        self._lowered = lowered
        self._result = calls.result
        self._labels = find_labels(lowered)
        self._loss = QuantizationJudge(
            self._result.outputs, limits, diverges, self._labels, find_parts(lowered)
        )
        # How far the float program moves, relative to the limits of the config.
        self._movement: list[Any] = list(call_all("judge_movement", None))
        self._noisiest: Sequence[tuple[str, InputSet]] = ()
        self._least_sqnr = math.inf
        self._first_example: InputSet | None = None
        self._runs_on_examples: list[JudgedCall] = []
        self._is_affected = False  # whether quantization changed an expected output

    def add_writers(self, methods: Sequence[str]) -> None:
        """Add quantized methods that write state of a float method."""
        self.writers += [name for name in methods if name not in self.writers]

    @property
    def _of_float(self) -> str:
        if not self.writers:
            return _OF_FLOAT
        return f", against the float programs: {self._cause}"

    @property
    def _cause(self) -> str:
        """A phrase that names the quantized methods whose state costs accuracy."""
        names = listed([f"'{name}'" for name in self.writers], _MOST_NAMED)
        return f"lost in the quantization of {names}, whose state it reads"

    def judge_call(
        self,
        call: Call,
        calls: Sequence[tuple[str, InputSet]],
        lowered: Sequence[Any],
    ) -> JudgedCall:
        """Judge a call by the limits of the config, if it is on an example.

        On other inputs, its figures say nothing about accuracy. Calls of a float method don't count
        before a quantized method was called.

        Args:
            calls: the calls since the package was opened, this one last.
            lowered: the outputs of the program that was lowered, on state that others wrote.
        """
        if self.writers and not any(name in self.writers for name, _ in calls):
            return call.run
        is_example = not call.inputs.generated and not call.run.case
        generated = not (is_example and self._calls.has_examples)
        errors = compare_outputs(call.actual, call.expected)
        self._loss.add(call.actual, call.expected, errors, generated)
        if not generated:
            self._note_noise(errors, calls)
            self._note_inputs(call.inputs)
        config_limits = self._calls.held_to.of_config(call.inputs, call.expected)
        limits: list[Limits] = []
        of_movement: list[Limits] = []
        for place, output_limits in enumerate(config_limits):
            # Agreement holds over all examples together.
            set_limits = {**dict(output_limits), "min_agreement": None}
            if place in self._labels:
                unfit = set_limits.keys() - {*OF_LABELS}
                set_limits |= dict.fromkeys(unfit)
            applied = OutputLimits(**set_limits, integers=True)
            limits.append(OutputLimits(integers=True) if generated else applied)
            # The judge finds a `min_agreement` that could not fail for integers.
            is_limited = output_limits.min_agreement is None and any(
                limit is not None for limit in set_limits.values()
            )
            of_movement.append(applied if is_limited else output_limits)
        # Extreme inputs move outputs by more than any limit, which shows nothing.
        if not call.run.case:
            for movement in self._movement:
                movement.add(call.expected, of_movement, call.inputs)
        judged_run = replace(call.run, outputs=errors, limits=tuple(limits))
        if self.writers and not generated:
            self._runs_on_examples.append(judged_run)
        if self.writers and not _differ(lowered, call.expected):
            return judged_run  # the same limits judge the lowering
        self._is_affected = True
        ratios = self._calls.fail_beyond(
            judged_run, call, call.expected, self._of_float, "quantization"
        )
        return replace(judged_run, of_limits=ratios)

    def _note_noise(
        self, errors: Sequence[OutputError], calls: Sequence[tuple[str, InputSet]]
    ) -> None:
        """Record the calls up to this one if it is the noisiest so far."""
        for error in errors:
            if error.sqnr_db is not None and error.sqnr_db < self._least_sqnr:
                self._least_sqnr = error.sqnr_db
                self._noisiest = tuple(calls)

    def _note_inputs(self, inputs: InputSet) -> None:
        """Record whether an example has other values than the first one."""
        if self._first_example is None:
            self._first_example = inputs
        if not self._loss.inputs_vary:
            self._loss.inputs_vary = not _have_same_values(self._first_example, inputs)

    def release(self) -> None:
        """Release the resources needed only while calls are made."""
        for movement in self._movement:
            movement.release()

    def conclude(self, program: ExportedProgram, examples: Sequence[InputSet]) -> None:
        """Add the verdict on the quantization of the float `program` to the result.

        Each divergence is added as a failure. A float method whose calls show no effect of
        quantization gets no verdict.
        """
        result = self._result
        if self.writers and self._loss.was_called and not self._is_affected:
            return
        divergences = self._loss.find_divergences()
        cause = ""
        if divergences and self._calls.has_examples:
            cause = describe_far_inputs(self._lowered, examples)
        for output, fault in divergences:
            result.fail(f"{fault}{cause}", output=output, about="quantization")
            if not result.failing:
                result.failing = self._noisiest
        failed = any(failure["about"] == "quantization" for failure in result.failures)
        left_out = [inputs for inputs in examples if inputs.origin in result.left_out]
        record = self._loss.judge(failed, len(left_out), bool(result.random))
        record["reason"] += cause
        if self.writers:
            if failed:
                record["reason"] = "its outputs differ too much from the float ones"
            record["reason"] += f"; {self._cause}"
            record["writers"] = [*self.writers]
            record["figures"] = figures_to_json(find_worst(self._runs_on_examples))
        still = self._loss.find_indifferent_outputs()
        for movement in self._movement:
            still += movement.find_indifferent_outputs(
                program, result.outputs, result.state, examples
            )
        # A failure remains a failure, whatever else could not be shown.
        if still and record["verdict"] == PASSED:
            record["verdict"] = "not judged"
            names = listed(list(dict.fromkeys(still)), 3)
            record["reason"] = (
                f"its limits could not fail for {names}: they are wider than the float "
                "program moves over all calls; set stricter ones"
            )
        result.quantization = record


def _differ(outputs: Sequence[Any], other_outputs: Sequence[Any]) -> bool:
    errors = compare_outputs(outputs, other_outputs)
    return any(error.mismatch or error.max_abs for error in errors)


def _have_same_values(inputs: InputSet, other_inputs: InputSet) -> bool:
    if inputs is other_inputs:
        return True
    leaves = pytree.tree_leaves((inputs.args, inputs.kwargs))
    other_leaves = pytree.tree_leaves((other_inputs.args, other_inputs.kwargs))
    if len(leaves) != len(other_leaves):
        return False
    return all(map(_is_same, leaves, other_leaves))


def _is_same(value: Any, other_value: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(other_value, Tensor):
        return torch.equal(value, other_value)
    return bool(type(value) is type(other_value) and value == other_value)
