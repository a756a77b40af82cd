"""What the instructions of an emitted plan read and write, as far as a plan says it.

A plan is ExecuTorch's `schema.ExecutionPlan`, with its one chain of instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from executorch.exir import schema

# Lists of values, by their indices.
LISTS = (schema.IntList, schema.TensorList, schema.OptionalTensorList)


def used_values(plan: schema.ExecutionPlan, call: Any) -> list[int]:
    """Return the values that an instruction takes or gives, and the members of lists."""
    own = [index for index in getattr(call, "args", None) or () if index >= 0]
    lists = [value for index in own if isinstance(value := plan.values[index].val, LISTS)]
    return [*own, *(index for value in lists for index in value.items if index >= 0)]


def is_external(tensor: schema.Tensor) -> bool:
    """Return whether a tensor's bytes are in a `.ptd` file."""
    extra = tensor.extra_tensor_info
    return extra is not None and extra.location == schema.TensorDataLocation.EXTERNAL


def written_values(
    plan: schema.ExecutionPlan, number: int, delegate_results: dict[int, int]
) -> list[int]:
    """Return the values that an instruction writes; a jump writes none.

    Args:
        delegate_results: as `count_delegate_results` gives them.
    """
    call = plan.chains[0].instructions[number].instr_args
    if isinstance(call, schema.KernelCall):
        if plan.operators[call.op_index].name == "executorch_prim::et_copy_index":
            return [call.args[0]]
        value = plan.values[call.args[-1]].val if call.args[-1] >= 0 else None
        return list(value.items) if isinstance(value, LISTS) else [call.args[-1]]
    if isinstance(call, schema.DelegateCall):
        return list(call.args[len(call.args) - delegate_results[number] :])
    return [call.move_to] if isinstance(call, schema.MoveCall) else []


def count_delegate_results(
    plan: schema.ExecutionPlan, instructions: Sequence[schema.Instruction]
) -> dict[int, int]:
    """Count the results of each delegate call, by the number of its instruction. No file says it:
    they are the last arguments that nothing has written before."""
    values = [each.val for each in plan.values]
    calls = [each.instr_args for each in instructions]
    known = {*plan.inputs}
    for index, value in enumerate(values):
        empty = isinstance(value, schema.Tensor) and value.data_buffer_idx == 0
        if not empty or is_external(value):
            known.add(index)
    kernels = (call for call in calls if isinstance(call, schema.KernelCall))
    # Buffers, which a method writes to when it is done with them.
    known.update(c.args[0] for c in kernels if plan.operators[c.op_index].name == "aten::copy_")
    counts = {}
    for number, call in enumerate(calls):
        if isinstance(call, schema.DelegateCall):
            counts[number] = len([*takewhile(lambda i: i not in known, reversed(call.args))])
            known.update(call.args)
        elif isinstance(call, schema.KernelCall):
            known.update(used_values(plan, call))
        elif isinstance(call, schema.MoveCall):
            known.update((call.move_from, call.move_to))
    return counts
