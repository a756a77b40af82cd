"""Runs the bytes of a `.pte` in Python: a device for what ExecuTorch's runtime has no backend for.

The file is read back by ExecuTorch's own deserializer, and the instructions of its plans are walked
one by one: kernels are torch's operators, delegates the Python runtimes of their backends
(pipeline/delegates.py), or ExecuTorch's runtime where it has theirs. Tensors lie where the memory
plan of the file puts them, so a plan by which two of them overlap gives wrong numbers here as it
does on a device. Nothing of the source program is looked at.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, finalize

import executorch.exir
import executorch.kernels.quantized  # noqa: F401  their out variants
import torch
from executorch.exir import schema
from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize._program import PTEFile, deserialize_pte_binary
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

from pipeline.backends import BACKENDS
from pipeline.delegates import DelegateError, DelegateRuntime, Timing
from pipeline.devices.interface import (
    Computation,
    Declared,
    DeclaredTensor,
    DeviceError,
    PackageFiles,
    Runtime,
    Shape,
)
from pipeline.devices.single import ExecutorchDelegate
from pipeline.runtime import DTYPES, registered_backends

# Whose out variants take a tensor of any size to write to. The others are ExecuTorch's own kernels
# behind torch's dispatcher, which crash on a wrong one: their functional variants are called.
_TORCH = ("aten", "dim_order_ops")
# executorch_prim: kernels/prim_ops/register_prim_ops.cpp. Scalars in, a scalar out.
_PRIMS: Mapping[str, Callable[..., Any]] = {
    "add.Scalar": operator.add,
    "sub.Scalar": operator.sub,
    "mul.Scalar": operator.mul,
    "floordiv.Scalar": operator.floordiv,
    "truediv.Scalar": operator.truediv,
    "mod.Scalar": operator.mod,
    "neg.Scalar": operator.neg,
    "eq.Scalar": operator.eq,
    "gt.Scalar": operator.gt,
    "lt.Scalar": operator.lt,
    "ge.Scalar": operator.ge,
    "le.Scalar": operator.le,
    "ceil.Scalar": math.ceil,
    "round.Scalar": round,
    "trunc.Scalar": math.trunc,
    "sym_float.Scalar": float,
    "sym_int.Scalar": int,
    "sym_max.Scalar": max,
    "sym_min.Scalar": min,
    "sym_not.Scalar": operator.not_,
    "sym_ite.Scalar": lambda condition, yes, no: yes if condition else no,
}


@dataclass(frozen=True)
class Data:
    """What a package holds beside its plans: named data of the `.pte` and of its `.ptd` files."""

    file: PTEFile
    named: Mapping[str, bytes]


@dataclass(eq=False)
class _Memory:
    """A stretch of bytes in which tensors lie."""

    bytes: torch.Tensor

    @classmethod
    def of(cls, size: int) -> _Memory:
        return cls(torch.zeros(size, dtype=torch.uint8))

    @classmethod
    def holding(cls, data: bytes) -> _Memory:
        own = torch.empty(len(data), dtype=torch.uint8)
        if data:
            own.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return cls(own)


class _Slot:
    """A tensor of a plan: its place in memory, and the sizes that it has now."""

    def __init__(self, tensor: schema.Tensor) -> None:
        self.dtype = DTYPES[int(tensor.scalar_type)]
        self.most = tuple(tensor.sizes)
        self.order = tuple(tensor.dim_order)
        self.fixed = tensor.shape_dynamism == schema.TensorShapeDynamism.STATIC
        self.unbound = tensor.shape_dynamism == schema.TensorShapeDynamism.DYNAMIC_UNBOUND
        self.sizes = self.most
        self.memory: _Memory | None = None
        self.offset = 0

    def size_in_bytes(self) -> int:
        return math.prod(self.most) * self.dtype.itemsize

    def tensor(self) -> torch.Tensor:
        """The tensor itself, not a copy: who writes to it writes to memory."""
        if self.memory is None:
            self.memory = _Memory.of(self.size_in_bytes())
        strides = [0] * len(self.sizes)
        step = 1
        for dimension in reversed(self.order):
            strides[dimension] = step
            step *= max(self.sizes[dimension], 1)
        storage = self.memory.bytes.untyped_storage()
        place = self.offset // self.dtype.itemsize
        return torch.empty(0, dtype=self.dtype).set_(storage, place, self.sizes, strides)

    def resize(self, sizes: Sequence[int]) -> None:
        """Raises _RefusalError where the plan leaves no room for these."""
        sizes = tuple(sizes)
        room = len(sizes) == len(self.most) and (
            self.unbound
            or (sizes == self.most if self.fixed else all(map(operator.le, sizes, self.most)))
        )
        if not room:
            kind = "exactly" if self.fixed else "at most"
            raise _RefusalError(
                f"a tensor of sizes {list(sizes)}, {kind} {list(self.most)} planned"
            )
        self.sizes = sizes
        if self.unbound:
            self.memory, self.offset = None, 0
            self.most = sizes

    def assign(self, value: torch.Tensor) -> None:
        if value.dtype != self.dtype:
            raise _RefusalError(f"a tensor of {value.dtype}, must be {self.dtype}")
        self.resize(value.shape)
        self.tensor().copy_(value)

    def share(self, other: _Slot, sizes: Sequence[int]) -> None:
        """Lies where another one does, with sizes of its own."""
        other.tensor()  # it has memory now
        self.memory, self.offset = other.memory, other.offset
        self.resize(sizes)


class _RefusalError(Exception):
    """What a plan, an operator or an input is refused for."""


@dataclass(frozen=True)
class _List:
    """A list of a plan: places of its members among the values; -1 stands for None."""

    members: tuple[int, ...]


@dataclass(eq=False)
class _Delegate:
    backend_id: str
    runtime: DelegateRuntime
    handle: Any


@dataclass(eq=False)
class Method:
    """A loaded method: its values, which live from call to call as those of the runtime do."""

    name: str
    plan: schema.ExecutionPlan
    values: list[Any]
    delegates: list[_Delegate] = field(default_factory=list)
    operators: list[Any] = field(default_factory=list)
    results: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        finalize(self, _give_up, self.delegates)


def _give_up(delegates: list[_Delegate]) -> None:
    while delegates:
        delegate = delegates.pop()
        delegate.runtime.destroy(delegate.handle)


class InterpreterRuntime(Runtime):
    """Programs are PackageFiles."""

    type = "interpreter"

    def __init__(self) -> None:
        super().__init__()
        self._read: WeakKeyDictionary[PackageFiles, Data] = WeakKeyDictionary()
        self._random: torch.Tensor | None = None
        self._timings: dict[str, list[Timing]] = {}

    def methods(self, program: PackageFiles) -> list[str]:
        return sorted(plan.name for plan in self._data(program).file.program.execution_plan)

    def declared(self, program: PackageFiles, method: str) -> Declared:
        plan = self._plan(program, method)
        return Declared(
            tuple(_shape(plan.values[index]) for index in plan.inputs),
            tuple(_shape(plan.values[index]) for index in plan.outputs),
        )

    def load(self, computation: Computation) -> Method:
        name, files = computation.name, computation.program
        data, plan = self._data(files), self._plan(files, name)
        try:
            return _load(plan, data)
        except DelegateError as error:
            reason = f"does not load: {error.what}"
            raise DeviceError(_subject(files, name), reason, error.debug_handle) from error
        except _RefusalError as error:
            raise DeviceError(_subject(files, name), f"does not load: {error}") from error

    def call(self, computation: Computation, values: Sequence[Any]) -> Sequence[Any]:
        method, subject = computation.compiled, _subject(computation.program, computation.name)
        try:
            with torch.no_grad(), torch.random.fork_rng((), enabled=self._random is not None):
                if self._random is not None:
                    torch.set_rng_state(self._random)
                outputs = _run(method, values)
                if self._random is not None:
                    self._random = torch.get_rng_state()
        except DelegateError as error:
            raise DeviceError(subject, f"fails: {error.what}", error.debug_handle) from error
        except _RefusalError as error:
            raise DeviceError(subject, f"fails: {error}") from error
        self._timings[computation.name] = [
            timing for d in method.delegates for timing in d.runtime.timings(d.handle)
        ]
        return outputs

    def timings(self, method: str) -> list[Timing]:
        """Of the last call of a method: the instructions of its delegates that keep time."""
        return list(self._timings.get(method, ()))

    def text(self, computation: Computation) -> str:
        plan = self._plan(computation.program, computation.name)
        lines = (f"  {n}: {_told(plan, each.instr_args)}" for n, each in enumerate(_chain(plan)))
        return "\n".join([str(computation), *lines])

    def set_seed(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed).get_state()

    def metrics(self) -> Mapping[str, float]:
        timed = [timing.seconds for timings in self._timings.values() for timing in timings]
        return {**super().metrics(), "seconds in timed delegates, last calls": sum(timed)}

    def prepare_to_exit(self) -> None:
        self._read.clear()

    def _data(self, files: PackageFiles) -> Data:
        if files not in self._read:
            self._read[files] = read_package(files)
        return self._read[files]

    def _plan(self, files: PackageFiles, method: str) -> schema.ExecutionPlan:
        plans = {plan.name: plan for plan in self._data(files).file.program.execution_plan}
        if method not in plans:
            known = ", ".join(sorted(plans)) or "none"
            raise DeviceError(f"{files.name}: ", f"has no method '{method}'; it has {known}")
        return plans[method]


def _subject(files: PackageFiles, method: str) -> str:
    return f"{files.name}: method '{method}' "


def read_package(files: PackageFiles) -> Data:
    """A package read back by ExecuTorch's deserializer. Raises DeviceError."""
    content = files.contents()
    try:
        file = deserialize_pte_binary(content)
    except Exception as error:  # whatever a file that is none makes it raise
        reason = f"does not open: corrupt file ({type(error).__name__}: {error})"
        raise DeviceError(f"{files.name}: ", reason) from error
    named: dict[str, bytes] = {}
    if file.named_data is not None:
        buffers = file.named_data.buffers
        named = {k: buffers[e.buffer_index] for k, e in file.named_data.pte_data.items()}
    for data in files.data():
        try:
            payload = FlatTensorSerializer().deserialize(Cord(data))
        except Exception as error:  # as above
            reason = f"does not open: corrupt external data (.ptd) ({error})"
            raise DeviceError(f"{files.name}: ", reason) from error
        named |= {k: bytes(payload.buffers[e.buffer_index]) for k, e in payload.named_data.items()}
    return Data(file, named)


