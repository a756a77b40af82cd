"""A package taken apart by ExecuTorch's deserializer, so that parts of it can be changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import combinations
from random import Random
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

# The file doesn't record it: XNNPACK's weights require it (xnnpack_graph_serialize.py).
_NAMED_ALIGNMENT = 16


@dataclass(frozen=True)
class Culprit:
    """Where a damage should be traced to.

    Attributes:
        kind: as in report records: `operator`, `delegate` or `state`; alternatives are separated by
            `|`; empty if no computed value goes wrong.
        name: the operator (`aten::add.out`), the delegate's backend id, or empty.
        instruction: the instruction's number in the plan, or -1 if there is none.
        delegate: the delegate's number in the plan, or -1 if there is none.
    """

    method: str
    kind: str
    name: str = ""
    instruction: int = -1
    delegate: int = -1


@dataclass(frozen=True)
class Damage:
    """A change to a package, and the culprits that it may be traced to: at least one for every
    method that it can change."""

    what: str
    culprits: tuple[Culprit, ...]

    @property
    def methods(self) -> set[str]:
        return {culprit.method for culprit in self.culprits}


@dataclass
class Parts:
    """The parts of a package: `named` data of delegates, contents of external files (`ptds`)."""

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
        """Return the package again, laid out as by a build."""
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
        """Keep only payloads that delegates use, and equal ones once, as link does."""
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
        """Return the plans of the methods, except constant ones."""
        return [plan for plan in self.program.execution_plan if plan.chains[0].instructions]

    def payload(self, plan: schema.ExecutionPlan, delegate: int) -> bytes:
        index = plan.delegates[delegate].processed.index
        return bytes(self.program.backend_delegate_data[index].data)

    def set_payload(self, plan: schema.ExecutionPlan, delegate: int, payload: bytes) -> None:
        index = plan.delegates[delegate].processed.index
        self.program.backend_delegate_data[index].data = payload

    def delegates(self) -> list[tuple[schema.ExecutionPlan, int]]:
        return [(plan, n) for plan in self.plans for n in range(len(plan.delegates))]

    def users_of(self, holds: Callable[[schema.ExecutionPlan, int], bool]) -> tuple[Culprit, ...]:
        """Return the delegates for which `holds` is true."""
        return tuple(delegate_culprit(*user) for user in self.delegates() if holds(*user))


Sites = Callable[[Parts], Iterable[tuple[Any, ...]]]
DAMAGES: dict[str, Callable[[Parts, Random], Damage | None]] = {}


def damage(sites: Sites, name: str = "") -> Callable[..., Callable[..., Damage]]:
    """Register a function as a damage, by default under the function's name.

    Args:
        sites: the places that this damage applies to. The function is called with one of them as
            further arguments, or not at all if there are none.
    """

    def register(function: Callable[..., Damage]) -> Callable[..., Damage]:
        @wraps(function)
        def apply(parts: Parts, random: Random) -> Damage | None:
            places = list(sites(parts))
            return function(parts, random, *random.choice(places)) if places else None

        DAMAGES[name or function.__name__] = apply
        return function

    return register


def calls(plan: schema.ExecutionPlan) -> list[tuple[int, Any]]:
    """Return the instructions with their numbers."""
    return [(n, i.instr_args) for n, i in enumerate(plan.chains[0].instructions)]


Kernel = tuple[schema.ExecutionPlan, int, schema.KernelCall, str]


def kernels(parts: Parts, *names: str) -> list[Kernel]:
    """Return the kernel calls whose operator names contain one of these, with plan and number."""
    return [
        (plan, number, call, operator_name(plan, call))
        for plan in parts.plans
        for number, call in calls(plan)
        if isinstance(call, schema.KernelCall)
        if not names or any(name in operator_name(plan, call) for name in names)
    ]


def operator_name(plan: schema.ExecutionPlan, call: schema.KernelCall) -> str:
    operator = plan.operators[call.op_index]
    return f"{operator.name}.{operator.overload}" if operator.overload else operator.name


def rename_operator(plan: schema.ExecutionPlan, call: schema.KernelCall, name: str) -> None:
    """Make a call use another operator, which is added to the plan's table if necessary."""
    base, _, overload = name.partition(".")
    operator = schema.Operator(base, overload)
    if operator not in plan.operators:
        plan.operators.append(operator)
    call.op_index = plan.operators.index(operator)


def skip_call(plan: schema.ExecutionPlan, number: int, value: int) -> None:
    """Replace a call by moving a value onto itself, which does nothing."""
    plan.chains[0].instructions[number] = schema.Instruction(schema.MoveCall(value, value))


def set_argument(plan: schema.ExecutionPlan, call: schema.KernelCall, place: int, new: Any) -> None:
    """Give a call a new argument value, since other calls may read the old one."""
    plan.values.append(schema.EValue(new))
    call.args[place] = len(plan.values) - 1


def delegate_culprit(plan: schema.ExecutionPlan, delegate: int) -> Culprit:
    number = next(
        n
        for n, call in calls(plan)
        if isinstance(call, schema.DelegateCall) and call.delegate_index == delegate
    )
    return Culprit(plan.name, "delegate", plan.delegates[delegate].id, number, delegate)


def culprit_of(plan: schema.ExecutionPlan, number: int) -> Culprit:
    """Return the culprit for an instruction of any kind."""
    call = plan.chains[0].instructions[number].instr_args
    if isinstance(call, schema.DelegateCall):
        return delegate_culprit(plan, call.delegate_index)
    is_kernel = isinstance(call, schema.KernelCall)
    name = operator_name(plan, call) if is_kernel else type(call).__name__
    return Culprit(plan.name, "operator", name, number)


def reads(plan: schema.ExecutionPlan, call: Any) -> set[int]:
    """Return the values that an instruction uses, including members of lists."""
    if isinstance(call, schema.MoveCall):
        return {call.move_from, call.move_to}
    if isinstance(call, schema.JumpFalseCall):
        return {call.cond_value_index}
    values = set(getattr(call, "args", ()))
    for index in tuple(values - {-1}):
        held = plan.values[index].val
        if isinstance(held, (schema.TensorList, schema.OptionalTensorList, schema.IntList)):
            values.update(held.items)
    return values


def users(plan: schema.ExecutionPlan, value: int) -> list[int]:
    """Return the numbers of the instructions that use a value."""
    return [number for number, call in calls(plan) if value in reads(plan, call)]


def tensor(plan: schema.ExecutionPlan, value: int) -> schema.Tensor | None:
    found = plan.values[value].val if 0 <= value < len(plan.values) else None
    return found if isinstance(found, schema.Tensor) else None


def pairs_alike(
    plan: schema.ExecutionPlan, places: Sequence[int], alike: bool = True
) -> list[tuple[schema.ExecutionPlan, int, int]]:
    """Return pairs of tensors at these places, equal in size and type if `alike`, else unequal."""
    pairs = []
    for (one, value), (other, second) in combinations(enumerate(places), 2):
        first, last = tensor(plan, value), tensor(plan, second)
        if value == second or first is None or last is None:
            continue
        if is_like(first, last) == alike:
            pairs.append((plan, one, other))
    return pairs


def is_like(one: schema.Tensor, other: schema.Tensor) -> bool:
    return (one.sizes, one.scalar_type) == (other.sizes, other.scalar_type)


def swap(items: list[int], one: int, other: int) -> None:
    items[one], items[other] = items[other], items[one]
