"""Compares a method in a package with what its build gives, instruction by instruction.

For a file that was damaged on disk, or made by something else. Both are read by ExecuTorch's
deserializer; nothing is run. Tables of a package are in another order than an object's, so data are
compared by content, never by index.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from executorch.exir import schema
from torch.export import ExportedProgram

from pipeline.devices.bindings import DTYPES
from pipeline.devices.interpreter.execute import describe_instruction
from pipeline.devices.interpreter.load import (
    PackageData,
    constant_bytes,
    get_instructions,
    read_payload,
)
from pipeline.devices.interpreter.slots import RefusalError
from pipeline.program.graphs import iter_nodes
from pipeline.program.operators import base_name
from pipeline.program.plan_values import used_values
from pipeline.report.records import CulpritKind

MOST = 3  # differences of one method that are reported
_WORDS = {
    "scalar_type": "dtype",
    "sizes": "sizes",
    "dim_order": "dim_order",
    "allocation_info": "place in memory",
    "shape_dynamism": "shape_dynamism",
}


@dataclass(frozen=True)
class Difference:
    """A difference of a method from its build.

    Attributes:
        index: the instruction that it shows at first; None where it is of the whole method.
        what: the predicate of a sentence about the package.
        constant: the qualified name of the constant that differs.
    """

    index: int | None
    kind: CulpritKind
    what: str
    constant: str = ""


class _Method(NamedTuple):
    data: PackageData
    plan: schema.ExecutionPlan


def diff_method(
    package: PackageData, built: PackageData, method: str, program: ExportedProgram | None = None
) -> list[Difference]:
    """Compare a method that both have; at most `MOST`, in the order of the instructions.

    Args:
        program: names the constants.
    """
    mine = _Method(package, package.plans[method])
    found = _diff_plans(mine, _Method(built, built.plans[method]), program)
    for name, other in built.plans.items() if found else ():
        if not _diff_plans(mine, _Method(built, other), None):
            return [Difference(None, "order", f"is what the build gives as '{name}'")]
    # Those that name an operator and its line come first.
    ordered = sorted(found, key=lambda d: (d.index is None, d.index or 0))
    return list(dict.fromkeys(ordered))[:MOST]


def _diff_plans(
    mine: _Method, wanted: _Method, program: ExportedProgram | None
) -> list[Difference]:
    now, then = mine.plan, wanted.plan
    found = [
        *_diff_order("output", now.outputs, then.outputs),
        *_diff_order("input", now.inputs, then.inputs),
        *_diff_instructions(now, then),
        *_diff_values(mine, wanted, program),
        *_diff_delegates(mine, wanted, program),
    ]
    return found or list(_diff_memory(now.non_const_buffer_sizes, then.non_const_buffer_sizes))


def _bytes(tensor: schema.Tensor, data: PackageData) -> bytes | None:
    try:
        content = constant_bytes(tensor, data)
    except RefusalError:
        return None
    size = DTYPES[int(tensor.scalar_type)].itemsize * math.prod(tensor.sizes)
    return None if content is None else content[:size]  # behind it may be padding


def _diff_order(kind: str, now: list[int], then: list[int]) -> Iterator[Difference]:
    if now == then:
        return
    if sorted(now) == sorted(then):
        order = ", ".join(str(then.index(index)) for index in now)
        what = f"has its {kind}s in another order: {order}"
    elif len(now) < len(then):
        lost = ", ".join(str(n) for n, index in enumerate(then) if index not in now)
        what = f"lacks {kind} {lost} of the {len(then)} that its build gives it"
    else:
        what = f"has other {kind}s than its build gives it"
    yield Difference(None, "order", what)


def _diff_instructions(
    mine: schema.ExecutionPlan, wanted: schema.ExecutionPlan
) -> Iterator[Difference]:
    now, then = (
        [describe_instruction(plan, each.instr_args) for each in get_instructions(plan)]
        for plan in (mine, wanted)
    )
    for index, (one, other) in enumerate(zip(now, then, strict=False)):
        if one != other:
            name, instead = one.partition(" [")[0], other.partition(" [")[0]
            same = f"calls {name} with other arguments than its build gives it"
            what = same if name == instead else f"calls {name} where its build gives {instead}"
            yield Difference(index, "package", what)
    if len(now) != len(then):
        what = f"has {len(now)} instructions, its build gives {len(then)}"
        yield Difference(min(len(now), len(then)), "package", what)


def _diff_memory(*sizes: list[int]) -> Iterator[Difference]:
    now, then = (" + ".join(f"{size:,}" for size in each[1:]) or "no" for each in sizes)
    if now != then:
        what = f"plans {now} bytes of memory where its build gives {then}"
        yield Difference(None, "package", what)


def _diff_values(
    mine: _Method, wanted: _Method, program: ExportedProgram | None
) -> Iterator[Difference]:
    first: dict[int, int] = {}  # the first instruction that takes or gives each value
    for number, instruction in enumerate(get_instructions(wanted.plan)):
        for index in used_values(wanted.plan, instruction.instr_args):
            first.setdefault(index, number)
    pairs = zip(mine.plan.values, wanted.plan.values, strict=False)
    for index, (now, then) in enumerate((one.val, other.val) for one, other in pairs):
        what = constant = ""
        if not (isinstance(now, schema.Tensor) and isinstance(then, schema.Tensor)):
            what = f"is given {_show(now)}, its build gives {_show(then)}" if now != then else ""
        elif differs := [name for name in _WORDS if getattr(now, name) != getattr(then, name)]:
            what = f"has a tensor with another {_WORDS[differs[0]]} than its build gives it"
        elif (content := _bytes(now, mine.data)) != (right := _bytes(then, wanted.data)):
            constant = name_constant(right, program)
            noun, changed = f"constant {constant}".strip(), _describe_change(content, right)
            what = f"has another {noun} than its build gives it ({changed})"
        if what:
            kept = isinstance(then, schema.Tensor) and then.allocation_info and then.data_buffer_idx
            yield Difference(first.get(index), "state" if kept else "package", what, constant)


def _show(value: Any) -> str:
    fields = vars(value) if hasattr(value, "__dict__") else {}
    return str(next(iter(fields.values()))) if len(fields) == 1 else type(value).__name__


def _diff_delegates(
    mine: _Method, wanted: _Method, program: ExportedProgram | None
) -> Iterator[Difference]:
    calls = [getattr(i.instr_args, "delegate_index", None) for i in get_instructions(wanted.plan)]
    owners = {
        read_payload(wanted.data, delegate): f"{delegate.id}'s delegate {number} of '{name}'"
        for name, plan in wanted.data.plans.items()
        for number, delegate in enumerate(plan.delegates)
    }
    pairs = zip(mine.plan.delegates, wanted.plan.delegates, strict=False)
    for number, (now, then) in enumerate(pairs):
        payload, right = read_payload(mine.data, now), read_payload(wanted.data, then)
        what = constant = ""
        if now.id != then.id:
            what = f"hands a partition to {now.id} that its build gives to {then.id}"
        elif payload != right and payload in owners:
            what = f"holds the payload of {owners[payload]}"
        elif payload != right:
            changed = _describe_change(payload, right)
            what = f"has another payload than its build gives it ({changed})"
        elif now.compile_specs != then.compile_specs:
            what = "has other compile specs than its build gives it"
        else:
            named = {key: w for key, w in wanted.data.named.items() if key.encode() in right}
            what, constant = diff_named_data(mine.data.named, named, program)
        if what:
            index = calls.index(number) if number in calls else None
            yield Difference(index, "package", what, constant)


def diff_named_data(
    now: Mapping[str, bytes], then: Mapping[str, bytes], program: ExportedProgram | None
) -> tuple[str, str]:
    """Describe how the weights of a delegate differ, and name the first constant that does."""
    for key, content in then.items():
        if now.get(key) != content:
            name = name_constant(content, program)
            changed = _describe_change(now.get(key), content)
            what = f"has another weight {name or repr(key)} than its build gives it ({changed})"
            return what, name
    return "", ""


def _describe_change(now: bytes | None, then: bytes | None) -> str:
    if now is None or then is None:
        return "it is not there" if now is None else "its build has none"
    if len(now) != len(then):
        return f"{len(now):,} bytes, must be {len(then):,}"
    one, other = (torch.frombuffer(bytearray(b), dtype=torch.uint8) for b in (now, then))
    places = (one != other).nonzero().flatten()
    return f"{len(places):,} of {len(then):,} bytes differ, the first at {int(places[0]):,}"


def name_constant(content: bytes | None, program: ExportedProgram | None) -> str:
    """Return the qualified name of the parameter, buffer or constant that holds these bytes.

    A backend may keep its elements in any order. It is "" where there is none, or padding beside
    them.
    """
    if not content or program is None:
        return ""
    wanted = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    for name, tensor in {**program.state_dict, **program.constants}.items():
        if isinstance(tensor, torch.Tensor) and tensor.nbytes == len(content):
            kind = kinds.get(tensor.element_size(), torch.uint8)
            own = tensor.detach().contiguous().reshape(-1).view(kind)
            if torch.equal(own.sort().values, wanted.view(kind).sort().values):
                return name
    return ""


def find_reader(constant: str, program: ExportedProgram) -> int | None:
    """Find the place of the first operator that a constant of the program goes into."""
    specs = program.graph_signature.input_specs
    reads = {spec.arg.name for spec in specs if spec.target == constant}
    for place, node in enumerate(iter_nodes(program)):
        if node.op == "call_function" and reads & {i.name for i in node.all_input_nodes}:
            if not base_name(node).startswith("dequantize"):
                return place
            reads.add(node.name)
    return None