def _shape(value: schema.EValue) -> Shape:
    if not isinstance(value.val, schema.Tensor):
        return None
    return DeclaredTensor(tuple(value.val.sizes), DTYPES.get(int(value.val.scalar_type)))


def _chain(plan: schema.ExecutionPlan) -> list[schema.Instruction]:
    if len(plan.chains) != 1:
        raise _RefusalError(f"has {len(plan.chains)} chains of instructions, must have one")
    return plan.chains[0].instructions


# Loading.


def _load(plan: schema.ExecutionPlan, data: Data) -> Method:
    arenas = [_Memory.of(size) for size in plan.non_const_buffer_sizes]
    values = [_value(each.val, arenas, data) for each in plan.values]
    method = Method(plan.name, plan, values)
    method.operators = [_operator(each) for each in plan.operators]
    method.results = _result_counts(plan)
    for number, delegate in enumerate(plan.delegates):
        method.delegates.append(_delegate(plan, number, delegate, data, method.results))
    return method


def _value(value: Any, arenas: Sequence[_Memory], data: Data) -> Any:
    """As the interpreter holds it: a slot, a list of places, or a scalar."""
    if isinstance(value, schema.Tensor):
        return _slot(value, arenas, data)
    if isinstance(value, (schema.IntList, schema.TensorList, schema.OptionalTensorList)):
        return _List(tuple(value.items))
    if isinstance(value, (schema.DoubleList, schema.BoolList)):
        return list(value.items)
    if isinstance(value, schema.Int):
        return value.int_val
    if isinstance(value, schema.Bool):
        return value.bool_val
    if isinstance(value, schema.Double):
        return float(value.double_val)
    if isinstance(value, schema.String):
        return value.string_val
    return None


