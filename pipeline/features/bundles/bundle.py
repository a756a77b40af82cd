"""Makes bundled programs: a package in one file with inputs and its source's outputs for them.

ExecuTorch's runtime runs such a `.bpte` on a device and compares the outputs, without any code of
this project. The file contains only the `.pte` of a package and stores no tolerances, which are
passed to the runtime. Calls that the format can't express are left out, with the reason.
Source: executorch/devtools/bundled_program/{config,core}.py, serialize/__init__.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from executorch.exir.schema import Bool, Double, ExecutionPlan, Int, Tensor

from pipeline.compile.objects import program_from_bytes
from pipeline.store.sizes import human_size
from pipeline.validate.limits import widest
from pipeline.validate.method_result import MethodValidation

_NUMBERS = {Int: int, Double: float, Bool: bool}


# One call: flat inputs, and the source's outputs from its initial state.
BundleCase = tuple[Sequence[Any], Sequence[Any]]


def measure_case(case: BundleCase) -> int:
    """Return the bytes of a case's tensors."""
    inputs, expected = case
    tensors = [v for v in (*inputs, *expected) if isinstance(v, torch.Tensor)]
    return sum(tensor.nbytes for tensor in tensors)


class BundleCases:
    """The cases of each method, collected while a package is validated.

    Attributes:
        limit: the maximum bytes of a method's cases.
        cases: the cases, by method and by the origin of their inputs.
        left_out: by method, the origin and the reason of each omission; an empty origin means all
            cases.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.cases: dict[str, dict[str, BundleCase]] = {}
        self.left_out: dict[str, list[tuple[str, str]]] = {}

    def keep(
        self, method: str, origin: str, inputs: Sequence[Any], expected: Sequence[Any]
    ) -> None:
        """Add a case, unless one of the same origin exists or the method's limit leaves no room."""
        cases = self.cases.setdefault(method, {})
        if origin in cases:
            return
        case = (inputs, expected)
        size = measure_case(case)
        room = self.limit - sum(map(measure_case, cases.values()))
        if size <= room:
            cases[origin] = case
            return
        limit = f"{human_size(room)} of bundle_limit {human_size(self.limit)} are left"
        self.leave_out(method, origin, f"{human_size(size)}, and {limit}")

    def leave_out(self, method: str, origin: str, reason: str) -> None:
        omissions = self.left_out.setdefault(method, [])
        if (origin, reason) not in omissions:
            omissions.append((origin, reason))


def bundle(pte: Path, collected: BundleCases) -> bytes:
    """Return the bundled program of a package, which is equal for equal packages and cases.

    Cases that can't be expressed move to `left_out`.
    """
    # The package `devtools` imports pandas and more, which takes seconds.
    from executorch.devtools.bundled_program.config import (
        MethodTestCase,
        MethodTestSuite,
    )
    from executorch.devtools.bundled_program.core import BundledProgram
    from executorch.devtools.bundled_program.serialize import (
        serialize_from_bundled_program_to_flatbuffer,
    )

    plans = {
        plan.name: plan for plan in program_from_bytes(pte.read_bytes()).execution_plan
    }
    suites = []
    # In the order of names, so that equal packages have equal bytes.
    for method, cases in sorted(collected.cases.items()):
        expressible = {}
        plan = plans[method]
        for origin, case in cases.items():
            if reason := _inexpressible(plan, case):
                collected.leave_out(method, "", reason)
            else:
                expressible[origin] = case
        collected.cases[method] = expressible
        tests = [
            MethodTestCase(list(inputs), list(expected))
            for inputs, expected in expressible.values()
        ]
        suites += [MethodTestSuite(method, tests)] if tests else []
    bundled = BundledProgram(None, suites, pte_file_path=str(pte))
    for suite in bundled.serialize_to_schema().method_test_suites:
        plan = plans[suite.method_name]
        pairs = zip(
            suite.test_cases,
            collected.cases[suite.method_name].values(),
            strict=True,
        )
        for test, (inputs, expected) in pairs:
            _lay_out(plan, plan.inputs, test.inputs, inputs)
            _lay_out(plan, plan.outputs, test.expected_outputs, expected)
    return bytes(serialize_from_bundled_program_to_flatbuffer(bundled))


def find_tolerances(method: MethodValidation) -> tuple[float, float]:
    """Return the absolute and the relative tolerance for a runtime on a device.

    Without an absolute limit, the absolute tolerance is twice the greatest error over all inputs,
    since all are bundled: generated inputs of a quantized method can be far beyond its ranges.
    """
    limits = method.wide_limits
    if method.device_limits:
        limits = widest(method.device_limits)
    runs = [run for run in method.runs if run.case != "large"]
    errors = [error.max_abs for run in runs for error in run.outputs]
    least = limits["atol"]
    if least is None:
        least = 2 * max(errors, default=0.0)
    return least, limits["rtol"] or 0.0


def describe_bundle(
    collected: BundleCases, methods: Iterable[MethodValidation]
) -> dict[str, Any]:
    """Return the JSON description of a bundled program, by method; constant methods have no cases.

    `cases` are in the order of the numbers passed to the runtime, `rtol` and `atol` are the
    tolerances to pass to it, and `state` lists the buffers that each case needs in their initial
    values, so the method has to be loaded again for each.
    """
    described = {}
    for method in methods:
        if method.kind != "program":
            continue
        absolute, relative = find_tolerances(method)
        left_out = [
            {"origin": origin, "reason": reason}
            for origin, reason in collected.left_out.get(method.method, [])
        ]
        described[method.method] = {
            "cases": list(collected.cases.get(method.method, ())),
            "rtol": relative,
            "atol": absolute,
            "state": list(method.state),
            "left_out": left_out,
        }
    return described


def _inexpressible(plan: ExecutionPlan, case: BundleCase) -> str:
    """Return why a call of this method can't be a test case, or "" if it can."""
    places = (
        *((f"input {n}", index) for n, index in enumerate(plan.inputs)),
        *((f"output {n}", index) for n, index in enumerate(plan.outputs)),
    )
    inputs, expected = case
    for (name, index), value in zip(places, (*inputs, *expected), strict=True):
        kind = type(plan.values[index].val)
        if kind is Tensor and isinstance(value, torch.Tensor):
            if name.startswith("output") and value.dtype is torch.bfloat16:
                return f"{name} is bfloat16, which the runtime compares bit by bit"
            continue
        if name.startswith("output"):
            return f"{name} is not a tensor; a bundled program compares only tensors"
        # Exactly this type: in Python, a bool is an int, too.
        if type(value) is not _NUMBERS.get(kind):
            return f"{name} is neither a tensor nor a number, which a bundled program can't hold"
    return ""


def _lay_out(
    plan: ExecutionPlan,
    indices: Sequence[int],
    serialized: Sequence[Any],
    values: Sequence[Any],
) -> None:
    """Store tensors in the dim order in which the plan reads and writes them.

    ExecuTorch makes them all contiguous; it refuses contiguous inputs if the plan has another
    order, and compares outputs regardless of it.
    """
    for index, serialized_value, value in zip(indices, serialized, values, strict=True):
        declared = plan.values[index].val
        if isinstance(declared, Tensor):
            order = list(declared.dim_order)
            dense = value.detach().permute(order).contiguous().reshape(-1)
            serialized_value.val.data = dense.view(torch.uint8).numpy().tobytes()
            serialized_value.val.dim_order = order
