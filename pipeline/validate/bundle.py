"""Bundled programs: a package in one file with inputs and what its source gives on them.

ExecuTorch's runtime runs such a `.bpte` on a device and compares, without any of this project. Of a
package it holds the `.pte` alone; it stores no tolerances, which are given where it is run. What it
can't express is left out, and said.
Source: executorch/devtools/bundled_program/{config,core}.py, serialize/__init__.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from executorch.exir.schema import Bool, Double, ExecutionPlan, Int, Tensor

from pipeline.compile.objects import program_from_bytes
from pipeline.store.sizes import human_size
from pipeline.validate.results import MethodValidation

_NUMBERS = {Int: int, Double: float, Bool: bool}


@dataclass(frozen=True)
class Case:
    """One call: flat inputs and what the source gives on them, the state being the initial one."""

    origin: str
    inputs: Sequence[Any]
    expected: Sequence[Any]

    @property
    def size(self) -> int:
        """In bytes, of its tensors."""
        tensors = [v for v in (*self.inputs, *self.expected) if isinstance(v, torch.Tensor)]
        return sum(tensor.nbytes for tensor in tensors)


@dataclass
class Suites:
    """The cases of each method, collected while a package is validated: at most `limit` bytes a
    method. `left_out` says of each other one, and of a whole method (origin ""), why."""

    limit: int
    cases: dict[str, list[Case]] = field(default_factory=dict)
    left_out: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)

    def keep(
        self, method: str, origin: str, inputs: Sequence[Any], expected: Sequence[Any]
    ) -> None:
        """Takes a case, unless it has one of this origin, or no room."""
        known, case = self.cases.setdefault(method, []), Case(origin, inputs, expected)
        if any(case.origin == other.origin for other in known):
            return
        used = self._sizes.get(method, 0)
        if used + case.size > self.limit:
            self.leave(
                method,
                case.origin,
                f"{human_size(case.size)}, and {human_size(self.limit - used)} of bundle_limit "
                f"{human_size(self.limit)} are left",
            )
        else:
            known.append(case)
            self._sizes[method] = used + case.size

    def leave(self, method: str, origin: str, reason: str) -> None:
        told = self.left_out.setdefault(method, [])
        if (origin, reason) not in told:
            told.append((origin, reason))


def bundle(pte: Path, suites: Suites) -> bytes:
    """The bundled program of a package. What can't be expressed moves to `suites.left_out`; equal
    for equal packages and cases."""
    # The package `devtools` brings pandas and more, which takes seconds.
    from executorch.devtools.bundled_program.config import MethodTestCase, MethodTestSuite
    from executorch.devtools.bundled_program.core import BundledProgram
    from executorch.devtools.bundled_program.serialize import (
        serialize_from_bundled_program_to_flatbuffer,
    )

    plans = {plan.name: plan for plan in program_from_bytes(pte.read_bytes()).execution_plan}
    made = []
    for method, cases in sorted(suites.cases.items()):
        kept, plan = [], plans[method]
        for case in cases:
            if reason := _inexpressible(plan, case):
                suites.leave(method, "", reason)
            else:
                kept.append(case)
        suites.cases[method] = kept
        tests = [MethodTestCase(list(case.inputs), list(case.expected)) for case in kept]
        made += [MethodTestSuite(method, tests)] if tests else []
    bundled = BundledProgram(None, made, pte_file_path=str(pte))
    for suite in bundled.serialize_to_schema().method_test_suites:
        plan = plans[suite.method_name]
        for test, case in zip(suite.test_cases, suites.cases[suite.method_name], strict=True):
            _lay_out(plan, plan.inputs, test.inputs, case.inputs)
            _lay_out(plan, plan.outputs, test.expected_outputs, case.expected)
    return bytes(serialize_from_bundled_program_to_flatbuffer(bundled))


def told_of(suites: Suites, methods: Iterable[MethodValidation]) -> dict[str, Any]:
    """By method, as JSON: the cases in their order, whose numbers the runtime is given; the
    tolerances to give it; the state that a case wants in its initial values, so that a method is
    loaded anew for it; what was left out and why. Constant methods have no cases."""
    return {
        each.method: {
            "cases": [case.origin for case in suites.cases.get(each.method, [])],
            "rtol": each.limits["rtol"],
            "atol": each.limits["atol"],
            "state": list(each.state),
            "left_out": [
                {"origin": origin, "reason": reason}
                for origin, reason in suites.left_out.get(each.method, [])
            ],
        }
        for each in methods
        if each.kind == "program"
    }


def _inexpressible(plan: ExecutionPlan, case: Case) -> str:
    """Why no call of this method can be a test case; "" where it can."""
    places = (
        *((f"input {n}", index) for n, index in enumerate(plan.inputs)),
        *((f"output {n}", index) for n, index in enumerate(plan.outputs)),
    )
    for (name, index), value in zip(places, (*case.inputs, *case.expected), strict=True):
        kind = type(plan.values[index].val)
        if kind is Tensor and isinstance(value, torch.Tensor):
            if name.startswith("output") and value.dtype is torch.bfloat16:
                return f"{name} is bfloat16, which the runtime compares bit by bit"
            continue
        if name.startswith("output"):
            return f"{name} is no tensor; a bundled program compares tensors only"
        if type(value) is not _NUMBERS.get(kind):
            return f"{name} is neither a tensor nor a number, which a bundled program can't hold"
    return ""


def _lay_out(
    plan: ExecutionPlan, indices: Sequence[int], made: Sequence[Any], values: Sequence[Any]
) -> None:
    """Gives tensors the dim order that the plan reads and writes them in. ExecuTorch makes all of
    them contiguous, refuses them so as inputs of another order, and compares without a look at
    it."""
    for index, each, value in zip(indices, made, values, strict=True):
        declared = plan.values[index].val
        if isinstance(declared, Tensor):
            order = list(declared.dim_order)
            dense = value.detach().permute(order).contiguous().reshape(-1)
            each.val.data = dense.view(torch.uint8).numpy().tobytes()
            each.val.dim_order = order