def _slot(tensor: schema.Tensor, arenas: Sequence[_Memory], data: Data) -> _Slot:
    if int(tensor.scalar_type) not in DTYPES:
        raise _RefusalError(f"a tensor of the dtype {tensor.scalar_type!r}, which torch has not")
    slot = _Slot(tensor)
    where = tensor.allocation_info
    if where is not None:
        slot.memory = arenas[where.memory_id]
        slot.offset = where.memory_offset_low | (where.memory_offset_high << 32)
        if slot.offset + slot.size_in_bytes() > len(slot.memory.bytes):
            raise _RefusalError("a tensor beyond the end of its planned memory")
    content = _content(tensor, data)
    if content is not None:
        content = content[: slot.size_in_bytes()]  # behind it may be padding
        if len(content) < slot.size_in_bytes():
            raise _RefusalError(f"{len(content)} bytes for a tensor of {slot.size_in_bytes()}")
        if slot.memory is None:
            slot.memory = _Memory.holding(content)
        elif content:  # a mutable buffer with an initial value
            end = slot.offset + len(content)
            slot.memory.bytes[slot.offset : end] = _Memory.holding(content).bytes
    return slot


def _is_external(tensor: schema.Tensor) -> bool:
    extra = tensor.extra_tensor_info
    return extra is not None and extra.location == schema.TensorDataLocation.EXTERNAL


