"""Loads the methods of a `.pte` for the interpreter: a plan's values, operators and delegates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import finalize

import executorch.exir
import executorch.kernels.quantized  # noqa: F401  their out variants
import torch
from executorch.exir import schema
from torch._ops import OpOverload

from pipeline.backends import BACKENDS
from pipeline.backends.delegate_runtime import DelegateRuntime
from pipeline.devices.bindings import DTYPES, registered_backends
from pipeline.devices.package_data import PackageData, read_payload
from pipeline.features.locating.interpreter.prims import KERNELS, PRIMS, make_prim
from pipeline.features.locating.interpreter.single import ExecutorchDelegate
from pipeline.features.locating.interpreter.slots import (
    RefusalError,
    Slot,
    ValueList,
    allocate,
)
from pipeline.program.archive_grammar import check_document
from pipeline.program.operator_libraries import register_operators
from pipeline.program.plan_values import LISTS, count_delegate_results, is_external

# Namespaces whose out variants resize the tensor that they write to. Others are ExecuTorch's own
# kernels behind torch's dispatcher, which crash on a wrong size, so they are called without `out`.
_RESIZING = ("aten", "dim_order_ops")


# The runtime that has initialized a delegate, and the delegate's handle in that runtime.
Delegate = tuple[DelegateRuntime, Any]


@dataclass(eq=False)
class InterpretedMethod:
    """A loaded method.

    Attributes:
        values: the values of the plan, which persist from call to call, as in ExecuTorch's runtime.
        results: the number of results of each delegate call, by its instruction.
    """

    plan: schema.ExecutionPlan
    values: list[Any]
    operators: list[Any]
    results: dict[int, int]
    delegates: list[Delegate] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Unlike `__del__`, this also runs when Python's interpreter exits.
        finalize(self, _destroy, self.delegates)


def _destroy(delegates: list[Delegate]) -> None:
    for runtime, handle in delegates:
        runtime.destroy(handle)


def get_instructions(plan: schema.ExecutionPlan) -> list[schema.Instruction]:
    """Return the instructions of a plan's only chain.

    Raises:
        RefusalError: the plan has several chains.
    """
    if len(plan.chains) != 1:
        raise RefusalError(
            f"has {len(plan.chains)} chains of instructions, must have one"
        )
    return plan.chains[0].instructions


# Arena 1 is a method's own. The next arenas hold the buffers that methods share (exir's
# MemoryPlanningPass.share_mutable_buffers).
_SHARED_FROM = 2
SharedMemory = Mapping[int, torch.Tensor]


def shared_memory(plans: Sequence[schema.ExecutionPlan]) -> SharedMemory:
    """Allocate the arenas that methods share, by number, each with its largest size."""
    sizes: dict[int, int] = {}
    for plan in plans:
        for number, size in enumerate(plan.non_const_buffer_sizes):
            if number >= _SHARED_FROM:
                sizes[number] = max(size, sizes.get(number, 0))
    return {number: allocate(size) for number, size in sizes.items()}


def load_method(
    plan: schema.ExecutionPlan, data: PackageData, shared: SharedMemory | None = None
) -> InterpretedMethod:
    """Load a method in its initial state.

    Args:
        shared: the arenas that it shares with other methods, by number.

    Raises:
        RefusalError: the file lacks data, an operator or a backend, or contradicts itself.
        DelegateError: a delegate refuses its bytes.
    """
    shared = shared or {}
    arenas = []
    for number, size in enumerate(plan.non_const_buffer_sizes):
        arenas.append(shared[number] if number in shared else allocate(size))
    values = [_value(value.val, arenas, data) for value in plan.values]
    results = count_delegate_results(plan, get_instructions(plan))
    operators = [_find_operator(operator) for operator in plan.operators]
    method = InterpretedMethod(plan, values, operators, results)
    for number in range(len(plan.delegates)):
        method.delegates.append(_delegate(method, number, data))
    return method


def _value(value: Any, arenas: Sequence[torch.Tensor], data: PackageData) -> Any:
    """Convert a plan's value to the interpreter's: a slot, a list or a scalar."""
    if isinstance(value, schema.Tensor):
        return _slot(value, arenas, data)
    if isinstance(value, LISTS):
        return ValueList(value.items)
    if isinstance(value, (schema.DoubleList, schema.BoolList)):
        return list(value.items)
    if isinstance(value, schema.Double):
        return float(value.double_val)
    # Int, Bool and String have one field; Null has none.
    return next(iter(vars(value).values()), None)


def _slot(
    tensor: schema.Tensor, arenas: Sequence[torch.Tensor], data: PackageData
) -> Slot:
    if int(tensor.scalar_type) not in DTYPES:
        raise RefusalError(
            f"a tensor of the dtype {tensor.scalar_type!r}, which torch does not have"
        )
    slot = Slot(tensor)
    allocation = tensor.allocation_info
    if allocation is not None:
        slot.memory, slot.offset = (
            arenas[allocation.memory_id],
            allocation.memory_offset,
        )
        if slot.offset + slot.size_in_bytes() > len(slot.memory):
            raise RefusalError("a tensor beyond the end of its planned memory")
    content = constant_bytes(tensor, data)
    if content is not None:
        _fill(slot, content)
    return slot


def _fill(slot: Slot, content: bytes) -> None:
    """Write a constant, or the initial value of a mutable buffer, to its memory."""
    size = slot.size_in_bytes()
    content = content[:size]  # without padding
    if len(content) < size:
        raise RefusalError(f"{len(content)} bytes for a tensor of {size}")
    if slot.memory is None:
        slot.memory = allocate(size)
    if content:
        target = slot.memory[slot.offset : slot.offset + size]
        target.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))


def constant_bytes(tensor: schema.Tensor, data: PackageData) -> bytes | None:
    """Return the bytes of a constant or a buffer's initial value, or None for other tensors.

    Raises:
        RefusalError: the file lacks the bytes.
    """
    if is_external(tensor):
        name = tensor.extra_tensor_info.fully_qualified_name or ""
        if name not in data.named:
            raise RefusalError(f"external data (.ptd) is missing: it has no '{name}'")
        return data.named[name]
    if tensor.data_buffer_idx == 0:
        return None
    if tensor.allocation_info is not None:
        buffers = data.file.mutable_data or []
    else:
        buffers = data.file.program.constant_buffer
    if tensor.data_buffer_idx >= len(buffers):
        raise RefusalError(f"constant {tensor.data_buffer_idx}, of {len(buffers)}")
    return bytes(buffers[tensor.data_buffer_idx].storage)


def _find_operator(operator: schema.Operator) -> Any:
    """Return the interpreter's function, or torch's overload, for an operator of a plan.

    Only those operators of torch are allowed that an archive may call.
    """
    namespace, _, name = operator.name.partition("::")
    name_and_overload = f"{name}.{operator.overload}" if operator.overload else name
    if namespace == "executorch_prim" and name_and_overload in PRIMS:
        return make_prim(PRIMS[name_and_overload])
    if name_and_overload in KERNELS:
        return KERNELS[name_and_overload]
    qualified_name = f"{namespace}.{name}.{operator.overload or 'default'}"
    try:
        check_document("operator", f"torch.ops.{qualified_name}")
    except ValueError as error:
        raise RefusalError(f"missing operator: {error}") from None
    overload = _find_overload(namespace, name, operator.overload)
    if overload is None and not register_operators([qualified_name]):
        overload = _find_overload(namespace, name, operator.overload)
    if overload is None:
        suffix = f".{operator.overload}" if operator.overload else ""
        raise RefusalError(f"missing operator {operator.name}{suffix}")
    return overload


def _find_overload(namespace: str, name: str, overload_name: str) -> OpOverload | None:
    packet = getattr(getattr(torch.ops, namespace), name, None)
    overload = getattr(packet, overload_name or "default", None)
    if namespace not in _RESIZING and overload_name.lower().endswith("out"):
        functional_name = overload_name[: -len("out")].rstrip("_") or "default"
        overload = getattr(packet, functional_name, overload)
    return overload if isinstance(overload, OpOverload) else None


def _delegate(method: InterpretedMethod, number: int, data: PackageData) -> Delegate:
    delegate = method.plan.delegates[number]
    if delegate.processed.location != schema.DataLocation.INLINE:
        raise RefusalError(
            f"delegate {number}: its bytes are not at the place that the file names"
        )
    processed = read_payload(data, delegate)
    specs = [(spec.key, bytes(spec.value)) for spec in delegate.compile_specs]
    arguments, results = _first_call(method, number)
    values = [method.plan.values[index].val for index in arguments]
    runtime = delegate_runtime(delegate.id, values, results)
    return runtime, runtime.init(processed, specs, data.named)


def _first_call(method: InterpretedMethod, delegate: int) -> tuple[Sequence[int], int]:
    """Return the arguments of a delegate's first call, and the number of results among them."""
    instructions = get_instructions(method.plan)
    for instruction, results in method.results.items():
        call = instructions[instruction].instr_args
        if call.delegate_index == delegate:
            return call.args, results
    return (), 0


def delegate_runtime(
    backend_id: str, values: Sequence[Any], results: int
) -> DelegateRuntime:
    """Return the runtime for a delegate: its backend's Python runtime, or ExecuTorch's.

    Args:
        values: the arguments of the delegate's call, as a plan declares them.
        results: the number of results, which come last among the arguments.

    Raises:
        RefusalError: no runtime here can run it.
    """
    runtime = _python_runtime(backend_id)
    if runtime is not None:
        return runtime
    if backend_id not in registered_backends():
        raise RefusalError(
            f"missing backend: nothing here can run the delegate {backend_id}"
        )
    return ExecutorchDelegate(backend_id, values, results)


@cache
def _python_runtime(backend_id: str) -> DelegateRuntime | None:
    for backend in BACKENDS.values():
        make_runtime = backend.execution.make_runtime
        if backend.backend_id == backend_id and make_runtime is not None:
            return make_runtime()
    return None
