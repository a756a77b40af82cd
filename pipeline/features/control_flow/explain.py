"""Explains, in the model's terms, control flow that ExecuTorch can't lower or emits incorrectly."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from executorch.exir import ExecutorchBackendConfig
from executorch.exir.error import InternalError
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.program.graphs import iter_nodes
from pipeline.program.module_paths import innermost_module
from pipeline.program.operators import control_flow_name
from pipeline.store.errors import PipelineError

_log = logging.getLogger(__name__)
# From exir/emit/_emitter.py, `_emit_control_flow`.
_EMITTED = frozenset({"cond", "map_impl", "scan"})
_EDGE = frozenset({*_EMITTED, "executorch_call_delegate"})


@contextmanager
def explain_emission(
    programs: Mapping[str, ExportedProgram], config: ExecutorchBackendConfig
) -> Iterator[None]:
    """Warn about control flow that is emitted wrongly, and reject what isn't supported.

    Raises PipelineError, which replaces the emitter's error.

    Args:
        programs: edge programs, from which decomposition has removed what it inlines, such as
            `torch.no_grad()`.
    """
    if config.remove_view_copy:
        _warn_of_views_of_carries(programs)
    try:
        yield
    except InternalError as error:
        emitted = ", ".join(sorted(_EMITTED))
        faults = []
        for place, node in _find_control_flow(programs):
            if control_flow_name(node) not in _EDGE:
                faults.append(
                    f"{place} can't be emitted by ExecuTorch, which emits {emitted}"
                )
        if not faults:
            raise
        raise PipelineError("; ".join(faults)) from error


@contextmanager
def explain_lowering(programs: Mapping[str, ExportedProgram]) -> Iterator[None]:
    """Raise PipelineError instead of torch's error about a scan in a quantized program.

    Quantizing gives the scan's body tensors from another trace, which torch 2.13.0 can't decompose.
    """
    try:
        yield
    except RuntimeError as error:
        quantized = {}
        for method, program in programs.items():
            if any("quantize" in str(node.target) for node in program.graph.nodes):
                quantized[method] = program
        scans = []
        for place, node in _find_control_flow(quantized):
            if control_flow_name(node) == "scan":
                scans.append(place)
        if "FunctionalTensor on its own" not in str(error) or not scans:
            raise
        raise PipelineError(
            f"{', '.join(scans)} is in a quantized method, which torch can't lower; leave out "
            "`quantize`, or move the scan to a method of its own"
        ) from error


def _warn_of_views_of_carries(programs: Mapping[str, ExportedProgram]) -> None:
    """Log a warning for each scan whose body reads its carry through a view.

    `remove_view_copy` turns such a copy into a view of the first step's carry
    (tests/compile/test_control_flow.py has the numbers); nothing fails, but the output is wrong.
    """
    for place, node in _find_control_flow(programs):
        if control_flow_name(node) == "scan" and _views_a_carry(node):
            _log.warning(
                "%s reads its carry through a view (as a linear layer does), which ExecuTorch "
                "emits incorrectly; set `emit: {remove_view_copy: false}`",
                place,
            )


def _views_a_carry(scan: Node) -> bool:
    body: Any = getattr(scan.graph.owning_module, str(scan.args[0].target))  # type: ignore[union-attr]
    carries = body.graph.find_nodes(op="placeholder")[: len(scan.args[1])]  # type: ignore[arg-type]
    users = (user for carry in carries for user in carry.users)
    return any(
        getattr(user.target, "__name__", "") == "aten.view_copy.default"
        for user in users
    )


def _find_control_flow(
    programs: Mapping[str, ExportedProgram],
) -> Iterator[tuple[str, Node]]:
    """Yield each control flow operator with its location, such as `run: scan in module loop`."""
    for method, program in programs.items():
        for node in iter_nodes(program):
            takes_graph = any(
                argument.op == "get_attr" for argument in node.all_input_nodes
            )
            name = control_flow_name(node) if takes_graph else ""
            if not name:
                continue
            module = innermost_module(node)
            place = f"{method}: {name}"
            if module:
                place += f" in module {module}"
            yield place, node
