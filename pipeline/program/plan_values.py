"""Finds the values that the instructions of an emitted plan read and write.

A plan is ExecuTorch's `schema.ExecutionPlan`, which has a single chain of instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from executorch.exir import schema

# The types that list values by their indices.
LISTS = (schema.IntList, schema.TensorList, schema.OptionalTensorList)


def used_values(plan: schema.ExecutionPlan, call: Any) -> list[int]:
    """Return the indices of an instruction's arguments, then of the members of list arguments."""
    arguments = [index for index in getattr(call, "args", None) or () if index >= 0]
    members: list[int] = []
    for argument in arguments:
        value = plan.values[argument].val
        if isinstance(value, LISTS):
            members += [index for index in value.items if index >= 0]
    return [*arguments, *members]


def is_external(tensor: schema.Tensor) -> bool:
    """Return whether a tensor's bytes are in a `.ptd` file."""
    extra = tensor.extra_tensor_info
    return extra is not None and extra.location == schema.TensorDataLocation.EXTERNAL


def written_values(
    plan: schema.ExecutionPlan, number: int, delegate_results: dict[int, int]
) -> list[int]:
    """Return the indices of the values that an instruction writes; a jump writes none.

    Args:
        number: the index of the instruction.
        delegate_results: the result of `count_delegate_results`.
    """
    call = plan.chains[0].instructions[number].instr_args
    if isinstance(call, schema.KernelCall):
        return _kernel_outputs(plan, call)
    if isinstance(call, schema.DelegateCall):
        first_result = len(call.args) - delegate_results[number]
        return list(call.args[first_result:])
    if isinstance(call, schema.MoveCall):
        return [call.move_to]
    return []


def _kernel_outputs(plan: schema.ExecutionPlan, call: schema.KernelCall) -> list[int]:
    if plan.operators[call.op_index].name == "executorch_prim::et_copy_index":
        return [call.args[0]]
    output = call.args[-1]
    value = plan.values[output].val if output >= 0 else None
    if isinstance(value, LISTS):
        return list(value.items)
    return [output]


def count_delegate_results(
    plan: schema.ExecutionPlan, instructions: Sequence[schema.Instruction]
) -> dict[int, int]:
    """Count the results of each delegate call, keyed by the index of its instruction.

    A plan doesn't say which arguments are results: they are the trailing arguments that nothing has
    written before.
    """
    calls = [instruction.instr_args for instruction in instructions]
    written = {*plan.inputs}
    for index, value in enumerate(plan.values):
        tensor = value.val
        has_no_data = isinstance(tensor, schema.Tensor) and tensor.data_buffer_idx == 0
        if not has_no_data or is_external(tensor):
            written.add(index)
    for call in calls:
        if not isinstance(call, schema.KernelCall):
            continue
        # These are the method's buffers, which it writes last but reads earlier.
        if plan.operators[call.op_index].name == "aten::copy_":
            written.add(call.args[0])
    counts = {}
    for number, call in enumerate(calls):
        if isinstance(call, schema.DelegateCall):
            results = takewhile(lambda index: index not in written, reversed(call.args))
            counts[number] = len(list(results))
            written.update(call.args)
        elif isinstance(call, schema.KernelCall):
            written.update(used_values(plan, call))
        elif isinstance(call, schema.MoveCall):
            written.update((call.move_from, call.move_to))
    return counts
