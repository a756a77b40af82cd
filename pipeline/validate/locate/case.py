"""What is known of a method that failed, and how a culprit is told: by the operator, the module and
the line of the model's source."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from executorch.exir import schema
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.compile.emit_trace import Instructions
from pipeline.compile.inspect.delegation import nodes_of
from pipeline.devices.interface import PackageFiles
from pipeline.devices.interpreter.execute import steps
from pipeline.devices.interpreter.load import (
    Data,
    Method,
    instructions_of,
    load,
    read_package,
    shared_memory,
)
from pipeline.program.inputs import InputSet
from pipeline.program.operators import modules_of
from pipeline.program.signature import flatten
from pipeline.program.source_lines import source_line
from pipeline.report.records import CulpritKind
from pipeline.report.records import CulpritRecord as Culprit
from pipeline.validate.locate.node_values import together
from pipeline.validate.locate.plan_diff import plans
from pipeline.validate.locate.walk import Held
from pipeline.validate.metrics import OutputError, compare, within


@dataclass(frozen=True)
class Made:
    """A method as it was lowered: `program` is the quantized one where there is one, and `origins`
    then lead from its places to those of the float program; None for one that is not."""

    program: ExportedProgram
    instructions: Instructions
    origins: Mapping[int, int] | None = None


@dataclass(frozen=True)
class Again:
    """A method that was lowered once more: the program, and its delegates in their order."""

    program: ExportedProgram
    delegates: Sequence[LoweredBackendModule]


@dataclass(frozen=True)
class Evidence:
    """What is known of a package. What is a function is asked for only where it is needed, and may
    raise PipelineError where it isn't to be had.

    Attributes:
        sources: the program of each method, in floating point.
        built: the package as its build gives it; None where this one is the same.
        again: lowers a method once more, without a cache.
        root: the workspace, in which source lines are looked for.
    """

    files: PackageFiles
    sources: Mapping[str, ExportedProgram]
    limits: Callable[[str], Held]
    made: Callable[[str], Made]
    built: Callable[[], PackageFiles | None]
    again: Callable[[str], Again]
    root: Path


@dataclass(frozen=True)
class Located:
    """Culprits, the first one first, and what could not be found out, a line each. `index` is the
    instruction whose value departs first, where the walk found one, `output` which of its results,
    `call` the number of the call in which it does, and `expected` what it must give. `calls` are
    those that showed it."""

    culprits: tuple[Culprit, ...] = ()
    notes: tuple[str, ...] = ()
    index: int | None = None
    output: int = 0
    call: int = 0
    expected: Any = None
    calls: tuple[tuple[str, InputSet], ...] = ()


@dataclass
class Case:
    """One method that failed, the calls that show it, and what has been noted on the way."""

    evidence: Evidence
    method: str
    failing: Sequence[tuple[str, InputSet]]
    notes: list[str] = field(default_factory=list)
    shown: dict[str, Any] = field(default_factory=dict)  # of `Located`, what a walk found
    # The least SQNR in dB that the package may have against the program that was lowered, beside
    # the limits: those of a quantized method are against the float program, and wide.
    floor: float | None = None
    # Whether it may be run: what ended a process would end another one.
    may_run: bool = True

    def note(self, what: str) -> None:
        self.notes.append(f"{self.method}: {what}")

    @cached_property
    def made(self) -> Made:
        return self.evidence.made(self.method)

    @cached_property
    def source(self) -> ExportedProgram:
        return self.evidence.sources[self.method]

    @cached_property
    def limits(self) -> Held:
        return self.evidence.limits(self.method)

    @cached_property
    def data(self) -> Data:
        return read_package(self.evidence.files)

    @cached_property
    def sequence(self) -> list[tuple[str, list[Any]]]:
        """The calls, each with its method and flat inputs. Other methods than the one that failed
        are among them where they share its state."""
        return [(m, flatten(self.evidence.sources[m], inputs)) for m, inputs in self.failing]

    @property
    def calls(self) -> list[list[Any]]:
        """Flat inputs of the method's own calls."""
        return [inputs for method, inputs in self.sequence if method == self.method]

    @cached_property
    def methods(self) -> list[str]:
        return sorted({self.method, *(method for method, _ in self.sequence)})

    def of(self, method: str) -> Case:
        """The same calls, seen from another method."""
        return self if method == self.method else replace(self, method=method, floor=None)

    def load(self, data: Data | None = None) -> dict[str, Method]:
        """The methods that are called, for the interpreter, with their initial state."""
        data = data or self.data
        own = {name: plans(data)[name] for name in self.methods}
        shared = shared_memory(list(own.values())) if len(own) > 1 else None
        return {name: load(plan, data, shared) for name, plan in own.items()}

    def replayed(self, count: int, data: Data | None = None) -> dict[str, Method]:
        """The methods after so many calls."""
        loaded = self.load(data)
        for method, inputs in self.sequence[:count]:
            for _ in steps(loaded[method], inputs):
                pass
        return loaded

    def outputs_of(self, programs: Mapping[str, ExportedProgram]) -> list[Any]:
        """What programs give in the last call."""
        values = together({name: programs[name] for name in self.methods})
        for method, inputs in self.sequence:
            outputs = values[method].call(inputs, ())
        return outputs

    def outputs_agree(self, actual: Any, expected: Any) -> bool:
        """Whether an output is as near as the tolerances of the method ask."""
        error = compare(actual, expected)
        if error.mismatch is not None or error.disagreeing:
            return False
        return within(error, actual, expected, self.limits.atol, self.limits.rtol).ok

    def all_agree(self, actual: Sequence[Any], expected: Sequence[Any]) -> bool:
        return len(actual) == len(expected) and all(map(self.outputs_agree, actual, expected))

    def as_lowered(self, actual: Sequence[Any], expected: Sequence[Any]) -> bool:
        """Whether outputs are those of the program that was lowered."""
        if not self.all_agree(actual, expected):
            return False
        return self.floor is None or least_sqnr(actual, expected) >= self.floor

    def place_of(
        self, index: int | None, data: Data | None = None
    ) -> tuple[int | None, str | None, int | None]:
        """The place of the node that an instruction is part of; its delegate's backend and number,
        where it calls one."""
        if index is None:
            return None, None, None
        plan = plans(data or self.data)[self.method]
        calls = instructions_of(plan)
        call = calls[index].instr_args if index < len(calls) else None
        if isinstance(call, schema.DelegateCall):
            number = call.delegate_index
            return None, plan.delegates[number].id, number
        return dict(self.made.instructions.nodes).get(index), None, None

    def nodes(self, place: int) -> tuple[Node, Node]:
        """The node that was lowered, and the one of the float program that it comes from."""
        node = list(nodes_of(self.made.program))[place]
        origins = self.made.origins
        at = place if origins is None else origins.get(place)
        return node, node if at is None else list(nodes_of(self.source))[at]

    def told(self, place: int | None, backend: str | None = None, number: int | None = None) -> str:
        """Where something is, for people."""
        parts = [] if place is None else [self.told_node(*self.nodes(place))]
        if number is not None:
            parts.append(f"{'in ' if parts else ''}{backend}'s delegate {number}")
        return ", ".join(parts) or "an instruction that lowering made"

    def told_node(self, node: Node, source: Node) -> str:
        module, line = module_of(source), self.line(source)
        operator = operator_name(node)
        within_module = f"{operator} in {module}" if module else operator
        return f"{within_module}, {line}" if line else within_module

    def line(self, node: Node) -> str:
        found = source_line(node, self.evidence.root)
        return "" if found is None else f"{found.file}:{found.line}"

    def culprit(
        self,
        place: int | None,
        kind: CulpritKind,
        what: str,
        error: OutputError | None = None,
        backend: str | None = None,
        partition: int | None = None,
    ) -> Culprit:
        node, source = (None, None) if place is None else self.nodes(place)
        return Culprit(
            operator="" if node is None else operator_name(node),
            module="" if source is None else module_of(source),
            line="" if source is None else self.line(source),
            backend=backend,
            partition=partition,
            kind=kind,
            what=what,
            error=None if error is None else error.to_json(),
        )


def operator_name(node: Node) -> str:
    """As `aten.linear.default`; the name of a node that calls no operator."""
    if node.op != "call_function":
        return node.name
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    name = getattr(node.target, "name", None)
    return str(name() if callable(name) else getattr(node.target, "__name__", node.target))


def module_of(node: Node) -> str:
    """The qualified name of the innermost module that a node is from."""
    return next(reversed(modules_of(node)), "")


def least_sqnr(actual: Sequence[Any], expected: Sequence[Any]) -> float:
    """Of several outputs, in dB."""
    ratios = [compare(a, e).sqnr_db for a, e in zip(actual, expected, strict=False)]
    return min((ratio for ratio in ratios if ratio is not None), default=math.inf)


def figures(error: OutputError) -> str:
    """An error, for people."""
    if error.mismatch is not None:
        return error.mismatch
    if error.disagreeing:
        values = "value" if error.disagreeing == 1 else "values"
        return f"{error.disagreeing} {values} NaN or infinite on one side only"
    ratio = "" if error.sqnr_db is None else f", SQNR {error.sqnr_db:.1f} dB"
    return f"error {error.max_abs:.3g}{ratio}"


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
