"""What ExecuTorch can't do with control flow, told before it fails or computes something else, and
what quantizers leave of it."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from pipeline.program.graphs import graph_modules
from pipeline.store.errors import PipelineError

# exir/emit/_emitter.py, `_emit_control_flow`.
_EMITTED = frozenset({"cond", "map_impl", "scan"})
_INSTEAD = {
    "while_loop": "use torch.scan over a fixed number of steps, or call the method in a loop"
}


def refuse_unsupported(programs: Mapping[str, ExportedProgram]) -> None:
    """Raises PipelineError where a program has control flow that ExecuTorch doesn't emit."""
    wrong = [
        f"{method}: {_operator(node)}{_place(node)} can't be emitted by ExecuTorch; "
        + _INSTEAD.get(_operator(node), f"it emits {', '.join(sorted(_EMITTED))}")
        for method, program in programs.items()
        for module in graph_modules(program.graph_module)
        for node in module.graph.nodes
        if _takes_graphs(node) and _operator(node) not in _EMITTED
    ]
    if wrong:
        raise PipelineError("; ".join(wrong))


@contextmanager
def telling_what_torch_fails_on(programs: Mapping[str, ExportedProgram]) -> Iterator[None]:
    """Within it, what torch 2.13.0 can't decompose is told as what it is. The scan of a program
    that was quantized is such: its body is given tensors of another tracing.

    Raises:
        PipelineError: in place of torch's error, where a quantized program has a scan.
    """
    try:
        yield
    except RuntimeError as error:
        scans = [
            f"{method}: scan{_place(node)}"
            for method, program in programs.items()
            if any("quantize" in str(node.target) for node in program.graph.nodes)
            for module in graph_modules(program.graph_module)
            for node in module.graph.nodes
            if _operator(node) == "scan"
        ]
        if "FunctionalTensor on its own" not in str(error) or not scans:
            raise
        raise PipelineError(
            f"{', '.join(scans)} stands in a quantized method, which torch can't lower; leave "
            "`quantize` out, or put the scan into a method of its own"
        ) from error


def left_float(program: ExportedProgram) -> int:
    """How many operators of a quantized program's control flow compute in floating point. No
    quantizer looks into its bodies."""
    bodies = list(graph_modules(program.graph_module))[1:]
    return sum(
        node.op == "call_function"
        and node.target is not operator.getitem
        and not _takes_graphs(node)
        and _is_float(node.meta.get("val"))
        for body in bodies
        for node in body.graph.nodes
    )


def _is_float(value: Any) -> bool:
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in values)


def refuse_views_of_carries(programs: Mapping[str, ExportedProgram]) -> None:
    """Refuses the body of a scan that looks at its carry through a view.

    `remove_view_copy` makes such a copy a view of what the carry was in the first step
    (tests/test_control_flow.py has the numbers); nothing fails, the output is wrong.

    Raises:
        PipelineError: one does.
    """
    wrong = [
        f"{method}: scan{_place(node)} reads its carry through a view (as a linear layer does), "
        "which ExecuTorch emits wrongly; say `emit: {remove_view_copy: false}`"
        for method, program in programs.items()
        for module in graph_modules(program.graph_module)
        for node in module.graph.nodes
        if _operator(node) == "scan" and _views_a_carry(module, node)
    ]
    if wrong:
        raise PipelineError("; ".join(wrong))


def _views_a_carry(module: GraphModule, scan: Node) -> bool:
    body = getattr(module, str(scan.args[0].target))  # type: ignore[union-attr]
    carries = [node for node in body.graph.nodes if node.op == "placeholder"]
    carries = carries[: len(scan.args[1])]  # type: ignore[arg-type]
    return any(
        getattr(user.target, "__name__", "") == "aten.view_copy.default"
        for carry in carries
        for user in carry.users
    )


def _takes_graphs(node: Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator) and any(
        argument.op == "get_attr" for argument in node.all_input_nodes
    )


def _operator(node: Node) -> str:
    """Its name; "" for what is no control flow."""
    target = node.target
    return target.name() if isinstance(target, torch._ops.HigherOrderOperator) else ""


def _place(node: Node) -> str:
    """` in module decoder.loop`, as far as it is known."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    name = stack[-1][0].removeprefix("L['self'].") if stack else ""
    return f" in module {name}" if name else ""
