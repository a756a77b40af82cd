"""Finds the node at which a delegate diverges, by lowering less and less of its partition.

A delegate shows nothing but its outputs. So the partition is cut after some of its nodes, in the
order of the graph, the part before the cut is preprocessed and run as a delegate of its own on the
inputs that the whole one was given, and its outputs are compared with the same nodes in eager mode.
The shortest beginning that diverges ends with the culprit: without that node, it agrees.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir import schema
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.scalar_type import ScalarType
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Node

from pipeline.compile.preprocess.cache import preprocess_programs
from pipeline.devices.bindings import DTYPES
from pipeline.devices.interpreter.load import delegate_runtime
from pipeline.program.operators import base_name
from pipeline.validate.locate.node_values import NodeValues
from pipeline.validate.metrics import OutputError, compare

MOST_COMPILES = 16
MOST_SECONDS = 60.0

Departs = Callable[[OutputError, Any, Any], bool]


@dataclass(frozen=True)
class Bisection:
    """The culprit, a node of the partition, or None; `note` says how it was found, or why not.

    `error` is that of the first output that diverges.
    """

    node: Node | None
    note: str
    error: OutputError | None = None


@dataclass(frozen=True)
class _Cut:
    """A beginning of a partition: its last node, and the nodes that the rest reads."""

    last: Node
    outputs: list[Node]


def bisect_delegate(
    module: LoweredBackendModule, inputs: Sequence[Any], departs: Departs
) -> Bisection:
    """Bisect a delegate that diverges on these inputs, which are those of its partition."""
    program = module.original_module
    source = NodeValues(program)
    source.call(inputs)
    if source.left_out:
        return Bisection(None, "its values are too much to hold")
    values = {source.nodes[place].name: seen[0] for place, seen in source.values.items()}
    cuts = list(_cuts(program))
    if not cuts:
        return Bisection(None, "it can't be cut")
    errors: dict[int, OutputError | None] = {}  # of the cuts that the backend takes
    refused: set[int] = set()

    def diverges(number: int) -> bool | None:
        """Return whether a cut diverges; None where the backend does not take it."""
        if number not in errors and number not in refused:
            try:
                errors[number] = _run(module, cuts[number], inputs, values, departs)
            except Exception:  # whatever a backend raises for what it was not asked to take
                refused.add(number)
        return None if number in refused else errors[number] is not None

    low, high = 0, len(cuts) - 1  # the first diverging one is among these
    whole = diverges(high)
    if whole is None:
        return Bisection(None, "its backend does not preprocess the partition alone")
    if not whole:
        return Bisection(None, "lowered again by itself, the partition agrees")
    deadline = time.monotonic() + MOST_SECONDS
    while low < high:
        compiles = len(errors) + len(refused)
        if compiles >= MOST_COMPILES or time.monotonic() > deadline:
            names = f"{cuts[low].last.name} to {cuts[high].last.name}"
            note = f"narrowed to {high - low + 1} nodes, {names}, in {compiles} compiles, the limit"
            return Bisection(cuts[high].last, note, errors.get(high))
        middle = (low + high) // 2
        taken = (n for n in range(middle, low - 1, -1) if diverges(n) is not None)
        nearest = next(taken, None)  # the nearest cut before it that the backend takes
        if nearest is None:
            low = middle + 1
        elif diverges(nearest):
            high = nearest
        else:
            low = nearest + 1
    while high in refused and high < len(cuts) - 1:
        high += 1
    note = f"found in {len(errors) + len(refused)} compiles of parts of the partition"
    return Bisection(cuts[high].last, note, errors.get(high))


def _run(
    module: LoweredBackendModule,
    cut: _Cut,
    inputs: Sequence[Any],
    values: Mapping[str, Any],
    departs: Departs,
) -> OutputError | None:
    """Preprocess and run a beginning; return the error of the first output that diverges."""
    part, kept = _part(module.original_module, [node.name for node in cut.outputs])
    results = preprocess_programs(
        module.backend_id, {"part": [part]}, {"part": [list(module.compile_specs)]}, None
    )
    result = results["part"][0]
    named: dict[str, bytes] = {}
    if (store := result.data_store_output) is not None:
        named = {k: bytes(store.buffers[e.buffer_index]) for k, e in store.pte_data.items()}
    given = [inputs[number] for number in kept]
    expected = [values[node.name] for node in cut.outputs]
    declared = [_declare(value) for value in (*given, *expected)]
    runtime = delegate_runtime(module.backend_id, declared, len(expected))
    specs = [(spec.key, bytes(spec.value)) for spec in module.compile_specs]
    handle = runtime.init(bytes(result.processed_bytes), specs, named)
    try:
        actual = list(runtime.execute(handle, given))
    finally:
        runtime.destroy(handle)
    errors = ((compare(a, e), a, e) for a, e in zip(actual, expected, strict=True))
    return next((error for error, a, e in errors if departs(error, a, e)), None)


def _cuts(program: ExportedProgram) -> Iterator[_Cut]:
    """Yield where a partition may be cut, in its order; the last is behind its end.

    Nodes that a backend fuses are left together: a quantized operator with what quantizes around
    it. A constant, with what is computed of constants alone, belongs to whatever reads it.
    """
    specs = program.graph_signature.input_specs
    lifted = {spec.arg.name for spec in specs if spec.kind is not InputKind.USER_INPUT}
    fixed: set[Node] = set()
    order: list[Node] = []
    for node in program.graph.nodes:
        if node.op == "call_function":
            reads = node.all_input_nodes
            constant = all(i in fixed or i.name in lifted or i.op == "get_attr" for i in reads)
            if constant:
                fixed.add(node)
            else:
                order.append(node)
    quantized = any(base_name(node).startswith("quantize") for node in order)
    before: set[Node] = set()
    for number, node in enumerate(order, 1):
        before.add(node)
        frontier = [n for n in order[:number] if any(user not in before for user in n.users)]
        tensors = all(isinstance(n.meta.get("val"), torch.Tensor) for n in frontier)
        whole = number == len(order) or not quantized or all(map(_may_end, frontier))
        if frontier and tensors and whole:
            yield _Cut(node, frontier)


def _may_end(node: Node) -> bool:
    """Return whether a quantized partition may give this value."""
    beside = (node, *node.all_input_nodes, *node.users)
    is_quantize = base_name(node).startswith("quantize")
    return is_quantize or not any("quantize" in base_name(other) for other in beside)


def _part(program: ExportedProgram, outputs: Sequence[str]) -> tuple[ExportedProgram, list[int]]:
    """Make a partition that ends with these nodes, and number the inputs that it still takes."""
    module = copy.deepcopy(program.graph_module)
    nodes = {node.name: node for node in module.graph.nodes}
    module.graph.output_node().args = (tuple(nodes[name] for name in outputs),)
    module.graph.eliminate_dead_code()
    specs, kept, number = [], [], -1
    for spec in program.graph_signature.input_specs:
        is_input = spec.kind is InputKind.USER_INPUT
        number += is_input
        placeholder = nodes[spec.arg.name]
        if not placeholder.users:
            module.graph.erase_node(placeholder)
            continue
        specs.append(spec)
        kept += [number] if is_input else []
    module.recompile()
    signature = ExportGraphSignature(
        specs,
        [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name), None) for name in outputs],
    )
    used = {spec.target for spec in specs}
    state = {name: t for name, t in program.state_dict.items() if name in used}
    constants = {name: t for name, t in program.constants.items() if name in used}
    part = program._update(module, signature, state_dict=state, constants=constants)
    return part, kept


def _declare(value: Any) -> Any:
    """Declare a value as a plan does."""
    if not isinstance(value, torch.Tensor):
        return schema.Int(int(value))
    kinds = {dtype: number for number, dtype in DTYPES.items()}
    return schema.Tensor(
        scalar_type=ScalarType(kinds[value.dtype]),
        storage_offset=0,
        sizes=list(value.shape),
        dim_order=list(value.dim_order()),
        requires_grad=False,
        layout=0,
        data_buffer_idx=0,
        allocation_info=None,
        shape_dynamism=schema.TensorShapeDynamism.DYNAMIC_BOUND,
    )
