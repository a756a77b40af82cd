"""Runs the instructions of a loaded method, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from executorch.exir import schema

from pipeline.backends.delegate_runtime import DelegateError
from pipeline.features.locating.interpreter.load import (
    InterpretedMethod,
    get_instructions,
)
from pipeline.features.locating.interpreter.slots import RefusalError, Slot, ValueList
from pipeline.program.plan_values import written_values
from pipeline.store.errors import DeviceError
from pipeline.store.reasons import reason


def run(method: InterpretedMethod, inputs: Sequence[Any]) -> list[Any]:
    """Call a method once; return copies of its flat outputs.

    Raises:
        DelegateError: an instruction failed; the message names it.
        RefusalError: an input doesn't fit.
    """
    for _ in steps(method, inputs):
        pass
    return [read_value(method, index) for index in method.plan.outputs]


def steps(method: InterpretedMethod, inputs: Sequence[Any]) -> Iterator[int]:
    """Call a method once, step by step; yield the number of each instruction after it has run.

    It raises the errors of `run`.
    """
    plan = method.plan
    for place, (index, value) in enumerate(zip(plan.inputs, inputs, strict=True)):
        _set_input(method.values, index, value, place)
    instructions = get_instructions(plan)
    counter = 0
    while counter < len(instructions):
        call = instructions[counter].instr_args
        try:
            next_counter = _run_instruction(method, counter, call)
        except DeviceError as error:
            message = f"instruction {counter}, {describe_instruction(plan, call)}: {error.reason}"
            raise DelegateError(message, error.debug_handle) from error
        yield counter
        counter = next_counter


def _run_instruction(method: InterpretedMethod, number: int, call: Any) -> int:
    """Run an instruction, and return the number of the next one."""
    values = method.values
    if isinstance(call, schema.KernelCall):
        _call_kernel(method, call)
    elif isinstance(call, schema.DelegateCall):
        _call_delegate(method, call, method.results[number])
    elif isinstance(call, schema.MoveCall):
        values[call.move_to] = values[call.move_from]
    elif isinstance(call, schema.JumpFalseCall):
        condition = _argument(values, call.cond_value_index)
        if isinstance(condition, torch.Tensor):
            condition = condition.all()
        if not condition:
            return call.destination_instruction
    elif isinstance(call, schema.FreeCall):
        slot = values[call.value_index]
        slot.memory, slot.offset = None, 0
    return number + 1


def result_indices(method: InterpretedMethod, number: int) -> list[int]:
    """Return the indices of the values that an instruction writes; a jump writes none."""
    return written_values(method.plan, number, method.results)


def read_value(method: InterpretedMethod, index: int) -> Any:
    """Return a copy of a value's current content."""
    value = _argument(method.values, index)
    return value.clone() if isinstance(value, torch.Tensor) else value


def read_results(method: InterpretedMethod, number: int) -> list[Any]:
    """Return copies of the values that an instruction writes."""
    return [read_value(method, index) for index in result_indices(method, number)]


def _set_input(values: list[Any], index: int, content: Any, place: int) -> None:
    value = values[index]
    if isinstance(value, Slot):
        if not isinstance(content, torch.Tensor):
            raise RefusalError(f"input {place} must be a tensor")
        try:
            value.assign(content)
        except RefusalError as error:
            raise RefusalError(f"input {place} is {error}") from error
    elif isinstance(content, torch.Tensor):
        raise RefusalError(f"input {place} is a tensor, must be none")
    elif isinstance(value, (int, float)) and content != value:
        must_be = f"must be {value!r}, as the method was exported"
        raise RefusalError(f"input {place} is {content!r}, {must_be}")


def _call_delegate(
    method: InterpretedMethod, call: schema.DelegateCall, results: int
) -> None:
    runtime, handle = method.delegates[call.delegate_index]
    split = len(call.args) - results
    inputs = [read_value(method, index) for index in call.args[:split]]
    outputs = list(runtime.execute(handle, inputs))
    if len(outputs) != results:
        raise RefusalError(f"returns {len(outputs)} values, must return {results}")
    for index, output in zip(call.args[split:], outputs, strict=True):
        store_value(method.values, index, output)


def _call_kernel(method: InterpretedMethod, call: schema.KernelCall) -> None:
    function = method.operators[call.op_index]
    if not isinstance(function, torch._ops.OpOverload):
        function(method.values, call.args)
        return
    parameters = function._schema.arguments
    arguments: dict[str, Any] = {}
    results: dict[int, Any] = {}
    for parameter, index in zip(parameters, call.args, strict=False):
        if parameter.is_out:
            results[index] = _empty(method.values[index], method.values)
            arguments[parameter.name] = results[index]
        else:
            arguments[parameter.name] = _argument(method.values, index)
    try:
        returned = function(**arguments)
    except Exception as error:  # an operator may raise anything
        raise RefusalError(f"{type(error).__name__}: {reason(error)}") from error
    if not results:  # a functional variant: its results follow its arguments
        outputs = returned if isinstance(returned, (tuple, list)) else [returned]
        results = dict(zip(call.args[len(parameters) :], outputs, strict=False))
    for index, result in results.items():
        store_value(method.values, index, result)


def _empty(value: Any, values: Sequence[Any]) -> Any:
    """Return an empty tensor for an operator to write to, in place of planned memory.

    The operator chooses the layout of its result, which is then copied to its place.
    """
    if isinstance(value, ValueList):
        return [_empty(values[index], values) for index in value]
    return torch.empty(0, dtype=value.dtype)


def _argument(values: Sequence[Any], index: int) -> Any:
    value = values[index] if index >= 0 else None
    if isinstance(value, Slot):
        return value.tensor()
    if isinstance(value, ValueList):
        return [_argument(values, member) for member in value]
    return value


def store_value(values: list[Any], index: int, content: Any) -> None:
    """Write a value; for a list, write its members.

    Raises:
        RefusalError: the content doesn't fit.
    """
    value = values[index]
    if isinstance(value, ValueList):
        for member_index, member_content in zip(value, content, strict=True):
            store_value(values, member_index, member_content)
    elif isinstance(value, Slot):
        if not isinstance(content, torch.Tensor):
            raise RefusalError(f"gives {content!r}, must give a tensor")
        value.assign(content)
    else:
        values[index] = content


def describe_instruction(plan: schema.ExecutionPlan, call: Any) -> str:
    """Describe an instruction in words."""
    if isinstance(call, schema.KernelCall):
        operator = plan.operators[call.op_index]
        name = (
            f"{operator.name}.{operator.overload}"
            if operator.overload
            else operator.name
        )
        return f"{name} {list(call.args)}"
    if isinstance(call, schema.DelegateCall):
        number = call.delegate_index
        return f"delegate {number} ({plan.delegates[number].id}) {list(call.args)}"
    if isinstance(call, schema.MoveCall):
        return f"move {call.move_from} to {call.move_to}"
    if isinstance(call, schema.JumpFalseCall):
        return f"to {call.destination_instruction} unless {call.cond_value_index}"
    if isinstance(call, schema.FreeCall):
        return f"free {call.value_index}"
    return "unknown"
