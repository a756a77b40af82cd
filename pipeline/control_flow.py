"""What ExecuTorch can't do with control flow, told before it fails or computes something else."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from pipeline.errors import PipelineError
from pipeline.graphs import graph_modules

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
