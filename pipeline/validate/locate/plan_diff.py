"""How a method in a package differs from what its build gives, instruction by instruction.

For a file that was damaged on disk, or made by something else. Both are read by ExecuTorch's
deserializer; nothing is run. Tables of a package are in another order than an object's, so data are
compared by content, never by index.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from executorch.exir import schema
from torch.export import ExportedProgram

from pipeline.devices.bindings import DTYPES
from pipeline.devices.interpreter.execute import told
from pipeline.devices.interpreter.load import Data, constant_bytes, instructions_of
from pipeline.devices.interpreter.slots import RefusalError
from pipeline.report.records import CulpritKind

MOST = 3  # what is told of one method


@dataclass(frozen=True)
class Difference:
    """`index` is the instruction that it shows at first, None where it is of the whole method;
    `kind` as of a Culprit. `what` is the predicate of a sentence; `constant` the qualified name of
    the constant that is another one."""

    index: int | None
    kind: CulpritKind
    what: str
    constant: str = ""


def plans(data: Data) -> dict[str, schema.ExecutionPlan]:
    return {plan.name: plan for plan in data.file.program.execution_plan}


def differences(
    package: Data, built: Data, method: str, program: ExportedProgram | None = None
) -> list[Difference]:
    """Those of one method that both have, in the order of the instructions, at most `MOST`.

    Args:
        program: names the constants.
    """
    mine, wanted = plans(package)[method], plans(built)[method]
    same = _same_as(package, mine, built, method)
    if same:
        return [Difference(None, "order", f"is what the build gives as '{same}'")]
    found = [
        *_of_outputs(mine, wanted),
        *_of_instructions(mine, wanted),
        *_of_data(package, mine, built, wanted, program),
    ]
    found = found or list(_of_memory(mine, wanted))
    ordered = sorted(found, key=lambda d: -1 if d.index is None else d.index)
    return list(dict.fromkeys(ordered))[:MOST]


def _same_as(package: Data, mine: Any, built: Data, method: str) -> str:
    """The other method whose plan this is."""
    others = plans(built)
    if method in others and _shape(mine) == _shape(others[method]):
        own = [b for b in _contents(built, others[method]) if b is not None]
        if own == [b for b in _contents(package, mine) if b is not None]:
            return ""
    for name, other in others.items():
        same = name != method and _shape(mine) == _shape(other)
        if same and _contents(package, mine) == _contents(built, other):
            return name
    return ""


def _shape(plan: schema.ExecutionPlan) -> Any:
    """A plan without its name and indices into tables."""
    values = [
        replace(v.val, data_buffer_idx=min(v.val.data_buffer_idx, 1))
        if isinstance(v.val, schema.Tensor)
        else v.val
        for v in plan.values
    ]
    delegates = [(d.id, d.compile_specs) for d in plan.delegates]
    return values, plan.inputs, plan.outputs, plan.chains, plan.operators, delegates


def _contents(data: Data, plan: schema.ExecutionPlan) -> list[bytes | None]:
    tensors = [v.val for v in plan.values if isinstance(v.val, schema.Tensor)]
    return [*(_bytes(t, data) for t in tensors), *(_payload(data, d) for d in plan.delegates)]


def _bytes(tensor: schema.Tensor, data: Data) -> bytes | None:
    try:
        content = constant_bytes(tensor, data)
    except RefusalError:
        return None
    size = DTYPES[int(tensor.scalar_type)].itemsize * math.prod(tensor.sizes)
    return None if content is None else content[:size]  # behind it may be padding


def _payload(data: Data, delegate: schema.BackendDelegate) -> bytes:
    table = data.file.program.backend_delegate_data
    index = delegate.processed.index
    return bytes(table[index].data) if index < len(table) else b""


def _of_outputs(mine: schema.ExecutionPlan, wanted: schema.ExecutionPlan) -> Iterator[Difference]:
    for kind, now, then in (
        ("output", mine.outputs, wanted.outputs),
        ("input", mine.inputs, wanted.inputs),
    ):
        if list(now) == list(then):
            continue
        if sorted(now) == sorted(then):
            order = ", ".join(str(then.index(index)) for index in now)
            yield Difference(None, "order", f"has its {kind}s in another order: {order}")
        elif len(now) < len(then):
            lost = [str(n) for n, index in enumerate(then) if index not in now]
            what = f"lacks {kind} {', '.join(lost)} of the {len(then)} that its build gives it"
            yield Difference(None, "order", what)
        else:
            yield Difference(None, "order", f"has other {kind}s than its build gives it")


def _of_instructions(
    mine: schema.ExecutionPlan, wanted: schema.ExecutionPlan
) -> Iterator[Difference]:
    now, then = (
        [told(plan, each.instr_args) for each in instructions_of(plan)] for plan in (mine, wanted)
    )
    for index, (one, other) in enumerate(zip(now, then, strict=False)):
        if one != other:
            name, instead = one.partition(" [")[0], other.partition(" [")[0]
            if name == instead:
                what = f"calls {name} with other arguments than its build gives it"
            else:
                what = f"calls {name} where its build gives {instead}"
            yield Difference(index, "package", what)
    if len(now) != len(then):
        what = f"has {len(now)} instructions, its build gives {len(then)}"
        yield Difference(min(len(now), len(then)), "package", what)


def _of_memory(mine: schema.ExecutionPlan, wanted: schema.ExecutionPlan) -> Iterator[Difference]:
    now, then = (
        " + ".join(f"{size:,}" for size in plan.non_const_buffer_sizes[1:]) or "no"
        for plan in (mine, wanted)
    )
    if now != then:
        what = f"plans {now} bytes of memory where its build gives {then}"
        yield Difference(None, "package", what)


def _of_data(
    package: Data,
    mine: schema.ExecutionPlan,
    built: Data,
    wanted: schema.ExecutionPlan,
    program: ExportedProgram | None,
) -> Iterator[Difference]:
    first = _first_uses(wanted)
    for index, (now, then) in enumerate(zip(mine.values, wanted.values, strict=False)):
        what, name = _value_difference(now.val, then.val, package, built, program)
        if what:
            is_state = (
                isinstance(then.val, schema.Tensor)
                and then.val.allocation_info is not None
                and then.val.data_buffer_idx > 0
            )
            yield Difference(first.get(index), "state" if is_state else "package", what, name)
    for number, (one, other) in enumerate(zip(mine.delegates, wanted.delegates, strict=False)):
        what, name = _delegate_difference(one, other, package, built, program)
        if what:
            yield Difference(_call_of(wanted, number), "package", what, name)


def _first_uses(plan: schema.ExecutionPlan) -> dict[int, int]:
    """The first instruction that takes or gives each value, members of lists too."""
    first: dict[int, int] = {}
    for number, instruction in enumerate(instructions_of(plan)):
        args = getattr(instruction.instr_args, "args", None) or ()
        for index in args:
            value = plan.values[index].val if index >= 0 else None
            members = (
                value.items
                if isinstance(value, (schema.IntList, schema.TensorList, schema.OptionalTensorList))
                else ()
            )
            for each in (index, *members):
                first.setdefault(each, number)
    return first


def _call_of(plan: schema.ExecutionPlan, delegate: int) -> int | None:
    for number, instruction in enumerate(instructions_of(plan)):
        call = instruction.instr_args
        if isinstance(call, schema.DelegateCall) and call.delegate_index == delegate:
            return number
    return None


def _value_difference(
    now: Any, then: Any, package: Data, built: Data, program: ExportedProgram | None
) -> tuple[str, str]:
    """What is other about a value, and the name of the constant that it is."""
    if not (isinstance(now, schema.Tensor) and isinstance(then, schema.Tensor)):
        if now == then:
            return "", ""
        return f"is given {_shown(now)}, its build gives {_shown(then)}", ""
    for name in ("scalar_type", "sizes", "dim_order", "allocation_info", "shape_dynamism"):
        one, other = getattr(now, name), getattr(then, name)
        if one != other:
            words = {"allocation_info": "place in memory", "scalar_type": "dtype"}.get(name, name)
            return f"has a tensor with another {words} than its build gives it", ""
    one, other = _bytes(now, package), _bytes(then, built)
    if one == other:
        return "", ""
    name = constant_name(other, program)
    what = f"constant {name}" if name else "constant"
    return f"has another {what} than its build gives it ({_changed(one, other)})", name


def _delegate_difference(
    now: schema.BackendDelegate,
    then: schema.BackendDelegate,
    package: Data,
    built: Data,
    program: ExportedProgram | None,
) -> tuple[str, str]:
    """What is other about a delegate, and the name of the constant that is."""
    if now.id != then.id:
        return f"hands a partition to {now.id} that its build gives to {then.id}", ""
    mine, wanted = _payload(package, now), _payload(built, then)
    if mine != wanted:
        owner = _owner(mine, built)
        if owner:
            return f"holds the payload of {owner}", ""
        return f"has another payload than its build gives it ({_changed(mine, wanted)})", ""
    if now.compile_specs != then.compile_specs:
        return "has other compile specs than its build gives it", ""
    return other_named_data(package.named, named_of(wanted, built), program)


def other_named_data(
    now: Mapping[str, bytes], then: Mapping[str, bytes], program: ExportedProgram | None
) -> tuple[str, str]:
    """What is other about the weights of a delegate, and the name of the first that is."""
    for key, content in then.items():
        if now.get(key) != content:
            name = constant_name(content, program)
            what = name or f"'{key}'"
            changed = _changed(now.get(key), content)
            return f"has another weight {what} than its build gives it ({changed})", name
    return "", ""


def _owner(payload: bytes, built: Data) -> str:
    for name, plan in plans(built).items():
        for number, delegate in enumerate(plan.delegates):
            if _payload(built, delegate) == payload:
                return f"{delegate.id}'s delegate {number} of '{name}'"
    return ""


def named_of(payload: bytes, data: Data) -> dict[str, bytes]:
    """The named data that a payload speaks of."""
    return {key: value for key, value in data.named.items() if key.encode() in payload}


def _changed(now: bytes | None, then: bytes | None) -> str:
    if now is None or then is None:
        return "it is not there" if now is None else "its build has none"
    if len(now) != len(then):
        return f"{len(now):,} bytes, must be {len(then):,}"
    one, other = (torch.frombuffer(bytearray(b), dtype=torch.uint8) for b in (now, then))
    places = (one != other).nonzero().flatten()
    return f"{len(places):,} of {len(then):,} bytes differ, the first at {int(places[0]):,}"


def _shown(value: Any) -> str:
    fields = vars(value) if hasattr(value, "__dict__") else {}
    return str(next(iter(fields.values()))) if len(fields) == 1 else type(value).__name__


def constant_name(content: bytes | None, program: ExportedProgram | None) -> str:
    """The qualified name of the parameter, buffer or constant that holds these bytes, in whatever
    order a backend keeps its elements; "" where there is none, or padding beside them."""
    if content is None or program is None:
        return ""
    wanted: torch.Tensor | None = None
    for name, tensor in {**program.state_dict, **program.constants}.items():
        if not isinstance(tensor, torch.Tensor) or tensor.nbytes != len(content):
            continue
        if tensor.nbytes == 0:
            continue
        own = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        if wanted is None:
            wanted = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        size = tensor.element_size()
        if torch.equal(_sorted(own, size), _sorted(wanted, size)):
            return name
    return ""


def _sorted(content: torch.Tensor, size: int) -> torch.Tensor:
    kinds: Mapping[int, torch.dtype] = {
        1: torch.uint8,
        2: torch.int16,
        4: torch.int32,
        8: torch.int64,
    }
    kind = kinds.get(size, torch.uint8)
    return content.clone().view(kind).sort().values
