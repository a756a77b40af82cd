"""Compiles a partition to text: the preprocess function, without a `BackendDetails` class."""

from __future__ import annotations

from typing import Any

import torch
from executorch.backends.transforms.utils import get_param_tensor, is_param_node
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.dialects._ops import ops
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.features.add_sub.text import Instruction, type_of
from pipeline.program.operators import node_label
from pipeline.program.source_lines import describe_node
from pipeline.store.digest import hash_bytes
from pipeline.store.errors import PipelineError

OPERATIONS: dict[Any, Any] = {
    ops.edge.aten.add.Tensor: "add",
    ops.edge.aten.sub.Tensor: "sub",
    # Edge conversion inserts it before operands of other dtypes.
    ops.edge.dim_order_ops._to_dim_order_copy.default: "cast",
}


def preprocess(
    program: ExportedProgram, compile_specs: list[CompileSpec]
) -> PreprocessResult:
    """Compile a partition in edge dialect; its constants become named data, keyed by content.

    `debug_handle_map` maps each line number to the debug handle of its node. Equal partitions give
    equal bytes.

    Raises PipelineError, with the source line, if a node has no instruction.
    """
    numbers = {node: number for number, node in enumerate(program.graph.nodes, 1)}
    data = NamedDataStore()
    lines: list[Instruction] = []
    for node in numbers:
        operands: Any = node.args[0] if node.op == "output" else node.args
        line = _compile_node(program, node, data)
        line["operands"] = tuple(numbers[operand] for operand in operands)
        lines.append(Instruction(**line))
    handles = {
        number: (line.handle,) for number, line in enumerate(lines, 1) if line.handle
    }
    payload = "\n".join(line.model_dump_json(exclude_defaults=True) for line in lines)
    store = data.get_named_data_store_output()
    return PreprocessResult(payload.encode(), handles, store if store.buffers else None)


def _compile_node(
    program: ExportedProgram, node: Node, data: NamedDataStore
) -> dict[str, Any]:
    """Return the fields of a node's instruction, except operands, and store the node's constant."""
    if node.op == "output":
        return {"operation": "output"}
    line = {"operation": "input", "type": type_of(node.meta["val"])}
    if is_param_node(program, node):
        tensor: Any = get_param_tensor(program, node)
        content = (
            tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
        key = f"add_sub/{hash_bytes(content)}"
        data.add_named_data(key, content)
        return {**line, "operation": "constant", "data": key}
    if node.op != "call_function":
        return line
    if not has_instruction(node):
        raise PipelineError(
            f"add_sub has no instruction for {node_label(node)}: {describe_node(node)}"
        )
    return {
        **line,
        "operation": OPERATIONS[node.target],
        "handle": node.meta.get("debug_handle"),
        "alpha": node.kwargs.get("alpha", 1),
    }


def has_instruction(node: Node) -> bool:
    """Return whether a node can be compiled; the partitioner also calls this."""
    if node.target not in OPERATIONS:
        return False
    for operand in node.args:
        value = operand.meta.get("val") if isinstance(operand, Node) else operand
        if not isinstance(value, torch.Tensor):
            return False
    return type(node.kwargs.get("alpha", 1)) in (int, float)  # known before the run
