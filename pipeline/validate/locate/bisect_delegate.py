"""Finds the node at which a delegate goes wrong, by lowering less and less of its partition.

A delegate shows nothing but its outputs. So the partition is cut after some of its nodes, in the
order of the graph, what is before the cut is preprocessed and run as a delegate of its own on the
inputs that the whole one was given, and what it gives is compared with the same nodes in eager
mode. The shortest beginning that departs ends with the culprit: without that node, it agrees.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from torch.fx import Interpreter, Node

from pipeline.backends.delegate_runtime import DelegateError
from pipeline.compile.preprocess.cache import preprocess_programs
from pipeline.devices.bindings import DTYPES
from pipeline.devices.interpreter.load import delegate_runtime
from pipeline.program.operators import operator_of
from pipeline.validate.locate.node_values import MOST_BYTES
from pipeline.validate.metrics import OutputError, compare

MOST_COMPILES = 16
MOST_SECONDS = 60.0

Departs = Callable[[OutputError, Any, Any], bool]


@dataclass(frozen=True)
class Bisected:
    """`node` is the culprit, a node of the partition; None where none was found, and `note` says
    why. `error` is that of the first output that departs."""

    node: Node | None
    note: str
    compiles: int
    error: OutputError | None = None


@dataclass
class _Cut:
    """A beginning of a partition."""

    last: Node
    outputs: list[Node]


def bisect_partition(
    module: LoweredBackendModule, inputs: Sequence[Any], departs: Departs
) -> Bisected:
    """Of a delegate that departs on these inputs, which are those of its partition, in order."""
    program = module.original_module
    values = _eager(program, inputs)
    if values is None:
        return Bisected(None, "its values are too much to hold", 0)
    cuts = list(_cuts(program))
    if not cuts:
        return Bisected(None, "it can't be cut", 0)
    deadline = time.monotonic() + MOST_SECONDS
    compiles = 0
    known: dict[int, OutputError | None] = {}
    failed: set[int] = set()

    def tried(number: int) -> bool | None:
        """Whether a cut departs; None where the backend does not take it."""
        nonlocal compiles
        if number not in known and number not in failed:
            compiles += 1
            try:
                known[number] = _departure(module, program, cuts[number], inputs, values, departs)
            except Exception:  # whatever a backend raises for what it was not asked to take
                failed.add(number)
        return None if number in failed else known[number] is not None

    low, high = 0, len(cuts) - 1  # the first departing one is among these
    whole = tried(high)
    if whole is None:
        return Bisected(None, "its backend does not preprocess the partition alone", compiles)
    if not whole:
        note = "lowered again by itself, the partition agrees"
        return Bisected(None, note, compiles)
    while low < high:
        if compiles >= MOST_COMPILES or time.monotonic() > deadline:
            names = f"{cuts[low].last.name} to {cuts[high].last.name}"
            note = f"narrowed to {high - low + 1} nodes, {names}, in {compiles} compiles, the limit"
            return Bisected(cuts[high].last, note, compiles, known[high])
        middle = (low + high) // 2
        outcome = tried(middle)
        while outcome is None and middle > low:  # the nearest before it that the backend takes
            middle -= 1
            outcome = tried(middle)
        if outcome is None:
            low = (low + high) // 2 + 1
        elif outcome:
            high = middle
        else:
            low = middle + 1
    while high in failed and high < len(cuts) - 1:
        high += 1
    note = f"found in {compiles} compiles of parts of the partition"
    return Bisected(cuts[high].last, note, compiles, known.get(high))


def _departure(
    module: LoweredBackendModule,
    program: ExportedProgram,
    cut: _Cut,
    inputs: Sequence[Any],
    values: Mapping[str, Any],
    departs: Departs,
) -> OutputError | None:
    part, kept = _part(program, [node.name for node in cut.outputs])
    results = preprocess_programs(
        module.backend_id, {"part": [part]}, {"part": [list(module.compile_specs)]}, None
    )
    result = results["part"][0]
    named: dict[str, bytes] = {}
    if result.data_store_output is not None:
        buffers = result.data_store_output.buffers
        entries = result.data_store_output.pte_data
        named = {key: bytes(buffers[entry.buffer_index]) for key, entry in entries.items()}
    given = [inputs[number] for number in kept]
    expected = [values[node.name] for node in cut.outputs]
    declared = [_declared(value) for value in (*given, *expected)]
    runtime = delegate_runtime(module.backend_id, declared, len(expected))
    specs = [(spec.key, bytes(spec.value)) for spec in module.compile_specs]
    handle = runtime.init(bytes(result.processed_bytes), specs, named)
    try:
        actual = list(runtime.execute(handle, given))
    finally:
        runtime.destroy(handle)
    if len(actual) != len(expected):
        raise DelegateError(f"gives {len(actual)} values, must give {len(expected)}")
    for one, other in zip(actual, expected, strict=True):
        error = compare(one, other)
        if departs(error, one, other):
            return error
    return None


def _eager(program: ExportedProgram, inputs: Sequence[Any]) -> dict[str, Any] | None:
    """What each node of a partition gives, by name; None where that is too much to hold."""
    found: dict[str, Any] = {}
    held = 0

    class _Keeping(Interpreter):
        def run_node(self, n: Node) -> Any:
            nonlocal held
            value = super().run_node(n)
            if n.op == "call_function" and held <= MOST_BYTES:
                held += value.nbytes if isinstance(value, torch.Tensor) else 0
                found[n.name] = value
            return value

    tensors = {**program.constants, **program.state_dict}
    given = iter(inputs)
    arguments = [
        next(given) if spec.kind is InputKind.USER_INPUT else tensors[str(spec.target)]
        for spec in program.graph_signature.input_specs
    ]
    with torch.no_grad():
        _Keeping(program.graph_module).run(*arguments)
    return found if held <= MOST_BYTES else None


def _cuts(program: ExportedProgram) -> Iterator[_Cut]:
    """Where a partition may be cut, in its order; the last is behind its end.

    What a backend fuses is left together: a quantized operator with what quantizes around it. A
    constant, with what is computed of constants alone, belongs to whatever reads it.
    """
    lifted = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind is not InputKind.USER_INPUT
    }
    fixed: set[Node] = set()
    order: list[Node] = []
    for node in program.graph.nodes:
        if node.op == "call_function" and all(
            i in fixed or i.name in lifted or i.op == "get_attr" for i in node.all_input_nodes
        ):
            fixed.add(node)
        elif node.op == "call_function":
            order.append(node)
    quantized = any(operator_of(node).startswith("quantize") for node in order)
    before: set[Node] = set()
    for number, node in enumerate(order):
        before.add(node)
        ends = number == len(order) - 1
        frontier = [n for n in order[: number + 1] if _is_read_later(n, before)]
        tensors = all(isinstance(n.meta.get("val"), torch.Tensor) for n in frontier)
        if frontier and tensors and (ends or not quantized or all(map(_may_end, frontier))):
            yield _Cut(node, frontier)


def _is_read_later(node: Node, before: Collection[Node]) -> bool:
    return any(user not in before for user in node.users)


def _may_end(node: Node) -> bool:
    """Whether a quantized partition may give this value."""
    name = operator_of(node)
    if name.startswith("quantize"):
        return True
    beside = [*node.all_input_nodes, *node.users]
    return not any("quantize" in operator_of(other) for other in (node, *beside))


def _part(program: ExportedProgram, outputs: Sequence[str]) -> tuple[ExportedProgram, list[int]]:
    """A partition that ends with these nodes, and which of the user's inputs it still takes."""
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


def _declared(value: Any) -> Any:
    """As a plan declares a value."""
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
