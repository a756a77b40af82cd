"""Loads the methods of a `.pte` for the interpreter: values, operators and delegates of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any
from weakref import finalize

import executorch.exir
import executorch.kernels.quantized  # noqa: F401  their out variants
import torch
from executorch.exir import schema
from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize._program import PTEFile, deserialize_pte_binary
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer
from torch._ops import OpOverload

from pipeline.backends import BACKENDS
from pipeline.backends.delegate_runtime import DelegateRuntime
from pipeline.devices.bindings import DTYPES, registered_backends
from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.devices.interpreter.prims import OWN, PRIMS, Prim
from pipeline.devices.interpreter.single import ExecutorchDelegate
from pipeline.devices.interpreter.slots import RefusalError, Slot, ValueList, allocate
from pipeline.program.archive_grammar import check_document
from pipeline.program.operator_libraries import register_operators
from pipeline.program.plan_values import LISTS, count_delegate_results, is_external

# Whose out variants take a tensor of any size to write to. The others are ExecuTorch's own kernels
# behind torch's dispatcher, which crash on a wrong one: their functional variants are called.
_TORCH = ("aten", "dim_order_ops")


@dataclass(frozen=True)
class PackageData:
    """A package that was read, and the named data of its `.pte` and its `.ptd` files."""

    file: PTEFile
    named: Mapping[str, bytes]

    @cached_property
    def plans(self) -> dict[str, schema.ExecutionPlan]:
        """The plans of its methods by name."""
        return {plan.name: plan for plan in self.file.program.execution_plan}


def read_package(files: PackageFiles) -> PackageData:
    """Read a package by ExecuTorch's deserializer. Raises DeviceError."""
    content = files.contents()
    try:
        file = deserialize_pte_binary(content)
    except Exception as error:  # whatever a file that is none makes it raise
        reason = f"does not open: corrupt file ({type(error).__name__}: {error})"
        raise DeviceError(f"{files.name}: ", reason) from error
    named = named_bytes(file.named_data)
    for data in files.data():
        try:
            payload = FlatTensorSerializer().deserialize(Cord(data))
        except Exception as error:  # as above
            reason = f"does not open: corrupt external data (.ptd) ({error})"
            raise DeviceError(f"{files.name}: ", reason) from error
        named |= {k: bytes(payload.buffers[e.buffer_index]) for k, e in payload.named_data.items()}
    return PackageData(file, named)


def named_bytes(data: NamedDataStoreOutput | None) -> dict[str, bytes]:
    """Return named data by key; empty for None."""
    if data is None:
        return {}
    return {key: bytes(data.buffers[entry.buffer_index]) for key, entry in data.pte_data.items()}


def read_payload(data: PackageData, delegate: schema.BackendDelegate) -> bytes:
    """Return the processed bytes of a delegate; none where the file does not have them."""
    table, index = data.file.program.backend_delegate_data, delegate.processed.index
    return bytes(table[index].data) if index < len(table) else b""


@dataclass(eq=False)
class Delegate:
    """A delegate that its runtime has made ready."""

    runtime: DelegateRuntime
    handle: Any


@dataclass(eq=False)
class Method:
    """A loaded method: its values, which live from call to call as those of the runtime do, its
    operators, and how many results each delegate call gives, by the number of its instruction."""

    plan: schema.ExecutionPlan
    values: list[Any]
    operators: list[Any]
    results: dict[int, int]
    delegates: list[Delegate] = field(default_factory=list)

    def __post_init__(self) -> None:
        finalize(self, _give_up, self.delegates)


def _give_up(delegates: list[Delegate]) -> None:
    for delegate in delegates:
        delegate.runtime.destroy(delegate.handle)


def get_instructions(plan: schema.ExecutionPlan) -> list[schema.Instruction]:
    """Return the instructions of a plan's one chain. Raises RefusalError for several chains."""
    if len(plan.chains) != 1:
        raise RefusalError(f"has {len(plan.chains)} chains of instructions, must have one")
    return plan.chains[0].instructions


# The memory of a method by its number in the plan: 1 is its own, what lies beyond is that of the
# buffers that methods share (exir's MemoryPlanningPass.share_mutable_buffers).
_SHARED_FROM = 2
SharedMemory = Mapping[int, torch.Tensor]


def shared_memory(plans: Sequence[schema.ExecutionPlan]) -> SharedMemory:
    """Allocate the memory that these methods share, by number, each with the greatest size."""
    sizes: dict[int, int] = {}
    for plan in plans:
        for number, size in enumerate(plan.non_const_buffer_sizes):
            if number >= _SHARED_FROM:
                sizes[number] = max(size, sizes.get(number, 0))
    return {number: allocate(size) for number, size in sizes.items()}


def load_method(
    plan: schema.ExecutionPlan, data: PackageData, shared: SharedMemory | None = None
) -> Method:
    """Load a method, with its initial state.

    Args:
        shared: memory that it has in common with other methods, by number.

    Raises:
        RefusalError: the file lacks data, an operator or a backend, or contradicts itself.
        DelegateError: a delegate refuses its bytes.
    """
    shared = shared or {}
    arenas = [
        shared[number] if number in shared else allocate(size)
        for number, size in enumerate(plan.non_const_buffer_sizes)
    ]
    values = [_value(each.val, arenas, data) for each in plan.values]
    results = count_delegate_results(plan, get_instructions(plan))
    method = Method(plan, values, [_operator(each) for each in plan.operators], results)
    for number in range(len(plan.delegates)):
        method.delegates.append(_delegate(method, number, data))
    return method


