"""The preprocess function: compiles a partition to text. There is no `BackendDetails` class."""

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

from pipeline.backends.add_sub.text import Instruction, type_of
from pipeline.program.operators import node_label
from pipeline.program.source_lines import describe_node
from pipeline.store.digest import hash_bytes
from pipeline.store.errors import PipelineError

OPERATIONS: dict[Any, Any] = {
    ops.edge.aten.add.Tensor: "add",
    ops.edge.aten.sub.Tensor: "sub",
    # Edge conversion puts it before operands of other dtypes.
    ops.edge.dim_order_ops._to_dim_order_copy.default: "cast",
}


def preprocess(program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
    """Compile a partition in edge dialect; its constants become named data, keyed by content.

    `debug_handle_map` leads from the number of a line to the debug handle of its node. The same
    partition gives the same bytes.

    Raises PipelineError: a node has no instruction; with its source line.
    """
    numbers = {node: number for number, node in enumerate(program.graph.nodes, 1)}
    data, lines = NamedDataStore(), list[Instruction]()
    for node in numbers:
        line: dict[str, Any] = {"operation": "output" if node.op == "output" else "input"}
        operands: Any = node.args[0] if node.op == "output" else node.args
        if is_param_node(program, node):
            tensor: Any = get_param_tensor(program, node)
            content = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            line = {"operation": "constant", "data": f"add_sub/{hash_bytes(content)}"}
            data.add_named_data(line["data"], content)
        elif node.op == "call_function":
            if not has_instruction(node):
                what = f"{node_label(node)}: {describe_node(node)}"
                raise PipelineError(f"add_sub has no instruction for {what}")
            line = {"operation": OPERATIONS[node.target], "handle": node.meta.get("debug_handle")}
            line["alpha"] = node.kwargs.get("alpha", 1)
        if node.op != "output":
            line["type"] = type_of(node.meta["val"])
        lines.append(Instruction(**line, operands=tuple(numbers[each] for each in operands)))
    handles = {number: (line.handle,) for number, line in enumerate(lines, 1) if line.handle}
    payload = "\n".join(line.model_dump_json(exclude_defaults=True) for line in lines)
    store = data.get_named_data_store_output()
    return PreprocessResult(payload.encode(), handles, store if store.buffers else None)


def has_instruction(node: Node) -> bool:
    """Return whether a call can be compiled; the partitioner asks too."""
    operands = [each.meta.get("val") if isinstance(each, Node) else each for each in node.args]
    return (
        node.target in OPERATIONS
        and all(isinstance(operand, torch.Tensor) for operand in operands)
        and type(node.kwargs.get("alpha", 1)) in (int, float)  # and no number of the run
    )
