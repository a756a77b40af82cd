"""Finds the node at which a delegate diverges, by lowering ever smaller parts of its partition.

A delegate reveals nothing but its outputs. So the partition is cut after some of its nodes, in the
order of the graph. The part before the cut is preprocessed and run as a delegate of its own, on the
inputs that the whole delegate was given, and its outputs are compared with the same nodes in eager
mode. The shortest part that diverges ends with the culprit: without that node, the part agrees.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import torch
from executorch.exir import schema
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.tensor import TensorSpec, make_tensor_value
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
from pipeline.devices.interface import PackageFiles
from pipeline.devices.package_data import named_bytes
from pipeline.features.locating.interpreter.load import delegate_runtime
from pipeline.features.locating.interpreter.single import NAME, ExecutorchDelegate
from pipeline.features.locating.walk import Tolerance
from pipeline.program.operators import base_name
from pipeline.validate.metrics import OutputError
from pipeline.validate.node_values import NodeValues

RunPackage = Callable[[PackageFiles, str, Sequence[Any]], Sequence[Any]]
MOST_COMPILES = 16
MOST_SECONDS = 60.0


def bisect_delegate(
    module: LoweredBackendModule,
    inputs: Sequence[Any],
    tolerance: Tolerance,
    seconds: float = MOST_SECONDS,
    run_on_device: RunPackage | None = None,
) -> tuple[Node | None, OutputError | None, str]:
    """Bisect a delegate that diverges on the given inputs of its partition.

    Args:
        seconds: the time after which no further part is compiled.
        run_on_device: runs a method of a package on flat inputs. If given, its outputs are compared
            with those of the same delegate on this machine.

    Returns:
        The culprit, a node of the partition, with the error of the first output that diverges, or
        None; and how it was found, or why not.
    """
    program = module.original_module
    source = NodeValues(program)
    source.call(inputs)
    if source.left_out:
        return None, None, "its values are too large to keep"
    values = {
        source.nodes[place].name: visits[0] for place, visits in source.values.items()
    }
    cuts = list(_cuts(program))
    if not cuts:
        return None, None, "it can't be cut"

    @cache
    def run(number: int) -> OutputError | Literal["agrees", "refused"]:
        try:
            expected = {node.name: values[node.name] for node in cuts[number]}
            error = _run_beginning(module, inputs, expected, tolerance, run_on_device)
            return error or "agrees"
        except Exception:  # a backend may raise anything for a part
            return "refused"

    note = ""
    deadline = time.monotonic() + seconds
    low, high = 0, len(cuts) - 1  # the first diverging cut is in this range
    if run(high) == "refused":
        return None, None, "the partition can't be preprocessed and run on its own"
    if run(high) == "agrees":
        return None, None, "lowered again on its own, the partition agrees"
    while low < high:
        if run.cache_info().misses >= MOST_COMPILES or time.monotonic() > deadline:
            names = f"{cuts[low][-1].name} to {cuts[high][-1].name}"
            compiles = run.cache_info().misses
            note = f"narrowed to {high - low + 1} nodes, {names}, in {compiles} compiles, the limit"
            break
        # The cut closest to the middle, going back from there, that the backend accepts.
        candidates = range((low + high) // 2, low - 1, -1)
        nearest = next(
            (number for number in candidates if run(number) != "refused"), None
        )
        if nearest is None:
            low = candidates.start + 1
        elif run(nearest) == "agrees":
            low = nearest + 1
        else:
            high = nearest
    error = run(high)
    assert isinstance(error, OutputError)
    if note:
        return None, error, note
    compiles = run.cache_info().misses
    note = f"found in {compiles} compiles of parts of the partition"
    return cuts[high][-1], error, note


def _run_beginning(
    module: LoweredBackendModule,
    inputs: Sequence[Any],
    expected: Mapping[str, Any],
    tolerance: Tolerance,
    run_on_device: RunPackage | None,
) -> OutputError | None:
    """Preprocess and run a partition up to some nodes.

    Return the error of the first value that diverges, or None if all agree.
    """
    part, input_numbers = _part(module.original_module, list(expected))
    results = preprocess_programs(
        module.backend_id,
        {"part": [part]},
        {"part": [list(module.compile_specs)]},
        None,
    )
    result = results["part"][0]
    part_inputs = [inputs[number] for number in input_numbers]
    expected_values = list(expected.values())
    declared = [_declare(value) for value in (*part_inputs, *expected_values)]
    description = (module.backend_id, declared, len(expected_values))
    runtime = delegate_runtime(*description)
    specs = [(spec.key, bytes(spec.value)) for spec in module.compile_specs]
    named = named_bytes(result.data_store_output)
    handle = runtime.init(bytes(result.processed_bytes), specs, named)
    try:
        outputs = runtime.execute(handle, part_inputs)
    finally:
        runtime.destroy(handle)
    if run_on_device is None:
        return tolerance.first_error(outputs, expected_values)
    package = ExecutorchDelegate(*description).pack(
        bytes(result.processed_bytes), specs, named
    )
    device_outputs = run_on_device(package, NAME, part_inputs)
    return tolerance.first_error(device_outputs, outputs)


def _declare(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return make_tensor_value(0, None, TensorSpec.from_tensor(value))
    return schema.Int(int(value))


def _cuts(program: ExportedProgram) -> Iterator[list[Node]]:
    """Yield, for each place to cut a partition, the nodes whose values the rest reads.

    Places are in the order of the graph, each after the last of its nodes; the last place is the
    end. Nodes that a backend fuses stay together, such as a quantized operator and the quantize
    nodes around it. A constant, and everything computed from constants alone, belongs to its
    reader.
    """
    order = _computed_nodes(program)
    quantized = any(base_name(node).startswith("quantize") for node in order)
    before: set[Node] = set()
    for number, node in enumerate(order, 1):
        before.add(node)
        frontier = [n for n in order[:number] if not before.issuperset(n.users)]
        if not frontier:
            continue
        tensors = all(isinstance(n.meta.get("val"), torch.Tensor) for n in frontier)
        is_end = number == len(order)
        if tensors and (is_end or not quantized or all(map(_may_end, frontier))):
            yield frontier


def _computed_nodes(program: ExportedProgram) -> list[Node]:
    """Return the operators whose results depend on inputs, in the order of the graph."""
    specs = program.graph_signature.input_specs
    constants = {
        spec.arg.name for spec in specs if spec.kind is not InputKind.USER_INPUT
    }
    fixed: set[Node] = set()
    order: list[Node] = []
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        reads = node.all_input_nodes
        if all(i in fixed or i.name in constants or i.op == "get_attr" for i in reads):
            fixed.add(node)
        else:
            order.append(node)
    return order


def _may_end(node: Node) -> bool:
    """Return whether a quantized partition can output the value of a node."""
    if base_name(node).startswith("quantize"):
        return True
    neighbourhood = (node, *node.all_input_nodes, *node.users)
    return not any("quantize" in base_name(neighbour) for neighbour in neighbourhood)


def find_fused_operator(node: Node) -> Node:
    """Return the operator whose value a node quantizes, or the node itself.

    If a backend fuses several operators with the quantize node, the first of them is returned.
    """
    if not base_name(node).startswith("quantize"):
        return node
    while node.all_input_nodes:
        operand = node.all_input_nodes[0]
        if operand.op != "call_function" or "quantize" in base_name(operand):
            return node
        node = operand
    return node


def _part(
    program: ExportedProgram, outputs: Sequence[str]
) -> tuple[ExportedProgram, list[int]]:
    """Return a partition that ends with some nodes, and the indices of its remaining inputs."""
    module = copy.deepcopy(program.graph_module)
    nodes = {node.name: node for node in module.graph.nodes}
    module.graph.output_node().args = (tuple(nodes[name] for name in outputs),)
    module.graph.eliminate_dead_code()
    declared = program.graph_signature.input_specs
    specs = [spec for spec in declared if nodes[spec.arg.name].users]
    inputs = [spec for spec in declared if spec.kind is InputKind.USER_INPUT]
    input_numbers = [number for number, spec in enumerate(inputs) if spec in specs]
    for spec in declared:
        if spec not in specs:
            module.graph.erase_node(nodes[spec.arg.name])
    module.recompile()
    output_specs = []
    for name in outputs:
        output_specs.append(
            OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name), None)
        )
    signature = ExportGraphSignature(specs, output_specs)
    used = {spec.target for spec in specs}
    state = {name: t for name, t in program.state_dict.items() if name in used}
    constants = {name: t for name, t in program.constants.items() if name in used}
    part = program._update(module, signature, state_dict=state, constants=constants)
    return part, input_numbers