def _value(value: Any, arenas: Sequence[torch.Tensor], data: PackageData) -> Any:
    """Convert a plan's value to what the interpreter holds: a slot, a list or a scalar."""
    if isinstance(value, schema.Tensor):
        return _slot(value, arenas, data)
    if isinstance(value, LISTS):
        return ValueList(value.items)
    if isinstance(value, (schema.DoubleList, schema.BoolList)):
        return list(value.items)
    if isinstance(value, schema.Double):
        return float(value.double_val)
    return next(iter(vars(value).values()), None)  # of Int, Bool or String; Null has none


def _slot(tensor: schema.Tensor, arenas: Sequence[torch.Tensor], data: PackageData) -> Slot:
    if int(tensor.scalar_type) not in DTYPES:
        raise RefusalError(f"a tensor of the dtype {tensor.scalar_type!r}, which torch has not")
    slot = Slot(tensor)
    if (where := tensor.allocation_info) is not None:
        slot.memory, slot.offset = arenas[where.memory_id], where.memory_offset
        if slot.offset + slot.size_in_bytes() > len(slot.memory):
            raise RefusalError("a tensor beyond the end of its planned memory")
    content = constant_bytes(tensor, data)
    if content is not None:
        content = content[: slot.size_in_bytes()]  # behind it may be padding
        if len(content) < slot.size_in_bytes():
            raise RefusalError(f"{len(content)} bytes for a tensor of {slot.size_in_bytes()}")
        if slot.memory is None:
            slot.memory = allocate(len(content))
        if content:  # of a constant, or a mutable buffer's initial value
            target = slot.memory[slot.offset : slot.offset + len(content)]
            target.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    return slot


def constant_bytes(tensor: schema.Tensor, data: PackageData) -> bytes | None:
    """Return the bytes of a constant or of a buffer's initial value, or None if it has none.
    Raises RefusalError if the file lacks them."""
    if is_external(tensor):
        name = tensor.extra_tensor_info.fully_qualified_name or ""
        if name not in data.named:
            raise RefusalError(f"external data (.ptd) is missing: it has no '{name}'")
        return data.named[name]
    if tensor.data_buffer_idx == 0:
        return None
    planned, file = tensor.allocation_info is not None, data.file
    buffers = (file.mutable_data or []) if planned else file.program.constant_buffer
    if tensor.data_buffer_idx >= len(buffers):
        raise RefusalError(f"constant {tensor.data_buffer_idx}, of {len(buffers)}")
    return bytes(buffers[tensor.data_buffer_idx].storage)


def _operator(known: schema.Operator) -> Any:
    """Find the interpreter's own function (of values and arguments) or torch's overload, of those
    that an archive may call too."""
    namespace, _, name = known.name.partition("::")
    full = f"{name}.{known.overload}" if known.overload else name
    if namespace == "executorch_prim" and full in PRIMS:
        return Prim(PRIMS[full])
    if full in OWN:
        return OWN[full]
    whole = f"{namespace}.{name}.{known.overload or 'default'}"
    try:
        check_document("operator", f"torch.ops.{whole}")
    except ValueError as error:
        raise RefusalError(f"missing operator: {error}") from None
    overload = _find_overload(namespace, name, known.overload)
    if overload is None and not register_operators([whole]):
        overload = _find_overload(namespace, name, known.overload)
    if overload is None:
        raise RefusalError(f"missing operator {known.name}{known.overload and '.'}{known.overload}")
    return overload


def _find_overload(namespace: str, name: str, overload: str) -> OpOverload | None:
    packet = getattr(getattr(torch.ops, namespace), name, None)
    found = getattr(packet, overload or "default", None)
    if namespace not in _TORCH and overload.lower().endswith("out"):
        found = getattr(packet, overload[: -len("out")].rstrip("_") or "default", found)
    return found if isinstance(found, OpOverload) else None


def _delegate(method: Method, number: int, data: PackageData) -> Delegate:
    plan, delegate = method.plan, method.plan.delegates[number]
    if delegate.processed.location != schema.DataLocation.INLINE:
        raise RefusalError(f"delegate {number}: its bytes are not where the file says")
    processed = read_payload(data, delegate)
    specs = [(spec.key, bytes(spec.value)) for spec in delegate.compile_specs]
    calls = ((get_instructions(plan)[n].instr_args, count) for n, count in method.results.items())
    own = ((call.args, count) for call, count in calls if call.delegate_index == number)
    args, count = next(own, ((), 0))
    runtime = delegate_runtime(delegate.id, [plan.values[i].val for i in args], count)
    return Delegate(runtime, runtime.init(processed, specs, data.named))


def delegate_runtime(backend_id: str, values: Sequence[Any], results: int) -> DelegateRuntime:
    """Return what runs one delegate: the Python runtime of its backend, or ExecuTorch's.

    Args:
        values: the arguments of its call, as a plan declares them.
        results: how many of the last ones it gives.

    Raises:
        RefusalError: nothing here runs it.
    """
    runtime = _python_runtime(backend_id)
    if runtime is not None:
        return runtime
    if backend_id not in registered_backends():
        raise RefusalError(f"missing backend: nothing here runs the delegate {backend_id}")
    return ExecutorchDelegate(backend_id, values, results)


@cache
def _python_runtime(backend_id: str) -> DelegateRuntime | None:
    own = (each.execution for each in BACKENDS.values() if each.backend_id == backend_id)
    make_runtime = next((each.make_runtime for each in own if each.make_runtime), None)
    return make_runtime() if make_runtime is not None else None