def _content(tensor: schema.Tensor, data: Data) -> bytes | None:
    """The bytes of a constant, or of a buffer's initial value; None where there are none."""
    if _is_external(tensor):
        name = tensor.extra_tensor_info.fully_qualified_name or ""
        if name not in data.named:
            raise _RefusalError(f"external data (.ptd) is missing: it has no '{name}'")
        return data.named[name]
    if tensor.data_buffer_idx == 0:
        return None
    if tensor.allocation_info is None:
        buffers = data.file.program.constant_buffer
    else:
        buffers = data.file.mutable_data or []
    if tensor.data_buffer_idx >= len(buffers):
        raise _RefusalError(f"constant {tensor.data_buffer_idx}, of {len(buffers)}")
    return bytes(buffers[tensor.data_buffer_idx].storage)


def _operator(known: schema.Operator) -> Any:
    """A function of the interpreter's own (values in, nothing out), or torch's overload."""
    namespace, _, name = known.name.partition("::")
    full = f"{name}.{known.overload}" if known.overload else name
    if namespace == "executorch_prim" and full in _PRIMS:
        return _Prim(_PRIMS[full])
    if full in _OWN:
        return _OWN[full]
    packet = getattr(getattr(torch.ops, namespace), name, None)
    overload = getattr(packet, known.overload or "default", None)
    if namespace not in _TORCH and known.overload.lower().endswith("out"):
        functional = known.overload[: -len("out")].rstrip("_") or "default"
        overload = getattr(packet, functional, overload)
    if overload is None:
        raise _RefusalError(
            f"missing operator {known.name}{known.overload and '.'}{known.overload}"
        )
    return overload


def _delegate(
    plan: schema.ExecutionPlan,
    number: int,
    delegate: schema.BackendDelegate,
    data: Data,
    results: Mapping[int, int],
) -> _Delegate:
    if delegate.processed.location != schema.DataLocation.INLINE:
        raise _RefusalError(f"delegate {number}: its bytes are not where the file says")
    processed = bytes(data.file.program.backend_delegate_data[delegate.processed.index].data)
    specs = [(spec.key, bytes(spec.value)) for spec in delegate.compile_specs]
    runtime = _runtime_of(delegate.id)
    if runtime is None:
        if delegate.id not in registered_backends():
            raise _RefusalError(f"missing backend: nothing here runs the delegate {delegate.id}")
        args = next(
            (i.instr_args.args, results[n])
            for n, i in enumerate(_chain(plan))
            if isinstance(i.instr_args, schema.DelegateCall)
            and i.instr_args.delegate_index == number
        )
        runtime = ExecutorchDelegate(delegate.id, [plan.values[i].val for i in args[0]], args[1])
    return _Delegate(delegate.id, runtime, runtime.init(processed, specs, data.named))


@cache
def _runtime_of(backend_id: str) -> DelegateRuntime | None:
    """The Python runtime of a backend, if one brings it."""
    for backend in BACKENDS.values():
        if backend.backend_id == backend_id and backend.make_runtime is not None:
            return backend.make_runtime()
    return None


def _result_counts(plan: schema.ExecutionPlan) -> dict[int, int]:
    """How many of the last arguments of each delegate call are its results, by the number of the
    instruction: those that nothing has before. A file does not say it."""
    known = {*plan.inputs}
    for index, value in enumerate(plan.values):
        tensor = value.val
        if (
            not isinstance(tensor, schema.Tensor)
            or tensor.data_buffer_idx > 0
            or _is_external(tensor)
        ):
            known.add(index)
    for instruction in _chain(plan):  # buffers, which a method writes to when it is done with them
        call = instruction.instr_args
        if isinstance(call, schema.KernelCall) and _is_copy(plan, call):
            known.add(call.args[0])
    counts = {}
    for number, instruction in enumerate(_chain(plan)):
        call = instruction.instr_args
        if isinstance(call, schema.DelegateCall):
            results = 0
            for index in reversed(call.args):
                if index in known:
                    break
                results += 1
            counts[number] = results
            known |= {*call.args}
        elif isinstance(call, schema.KernelCall):
            known |= {i for i in call.args if i >= 0} | _members(plan, call.args)
        elif isinstance(call, schema.MoveCall):
            known |= {call.move_from, call.move_to}
    return counts


