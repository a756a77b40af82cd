"""The preprocess function: compiles a partition to text. There is no `BackendDetails` class.

It needs ExecuTorch's types and nothing of the runtime.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.dialects._ops import ops
from executorch.exir.tensor import dim_order_from_stride
from torch.export import ExportedProgram
from torch.fx import Node

from pipeline.backends.add_sub.text import DTYPES, seal, type_of
from pipeline.program.operators import node_label, operator_name
from pipeline.program.source_lines import describe_node
from pipeline.store import digest
from pipeline.store.errors import PipelineError

_OPERATIONS: dict[Any, str] = {
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
    named = NamedDataStore()
    constants = _constants(program)
    values: dict[Node, str] = {}
    lines: list[str] = []
    handles = {}
    for node in program.graph.nodes:
        if node.op == "output":
            lines += [f"output {values[each]}" for each in node.args[0]]
            continue
        values[node] = f"v{len(values)}"
        result = f"{values[node]} {type_of(node.meta['val'])}"
        if node.name in constants:
            data = constants[node.name].view(torch.uint8).numpy().tobytes()
            key = f"add_sub/{digest.hash_bytes(data)}"
            named.add_named_data(key, data, _ALIGNMENT)
            lines.append(f"constant {result} data {key}")
        elif node.op == "placeholder":
            lines.append(f"input {result}")
        else:
            handle = node.meta.get("debug_handle", "-")
            operands = " ".join(values[each] for each in node.args if isinstance(each, Node))
            alpha = "" if is_copy(node) else f" alpha={json.dumps(node.kwargs.get('alpha', 1))}"
            lines.append(f"{_OPERATIONS[node.target]} {result} @{handle} = {operands}{alpha}")
            if handle != "-":
                handles[len(lines) + 1] = (handle,)
    store = named.get_named_data_store_output()
    return PreprocessResult(seal(lines), handles, store if store.buffers else None)


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


def _constants(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the numbers of constants, row by row, by the names of their nodes."""
    signature, tensors = program.graph_signature, {**program.constants, **program.state_dict}
    targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    targets |= signature.inputs_to_lifted_tensor_constants
    return {name: tensors[key].detach().contiguous().flatten() for name, key in targets.items()}
