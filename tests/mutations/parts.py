"""A package taken apart by ExecuTorch's own deserializer, so that a part of it can be changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from executorch.exir import schema
from executorch.exir._serialize._cord import Cord
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize._program import (
    PTEFile,
    deserialize_pte_binary,
    serialize_pte_binary,
)
from executorch.exir._serialize.data_serializer import DataEntry, DataPayload
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

from .samples import Files

# Which the file does not say: XNNPACK's weights want it (xnnpack_graph_serialize.py).
_NAMED_ALIGNMENT = 16


@dataclass(frozen=True)
class Culprit:
    """What a damage is expected to be traced to.

    Attributes:
        kind: as in the records of reports: `operator`, `delegate` or `state`; several where each of
            them would be right, parted by `|`; empty where no value that is computed goes wrong.
        name: the operator's (`aten::add.out`), the delegate's backend id, or empty.
        instruction: its number in the plan; -1 where there is none.
        delegate: the delegate's number in the plan; -1 where there is none.
    """

    method: str
    kind: str
    name: str = ""
    instruction: int = -1
    delegate: int = -1


@dataclass(frozen=True)
class Damage:
    """What was done to a package, and what it may be traced to: one culprit at least for every
    method that it can change."""

    what: str
    culprits: tuple[Culprit, ...]

    @property
    def methods(self) -> set[str]:
        return {culprit.method for culprit in self.culprits}


@dataclass
class Parts:
    """`named` are the delegates' named data; `ptds` are the contents of external files."""

    program: schema.Program
    mutable: list[schema.Buffer] | None = None
    named: dict[str, bytes] = field(default_factory=dict)
    ptds: dict[str, DataPayload] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Files) -> Parts:
        file = deserialize_pte_binary(files.pte)
        named = {}
        if file.named_data is not None:
            entries = file.named_data.pte_data.items()
            named = {key: bytes(file.named_data.buffers[e.buffer_index]) for key, e in entries}
        ptds = {stem: FlatTensorSerializer().deserialize(Cord(p)) for stem, p in files.ptds.items()}
        parts = cls(file.program, file.mutable_data, named, ptds)
        parts._keep_payloads_once()
        return parts

    def files(self) -> Files:
        """The package again, laid out as a build does it."""
        self._keep_payloads_once()
        named = None
        if self.named:
            entries = {
                key: DataEntry(index, _NAMED_ALIGNMENT, None)
                for index, key in enumerate(self.named)
            }
            named = NamedDataStoreOutput(list(self.named.values()), entries, {})
        file = PTEFile(self.program, mutable_data=self.mutable, named_data=named)
        pte = serialize_pte_binary(file, extract_delegate_segments=True)
        ptds = {s: bytes(FlatTensorSerializer().serialize(p)) for s, p in self.ptds.items()}
        return Files(bytes(pte), ptds)

    def _keep_payloads_once(self) -> None:
        """Those that delegates refer to, equal ones once, as link does it."""
        kept: list[schema.BackendDelegateInlineData] = []
        for plan in self.program.execution_plan:
            for delegate in plan.delegates:
                data = self.program.backend_delegate_data[delegate.processed.index]
                if data not in kept:
                    kept.append(data)
                delegate.processed = replace(delegate.processed, index=kept.index(data))
        self.program.backend_delegate_data = kept

    @property
    def plans(self) -> list[schema.ExecutionPlan]:
        """Of the methods, without constant ones."""
        return [plan for plan in self.program.execution_plan if plan.chains[0].instructions]

    def payload(self, plan: schema.ExecutionPlan, delegate: int) -> bytes:
        index = plan.delegates[delegate].processed.index
        return bytes(self.program.backend_delegate_data[index].data)

    def set_payload(self, plan: schema.ExecutionPlan, delegate: int, payload: bytes) -> None:
        index = plan.delegates[delegate].processed.index
        self.program.backend_delegate_data[index].data = payload

    def delegates(self) -> list[tuple[schema.ExecutionPlan, int]]:
        return [(plan, n) for plan in self.plans for n in range(len(plan.delegates))]

    def users_of(self, payload: int) -> Iterator[tuple[schema.ExecutionPlan, int]]:
        """The delegates whose bytes are this entry of the program's table."""
        for plan, number in self.delegates():
            if plan.delegates[number].processed.index == payload:
                yield plan, number


def calls(plan: schema.ExecutionPlan) -> list[tuple[int, Any]]:
    """The instructions, numbered."""
    return [(n, i.instr_args) for n, i in enumerate(plan.chains[0].instructions)]


def kernels(plan: schema.ExecutionPlan) -> list[tuple[int, schema.KernelCall, str]]:
    """Kernel calls with their numbers and their operators' names."""
    return [
        (number, call, operator_name(plan, call))
        for number, call in calls(plan)
        if isinstance(call, schema.KernelCall)
    ]


def operator_name(plan: schema.ExecutionPlan, call: schema.KernelCall) -> str:
    operator = plan.operators[call.op_index]
    return f"{operator.name}.{operator.overload}" if operator.overload else operator.name


def operator_index(plan: schema.ExecutionPlan, name: str) -> int:
    """Of an operator in a plan's table, where it is put if it is not there."""
    known, _, overload = name.partition(".")
    wanted = schema.Operator(known, overload)
    if wanted not in plan.operators:
        plan.operators.append(wanted)
    return plan.operators.index(wanted)


def kernel_culprit(plan: schema.ExecutionPlan, number: int, kind: str = "operator") -> Culprit:
    call = plan.chains[0].instructions[number].instr_args
    return Culprit(plan.name, kind, operator_name(plan, call), number)


def delegate_culprit(plan: schema.ExecutionPlan, delegate: int) -> Culprit:
    number = next(
        n
        for n, call in calls(plan)
        if isinstance(call, schema.DelegateCall) and call.delegate_index == delegate
    )
    return Culprit(plan.name, "delegate", plan.delegates[delegate].id, number, delegate)


def culprit_of(plan: schema.ExecutionPlan, number: int) -> Culprit:
    """That of an instruction, whatever it is."""
    call = plan.chains[0].instructions[number].instr_args
    if isinstance(call, schema.KernelCall):
        return kernel_culprit(plan, number)
    if isinstance(call, schema.DelegateCall):
        return delegate_culprit(plan, call.delegate_index)
    return Culprit(plan.name, "operator", type(call).__name__, number)


def reads(plan: schema.ExecutionPlan, call: Any) -> set[int]:
    """The values that an instruction names, members of lists among them."""
    if isinstance(call, (schema.KernelCall, schema.DelegateCall)):
        found = {index for index in call.args if index >= 0}
        for index in tuple(found):
            value = plan.values[index].val
            if isinstance(value, (schema.TensorList, schema.OptionalTensorList, schema.IntList)):
                found |= {each for each in value.items if each >= 0}
        return found
    if isinstance(call, schema.MoveCall):
        return {call.move_from, call.move_to}
    if isinstance(call, schema.JumpFalseCall):
        return {call.cond_value_index}
    return set()


def users(plan: schema.ExecutionPlan, value: int) -> list[int]:
    """The numbers of the instructions that name a value."""
    return [number for number, call in calls(plan) if value in reads(plan, call)]


def tensor(plan: schema.ExecutionPlan, value: int) -> schema.Tensor | None:
    found = plan.values[value].val if 0 <= value < len(plan.values) else None
    return found if isinstance(found, schema.Tensor) else None


def elements(shape: schema.Tensor) -> int:
    count = 1
    for size in shape.sizes:
        count *= size
    return count
