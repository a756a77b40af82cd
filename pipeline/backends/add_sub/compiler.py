"""Compiling a partition into the text that the runtime reads: the preprocess function.

It needs ExecuTorch's types and nothing of the runtime, and there is no `BackendDetails` class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.dialects._ops import ops
from executorch.exir.tensor import dim_order_from_stride
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.fx import Node

from pipeline.backends.add_sub import text
from pipeline.program.source_lines import told
from pipeline.store import digest
from pipeline.store.errors import PipelineError

_OPERATIONS: dict[Any, text.Operation] = {
    ops.edge.aten.add.Tensor: "add",
    ops.edge.aten.sub.Tensor: "sub",
    # What edge conversion puts before operands of other dtypes and behind constants of the code.
    ops.edge.dim_order_ops._to_dim_order_copy.default: "cast",
    ops.edge.dim_order_ops._clone_dim_order.default: "cast",
    ops.edge.aten._to_copy.default: "cast",
    ops.edge.aten.clone.default: "cast",
}
_CONSTANT = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
# A constant of more numbers is named data: stored once, however many methods and packages have it.
MOST_NUMBERS = 16
_ALIGNMENT = 16  # bytes; the runtime's default for named data


def preprocess(program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
    """The text of a partition in edge dialect, with what of it is named data.

    `debug_handle_map` leads from a line of the text to the debug handle of the node that it was
    made of. The same partition gives the same bytes.

    Raises:
        PipelineError: it holds what the text has no instruction for, node by node with the line of
            the model's source; or there are compile specs, of which none means anything.
    """
    if compile_specs:
        keys = ", ".join(spec.key for spec in compile_specs)
        raise PipelineError(f"add_sub takes no compile specs; given {keys}")
    wrong = [f"{refusal(node)}: {told(node)}" for node in program.graph.nodes if refusal(node)]
    if wrong:
        raise PipelineError("\n".join(f"add_sub {each}" for each in wrong))
    named = NamedDataStore()
    instructions = list(_instructions(program, named))
    data = named.get_named_data_store_output()
    return PreprocessResult(
        processed_bytes=text.write(instructions),
        debug_handle_map={
            line: (each.handle,)
            for line, each in enumerate(instructions, 2)
            if isinstance(each, text.Constant | text.Compute) and each.handle is not None
        },
        data_store_output=data if data.buffers else None,
    )


def refusal(node: Node) -> str:
    """Why a node can't be compiled, or ""; asked by the partitioner too."""
    if node.op in ("placeholder", "output"):
        return ""
    if node.op != "call_function" or node.target not in _OPERATIONS:
        return f"has no instruction for {_name(node)}"
    for value in (*node.all_input_nodes, node):
        if reason := _refused_value(value.meta.get("val")):
            return f"takes no {reason} in {_name(node)}"
    if type(node.kwargs.get("alpha", 1)) not in (int, float, bool):
        return f"takes no alpha that is known only at run time in {_name(node)}"
    return ""


def is_copy(node: Node) -> bool:
    """Whether it computes nothing."""
    return _OPERATIONS.get(node.target) == "cast"


def _refused_value(value: Any) -> str:
    """What of a value the text has no words for."""
    if not isinstance(value, torch.Tensor):
        return "value that is no tensor"
    if _dtype(value) not in text.DTYPES:
        return f"{_dtype(value)} tensor"
    try:
        order = dim_order_from_stride(value.stride())
    except RuntimeError:  # of a stride of 0
        order = ()
    return "" if order == tuple(range(value.dim())) else "tensor whose dimensions are in disorder"


def _instructions(program: ExportedProgram, named: NamedDataStore) -> Iterator[text.Instruction]:
    """In the order of the graph, with numbers for its values."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    values: dict[Node, int] = {}
    for node in program.graph.nodes:
        if node.op == "output":
            yield from (text.Output(values[each]) for each in node.args[0])
            continue
        value = values[node] = len(values)
        kind = _type(node)
        if node.op == "call_function":
            yield _compute(node, value, kind, [values[each] for each in _operands(node)])
        elif specs[node.name].kind in _CONSTANT:
            tensor = _tensor(program, specs[node.name])
            yield _constant(tensor, value, kind, _handle(next(iter(node.users), node)), named)
        else:
            yield text.Input(value, kind)


def _compute(node: Node, value: int, kind: text.TensorType, operands: list[int]) -> text.Compute:
    alpha = node.kwargs.get("alpha", 1)
    alpha = int(alpha) if isinstance(alpha, bool) else alpha
    operation = _OPERATIONS[node.target]
    return text.Compute(value, kind, _handle(node), operation, tuple(operands), alpha)


def _operands(node: Node) -> Iterable[Node]:
    """The tensors of its arguments in their order, one that is there twice included."""
    return [each for each in node.args if isinstance(each, Node)]


def _constant(
    tensor: torch.Tensor,
    value: int,
    kind: text.TensorType,
    handle: int | None,
    named: NamedDataStore,
) -> text.Constant:
    numbers = _numbers(tensor)
    if numbers is not None:
        return text.Constant(value, kind, handle, numbers)
    data = _bytes(tensor)
    key = f"add_sub/{digest.of_bytes(data)}"
    named.add_named_data(key, data, _ALIGNMENT)
    return text.Constant(value, kind, handle, None, key)


def _numbers(tensor: torch.Tensor) -> tuple[text.Number, ...] | None:
    """The numbers of a constant, if there are few and the text gives back their very bits: not
    every NaN is the one that `nan` means."""
    if tensor.numel() > MOST_NUMBERS:
        return None
    plain = tensor.double() if tensor.is_floating_point() else tensor.long()
    numbers = plain.flatten().tolist()
    again = torch.tensor([type(each)(repr(each)) for each in numbers], dtype=tensor.dtype)
    return tuple(numbers) if _bytes(again) == _bytes(tensor) else None


def _bytes(tensor: torch.Tensor) -> bytes:
    """Row by row, whatever its strides are."""
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _tensor(program: ExportedProgram, spec: InputSpec) -> torch.Tensor:
    name = str(spec.target)
    table = program.state_dict if name in program.state_dict else program.constants
    return table[name]


def _type(node: Node) -> text.TensorType:
    value = node.meta["val"]
    sizes = tuple(size if type(size) is int else None for size in value.shape)
    return text.TensorType(_dtype(value), sizes)


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _handle(node: Node) -> int | None:
    handle = node.meta.get("debug_handle")
    return handle if type(handle) is int else None


def _name(node: Node) -> str:
    if node.op != "call_function":
        return f"{node.op} {node.target}"
    target: Any = node.target
    return target.name().replace("::", ".") if hasattr(target, "name") else target.__name__