def _is_copy(plan: schema.ExecutionPlan, call: schema.KernelCall) -> bool:
    return plan.operators[call.op_index].name == "aten::copy_"


def _members(plan: schema.ExecutionPlan, places: Sequence[int]) -> set[int]:
    found: set[int] = set()
    for place in places:
        value = plan.values[place].val if place >= 0 else None
        if isinstance(value, (schema.TensorList, schema.OptionalTensorList)):
            found |= {i for i in value.items if i >= 0}
    return found


# Running.


def _run(method: Method, inputs: Sequence[Any]) -> list[Any]:
    plan, values = method.plan, method.values
    for place, (index, given) in enumerate(zip(plan.inputs, inputs, strict=True)):
        _set_input(values, index, given, place)
    instructions = _chain(plan)
    counter = 0
    while counter < len(instructions):
        call = instructions[counter].instr_args
        following = counter + 1
        try:
            if isinstance(call, schema.KernelCall):
                _kernel(method, call)
            elif isinstance(call, schema.DelegateCall):
                _call_delegate(method, call, method.results[counter])
            elif isinstance(call, schema.MoveCall):
                values[call.move_to] = values[call.move_from]
            elif isinstance(call, schema.JumpFalseCall):
                if not _truth(values[call.cond_value_index]):
                    following = call.destination_instruction
            elif isinstance(call, schema.FreeCall):
                slot = values[call.value_index]
                slot.memory, slot.offset = None, 0
        except _RefusalError as error:
            raise _RefusalError(f"instruction {counter}, {_told(plan, call)}: {error}") from error
        except DelegateError as error:
            what = f"instruction {counter}, {_told(plan, call)}: {error.what}"
            raise DelegateError(what, error.debug_handle) from error
        counter = following
    return [_output(values[index]) for index in plan.outputs]


def _set_input(values: list[Any], index: int, given: Any, place: int) -> None:
    value = values[index]
    if not isinstance(value, _Slot):
        if isinstance(given, torch.Tensor):
            raise _RefusalError(f"input {place} is a tensor, must be none")
        if isinstance(value, (int, float)) and value is not None and given != value:
            reason = f"input {place} is {given!r}, must be {value!r}, as the method was exported"
            raise _RefusalError(reason)
        return
    if not isinstance(given, torch.Tensor):
        raise _RefusalError(f"input {place} must be a tensor")
    try:
        value.assign(given)
    except _RefusalError as error:
        raise _RefusalError(f"input {place} is {error}") from error


def _output(value: Any) -> Any:
    return value.tensor().clone() if isinstance(value, _Slot) else value


def _truth(value: Any) -> bool:
    return bool(value.tensor().all()) if isinstance(value, _Slot) else bool(value)


def _call_delegate(method: Method, call: schema.DelegateCall, results: int) -> None:
    delegate, split = method.delegates[call.delegate_index], len(call.args) - results
    given = [_argument(method.values, index) for index in call.args[:split]]
    given = [v.clone() if isinstance(v, torch.Tensor) else v for v in given]
    returned = list(delegate.runtime.execute(delegate.handle, given))
    if len(returned) != results:
        raise _RefusalError(f"gives {len(returned)} values, must give {results}")
    for index, value in zip(call.args[split:], returned, strict=True):
        _store(method.values, index, value)


def _kernel(method: Method, call: schema.KernelCall) -> None:
    function = method.operators[call.op_index]
    if not isinstance(function, torch._ops.OpOverload):
        function(method.values, call.args)
        return
    arguments = function._schema.arguments
    positional: list[Any] = []
    named: dict[str, Any] = {}
    outs: list[tuple[int, Any]] = []
    for argument, index in zip(arguments, call.args, strict=False):
        value = _argument(method.values, index)
        if argument.is_out:
            value = _fresh(method.values[index], method.values)
            outs.append((index, value))
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    try:
        returned = function(*positional, **named)
    except Exception as error:  # whatever an operator raises
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise _RefusalError(reason) from error
    if outs:
        for index, value in outs:
            _store(method.values, index, value)
        return
    rest = call.args[len(arguments) :]
    given = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    for index, value in zip(rest, given, strict=False):
        _store(method.values, index, value)


