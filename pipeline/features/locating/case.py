"""A failed method: the known facts, and the description of a culprit.

A culprit is described by its operator, its module and its line in the model's source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from executorch.exir import schema
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram

from pipeline.config.validation import Limits
from pipeline.devices.interface import PackageFiles
from pipeline.devices.package_data import PackageData, read_package
from pipeline.features.locating.interpreter.execute import steps
from pipeline.features.locating.interpreter.load import (
    InterpretedMethod,
    get_instructions,
    load_method,
    shared_memory,
)
from pipeline.features.locating.records import CulpritKind
from pipeline.features.locating.records import CulpritRecord as Culprit
from pipeline.features.locating.walk import Compared
from pipeline.program.graphs import iter_nodes
from pipeline.program.inputs import InputSet
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import node_label
from pipeline.program.signature import flatten
from pipeline.program.source_lines import source_line
from pipeline.run.prove.subject import LoweredMethod
from pipeline.validate.budget import Budget
from pipeline.validate.limits import check_limits
from pipeline.validate.metrics import OutputError, compare
from pipeline.validate.node_values import NodeValues

MethodCall = tuple[str, Sequence[Any]]  # a method and flat inputs


@dataclass(frozen=True)
class Spot:
    """A spot in a method: the place of a node, and the delegate or kernel that runs it."""

    place: int | None = None
    backend: str | None = None
    delegate: int | None = None
    kernel: str = ""

    @property
    def kind(self) -> CulpritKind:
        return "operator" if self.delegate is None else "delegate"


@dataclass(frozen=True)
class Evidence:
    """The known facts about a package.

    Functions are called only if their result is needed, and may raise PipelineError if it is
    unavailable.

    Attributes:
        sources: the program of each method, in floating point.
        limits: the limits of a method's outputs against the lowered program, with both tolerances.
        lower_again: lowers a method once more, without a cache, and returns its delegates.
        source_limits: the limits of a method's outputs against its source; None if they are the
            same.
        root: the workspace in which source lines are looked up.
    """

    files: PackageFiles
    sources: Mapping[str, ExportedProgram]
    limits: Callable[[str], Limits]
    lowered: Callable[[str], LoweredMethod]
    lower_again: Callable[[str], Sequence[LoweredBackendModule]]
    root: Path
    source_limits: Callable[[str], Limits | None] = lambda method: None


@dataclass(frozen=True)
class Located:
    """The spots where a method goes wrong.

    Attributes:
        culprits: the causes of the failure, in order.
        notes: what could not be determined, one line each.
        calls: the calls that showed the failure.
        first: by the number of a call, the first value that diverges, if one was found.
    """

    culprits: tuple[Culprit, ...] = ()
    notes: tuple[str, ...] = ()
    calls: tuple[tuple[str, InputSet], ...] = ()
    first: Mapping[int, Compared] = field(default_factory=dict)


class FailureCase:
    """A failed method, the calls that show its failure, and the notes taken so far.

    Attributes:
        failing: the methods and inputs of a sequence, which includes other methods if they share
            the failed method's state.
        first: as in `Located`; all views of a case share it.
        floor: the least SQNR in dB that the package must have against the lowered program. It
            applies in addition to the limits, which for a quantized method are wide and against the
            float program.
        budget: the remaining time.
        calls: the same calls with flat inputs, if these are known.
    """

    def __init__(
        self,
        evidence: Evidence,
        method: str,
        failing: Sequence[tuple[str, InputSet]],
        budget: Budget,
        calls: Sequence[MethodCall] = (),
    ) -> None:
        self.evidence = evidence
        self.method = method
        self.failing = failing
        self.budget = budget
        self._calls = calls
        self.notes: list[str] = []
        self.first: dict[int, Compared] = {}
        self.floor: float | None = None

    def note(self, sentence: str) -> None:
        self.notes.append(f"{self.method}: {sentence}")

    @cached_property
    def lowered(self) -> LoweredMethod:
        return self.evidence.lowered(self.method)

    @cached_property
    def limits(self) -> Limits:
        return self.evidence.limits(self.method)

    @cached_property
    def source_limits(self) -> Limits | None:
        return self.evidence.source_limits(self.method)

    @cached_property
    def data(self) -> PackageData:
        return read_package(self.evidence.files)

    @cached_property
    def sequence(self) -> list[MethodCall]:
        if self._calls:
            return list(self._calls)
        return [
            (m, flatten(self.evidence.sources[m], inputs)) for m, inputs in self.failing
        ]

    @property
    def methods(self) -> list[str]:
        return sorted({method for method, _ in self.sequence})

    def view(self, method: str) -> FailureCase:
        """Return the same calls, seen from another method."""
        if method == self.method:
            return self
        view = FailureCase(
            self.evidence, method, self.failing, self.budget, self._calls
        )
        view.notes = self.notes
        view.first = self.first
        return view

    @property
    def lowered_programs(self) -> dict[str, ExportedProgram]:
        """The lowered program of each method that is called."""
        return {name: self.evidence.lowered(name).program for name in self.methods}

    def make_sources(
        self, programs: Mapping[str, ExportedProgram]
    ) -> dict[str, NodeValues]:
        """Return the sources of the methods that are called, with their shared state."""
        sources = NodeValues.with_common_state(
            {name: programs[name] for name in self.methods}
        )
        for source in sources.values():
            source.budget = self.budget
        return sources

    def advance(self, programs: Mapping[str, ExportedProgram]) -> NodeValues:
        """Return the method's source in the state after all calls but the last."""
        sources = self.make_sources(programs)
        for method, inputs in self.sequence[:-1]:
            sources[method].call(inputs, ())
        return sources[self.method]

    def all_agree(
        self,
        actual: Sequence[Any],
        expected: Sequence[Any],
        limits: Limits | None = None,
    ) -> bool:
        """Return whether outputs stay within limits, by default the method's."""
        if len(actual) != len(expected):
            return False
        limits = limits or self.limits
        for value, reference in zip(actual, expected, strict=True):
            error = compare(value, reference)
            if check_limits(error, value, reference, limits):
                return False
        return True

    def matches_lowered(self, actual: Sequence[Any], expected: Sequence[Any]) -> bool:
        """Return whether outputs match the lowered program's."""
        if self.floor is None:
            return self.all_agree(actual, expected)
        tolerances = Limits(atol=self.limits.atol, rtol=self.limits.rtol)
        near = self.all_agree(actual, expected, tolerances)
        return near and least_sqnr(actual, expected) >= self.floor

    def find(self, index: int) -> Spot:
        """Return an instruction's node, and the delegate or kernel that it calls."""
        plan = self.data.plans[self.method]
        calls = get_instructions(plan)
        call = None
        if index < len(calls):
            call = calls[index].instr_args
        if isinstance(call, schema.DelegateCall):
            return Spot(
                None, plan.delegates[call.delegate_index].id, call.delegate_index
            )
        kernel = ""
        if isinstance(call, schema.KernelCall):
            operator = plan.operators[call.op_index]
            kernel = ".".join(filter(None, (operator.name, operator.overload)))
        return Spot(self.lowered.instructions.node_places.get(index), kernel=kernel)

    def find_runner(self, place: int) -> Spot:
        """Return the delegate that runs any part of the node at a place, or else the kernel."""
        instructions = self.lowered.instructions
        for call in instructions.delegates:
            if place in call.places:
                return replace(self.find(call.index), place=place)
        for _, index, node_place in reversed(instructions.nodes):
            if node_place == place:
                return replace(self.find(index), place=place)
        return Spot(place)

    def facts(self, place: int | None) -> tuple[str, str, str]:
        """Return the operator at a place, its module, and its line in the model's source."""
        if place is None:
            return "", "", ""
        node = source = list(iter_nodes(self.lowered.program))[place]
        origin = (self.lowered.origins or {}).get(place)
        if origin is not None:
            source = list(iter_nodes(self.evidence.sources[self.method]))[origin]
        line = source_line(source, self.evidence.root)
        where = "" if line is None else f"{line.file}:{line.line}"
        return node_label(node), innermost_module(source), where

    def describe(self, spot: Spot, operator: str = "") -> str:
        """Describe a spot in words; `operator` may replace the operator at its place."""
        label, module, line = self.facts(spot.place)
        where = " in ".join(filter(None, (operator or label, module)))
        parts = [part for part in (where, line) if part]
        if spot.delegate is not None:
            parts.append(
                f"{'in ' if parts else ''}{spot.backend}'s delegate {spot.delegate}"
            )
        return ", ".join(parts) or "an instruction that lowering added"

    def culprit(
        self,
        spot: Spot,
        kind: CulpritKind,
        sentence: str,
        error: OutputError | None = None,
    ) -> Culprit:
        """Return the record of a culprit."""
        operator, module, line = self.facts(spot.place)
        return Culprit(
            operator=operator,
            module=module,
            line=line,
            backend=spot.backend,
            partition=spot.delegate,
            kernel=spot.kernel,
            kind=kind,
            what=sentence,
            error=None if error is None else error.to_json(),
        )


