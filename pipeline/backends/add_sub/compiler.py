"""The preprocess function: compiles a partition to text. There is no `BackendDetails` class."""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.dialects._ops import ops
from executorch.exir.tensor import dim_order_from_stride
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.backends.add_sub.text import DTYPES, Instruction, type_of, write
from pipeline.program.operators import node_label, operator_name
from pipeline.program.source_lines import describe_node
from pipeline.store.digest import hash_bytes
from pipeline.store.errors import PipelineError

_OPERATIONS: dict[Any, Any] = {
    ops.edge.aten.add.Tensor: "add",
    ops.edge.aten.sub.Tensor: "sub",
    # What edge conversion puts before operands of other dtypes and behind constants of the code.
    ops.edge.dim_order_ops._to_dim_order_copy.default: "cast",
    ops.edge.dim_order_ops._clone_dim_order.default: "cast",
    ops.edge.aten._to_copy.default: "cast",
    ops.edge.aten.clone.default: "cast",
}
_ALIGNMENT = 16  # bytes; the runtime's default for named data


def preprocess(program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
    """Compile a partition in edge dialect; its constants become named data, keyed by content.

    `debug_handle_map` leads from a line of the text to the debug handle of the node that it was
    made of. The same partition gives the same bytes.

    Raises:
        PipelineError: nodes have no instruction; tells of all of them, with their source lines.
    """
    reasons = [(node, refusal(node)) for node in program.graph.nodes]
    if wrong := [f"add_sub {reason}: {describe_node(node)}" for node, reason in reasons if reason]:
        raise PipelineError("\n".join(wrong))
    data, constants = NamedDataStore(), _constants(program)
    names: dict[Node, str] = {}
    lines: list[Instruction] = []
    for node in program.graph.nodes:
        if node.op == "output":
            operands = tuple(names[each] for each in node.args[0])
            lines.append(Instruction(operation="output", operands=operands))
            continue
        result: dict[str, Any] = {"value": f"v{len(names)}", "type": type_of(node.meta["val"])}
        if node.name in constants:
            key = f"add_sub/{hash_bytes(constants[node.name])}"
            data.add_named_data(key, constants[node.name], _ALIGNMENT)
            lines.append(Instruction(operation="constant", data=key, **result))
        elif node.op == "placeholder":
            lines.append(Instruction(operation="input", **result))
        else:
            result["operands"] = tuple(names[each] for each in node.args if isinstance(each, Node))
            result["alpha"] = node.kwargs.get("alpha", 1)
            result["handle"] = node.meta.get("debug_handle")
            lines.append(Instruction(operation=_OPERATIONS[node.target], **result))
        names[node] = result["value"]
    handles = {number: (line.handle,) for number, line in enumerate(lines, 2) if line.handle}
    store = data.get_named_data_store_output()
    return PreprocessResult(write(lines), handles, store if store.buffers else None)


def refusal(node: Node) -> str:
    """Return why a node can't be compiled, or ""; the partitioner asks too."""
    if node.op in ("placeholder", "output"):
        return ""
    name = operator_name(node) or node_label(node)
    if node.op != "call_function" or node.target not in _OPERATIONS:
        return f"has no instruction for {name}"
    for value in (each.meta.get("val") for each in (*node.all_input_nodes, node)):
        if not isinstance(value, torch.Tensor):
            return f"takes no value that is no tensor in {name}"
        if (dtype := type_of(value).partition("[")[0]) not in DTYPES:
            return f"takes no {dtype} tensor in {name}"
        if list(dim_order_from_stride(value.stride())) != list(range(value.dim())):
            return f"takes no tensor whose dimensions are in disorder in {name}"
    if not isinstance(node.kwargs.get("alpha", 1), int | float):
        return f"takes no alpha that is known only at run time in {name}"
    return ""


def is_copy(node: Node) -> bool:
    """Return whether a node computes nothing."""
    return _OPERATIONS.get(node.target) == "cast"


def _constants(program: ExportedProgram) -> dict[str, bytes]:
    """Return the numbers of constants, row by row, by the names of their nodes."""
    signature, tensors = program.graph_signature, {**program.constants, **program.state_dict}
    targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    targets |= signature.inputs_to_lifted_tensor_constants
    plain = {name: tensors[key].detach().contiguous().flatten() for name, key in targets.items()}
    return {name: each.view(torch.uint8).numpy().tobytes() for name, each in plain.items()}