def _fresh(value: Any, values: Sequence[Any]) -> Any:
    """What an operator writes to instead of planned memory: its result is laid out as the operator
    likes it and then copied to where it belongs."""
    if isinstance(value, _List):
        return [_fresh(values[index], values) for index in value.members]
    return torch.empty(0, dtype=value.dtype)


def _argument(values: Sequence[Any], index: int) -> Any:
    value = values[index] if index >= 0 else None
    if isinstance(value, _Slot):
        return value.tensor()
    if isinstance(value, _List):
        return [_argument(values, member) for member in value.members]
    return value


def _store(values: list[Any], index: int, given: Any) -> None:
    value = values[index]
    if isinstance(value, _List):
        for member, each in zip(value.members, given, strict=True):
            _store(values, member, each)
    elif isinstance(value, _Slot):
        if not isinstance(given, torch.Tensor):
            raise _RefusalError(f"gives {given!r}, must give a tensor")
        value.assign(given)
    else:
        values[index] = given


@dataclass(frozen=True)
class _Prim:
    function: Callable[..., Any]

    def __call__(self, values: list[Any], args: Sequence[int]) -> None:
        *given, result = args
        try:
            values[result] = self.function(*(values[index] for index in given))
        except (ArithmeticError, TypeError) as error:
            raise _RefusalError(f"{type(error).__name__}: {error}") from error


def _view(values: list[Any], args: Sequence[int]) -> None:
    """A view of a tensor, in the same memory; one of its sizes may be -1."""
    source, out = values[args[0]], values[args[-1]]
    sizes = [values[index] for index in values[args[1]].members]
    number = math.prod(source.sizes)
    rest = math.prod(size for size in sizes if size != -1)
    sizes = [number // rest if size == -1 and rest else size for size in sizes]
    if math.prod(sizes) != number:
        raise _RefusalError(f"a view of sizes {sizes} of {number} values")
    out.share(source, sizes)


def _copy_index(values: list[Any], args: Sequence[int]) -> None:
    """Writes a tensor at an index of another one, which ends there."""
    target, source, index = values[args[0]], values[args[1]], values[args[2]]
    row = source.tensor().clone()
    target.sizes = (index + 1, *source.sizes)
    if target.sizes[0] > target.most[0] or target.sizes[1:] != tuple(row.shape):
        raise _RefusalError(f"index {index} of a tensor of sizes {list(target.most)}")
    target.tensor()[index].copy_(row)


def _size(values: list[Any], args: Sequence[int]) -> None:
    values[args[-1]] = values[args[0]].sizes[values[args[1]]]


def _numel(values: list[Any], args: Sequence[int]) -> None:
    values[args[-1]] = math.prod(values[args[0]].sizes)


def _stride(values: list[Any], args: Sequence[int]) -> None:
    values[args[-1]] = values[args[0]].tensor().stride(values[args[1]])


def _item(values: list[Any], args: Sequence[int]) -> None:
    values[args[-1]] = values[args[0]].tensor().item()


def _nothing(values: list[Any], args: Sequence[int]) -> None:
    """A constraint, which lowering has read."""


_OWN: Mapping[str, Callable[[list[Any], Sequence[int]], None]] = {
    "et_view.default": _view,
    "et_copy_index.tensor": _copy_index,
    "sym_size.int": _size,
    "sym_numel": _numel,
    "sym_stride.int": _stride,
    "_local_scalar_dense": _item,
    "item": _item,
    "sym_constrain_range": _nothing,
    "sym_constrain_range_for_size": _nothing,
}


def _told(plan: schema.ExecutionPlan, call: Any) -> str:
    """An instruction for people."""
    if isinstance(call, schema.KernelCall):
        return f"{_name(plan.operators[call.op_index])} {list(call.args)}"
    if isinstance(call, schema.DelegateCall):
        number = call.delegate_index
        return f"delegate {number} ({plan.delegates[number].id}) {list(call.args)}"
    if isinstance(call, schema.MoveCall):
        return f"move {call.move_from} to {call.move_to}"
    if isinstance(call, schema.JumpFalseCall):
        return f"to {call.destination_instruction} unless {call.cond_value_index}"
    return f"free {call.value_index}" if isinstance(call, schema.FreeCall) else "unknown"


def _name(known: schema.Operator) -> str:
    return f"{known.name}.{known.overload}" if known.overload else known.name