def load_methods(
    data: PackageData, methods: Iterable[str]
) -> dict[str, InterpretedMethod]:
    """Load methods in the interpreter, with their shared state."""
    plans = {name: data.plans[name] for name in methods}
    shared = shared_memory(list(plans.values()))
    return {name: load_method(plan, data, shared) for name, plan in plans.items()}


def run_until(
    data: PackageData,
    calls: Sequence[MethodCall],
    index: int | None = None,
    visit: int = 0,
    budget: Budget | None = None,
) -> InterpretedMethod | None:
    """Make calls in the interpreter, the last one only up to an instruction if `index` is given.

    Args:
        index: the instruction after which the last call stops; by default it runs to the end.
        visit: how often that instruction has run before, from 0.
        budget: the time limit; None means no limit.

    Returns:
        The method of the last call in its state at that point; None if the instruction doesn't run.
    """
    budget = budget or Budget()
    loaded = load_methods(data, sorted({method for method, _ in calls}))
    last, inputs = calls[-1]
    for method, call_inputs in calls[:-1]:
        for _ in steps(loaded[method], call_inputs):
            budget.check()
    for number in steps(loaded[last], inputs):
        budget.check()
        if number == index and visit == 0:
            return loaded[last]
        visit -= number == index
    if index is None:
        return loaded[last]
    return None


def least_sqnr(actual: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the lowest SQNR of several outputs, in dB."""
    ratios = [compare(a, e).sqnr_db for a, e in zip(actual, expected, strict=False)]
    return min((ratio for ratio in ratios if ratio is not None), default=math.inf)


def describe_error(error: OutputError) -> str:
    """Describe an error in words."""
    if error.mismatch is not None:
        return error.mismatch
    if error.disagreeing:
        values = "value" if error.disagreeing == 1 else "values"
        return f"{error.disagreeing} {values} NaN or infinite, but not on both sides"
    ratio = "" if error.sqnr_db is None else f", SQNR {error.sqnr_db:.1f} dB"
    return f"error {error.max_abs:.3g}{ratio}"
