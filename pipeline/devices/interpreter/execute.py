"""Runs the instructions of a loaded method, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from executorch.exir import schema

from pipeline.backends.delegate_runtime import DelegateError
from pipeline.devices.interpreter.load import Method, get_instructions
from pipeline.devices.interpreter.slots import RefusalError, Slot, ValueList
from pipeline.program.plan_values import written_values
from pipeline.store.errors import DeviceError
from pipeline.store.reasons import reason


def run(method: Method, inputs: Sequence[Any]) -> list[Any]:
    """Call a method once; return copies of its flat outputs. Raises DelegateError, which names the
    instruction that failed, or RefusalError, of an input."""
    for _ in steps(method, inputs):
        pass
    return [read_value(method, index) for index in method.plan.outputs]


def steps(method: Method, inputs: Sequence[Any]) -> Iterator[int]:
    """Call a method once, instruction by instruction; yield the number of each after it has run.
    Raises what `run` raises."""
    plan, values = method.plan, method.values
    for place, (index, given) in enumerate(zip(plan.inputs, inputs, strict=True)):
        _set_input(values, index, given, place)
    instructions = get_instructions(plan)
    counter = 0
    while counter < len(instructions):
        call = instructions[counter].instr_args
        following = counter + 1
        try:
            if isinstance(call, schema.KernelCall):
                _call_kernel(method, call)
            elif isinstance(call, schema.DelegateCall):
                _call_delegate(method, call, method.results[counter])
            elif isinstance(call, schema.MoveCall):
                values[call.move_to] = values[call.move_from]
            elif isinstance(call, schema.JumpFalseCall):
                condition = _argument(values, call.cond_value_index)
                if not (condition.all() if isinstance(condition, torch.Tensor) else condition):
                    following = call.destination_instruction
            elif isinstance(call, schema.FreeCall):
                slot = values[call.value_index]
                slot.memory, slot.offset = None, 0
        except DeviceError as error:
            what = f"instruction {counter}, {describe_instruction(plan, call)}: {error.reason}"
            raise DelegateError(what, error.debug_handle) from error
        yield counter
        counter = following


def result_indices(method: Method, number: int) -> list[int]:
    """Return the indices of the values that an instruction writes; a jump writes none."""
    return written_values(method.plan, number, method.results)


def read_value(method: Method, index: int) -> Any:
    """Return a copy of what a value holds now."""
    value = _argument(method.values, index)
    return value.clone() if isinstance(value, torch.Tensor) else value


def read_results(method: Method, number: int) -> list[Any]:
    """Return copies of the values that an instruction writes."""
    return [read_value(method, index) for index in result_indices(method, number)]


def _set_input(values: list[Any], index: int, given: Any, place: int) -> None:
    value = values[index]
    if isinstance(value, Slot):
        if not isinstance(given, torch.Tensor):
            raise RefusalError(f"input {place} must be a tensor")
        try:
            value.assign(given)
        except RefusalError as error:
            raise RefusalError(f"input {place} is {error}") from error
    elif isinstance(given, torch.Tensor):
        raise RefusalError(f"input {place} is a tensor, must be none")
    elif isinstance(value, (int, float)) and given != value:
        must = f"must be {value!r}, as the method was exported"
        raise RefusalError(f"input {place} is {given!r}, {must}")


def _call_delegate(method: Method, call: schema.DelegateCall, results: int) -> None:
    delegate, split = method.delegates[call.delegate_index], len(call.args) - results
    given = [read_value(method, index) for index in call.args[:split]]
    returned = list(delegate.runtime.execute(delegate.handle, given))
    if len(returned) != results:
        raise RefusalError(f"gives {len(returned)} values, must give {results}")
    for index, value in zip(call.args[split:], returned, strict=True):
        _store(method.values, index, value)


def _call_kernel(method: Method, call: schema.KernelCall) -> None:
    function = method.operators[call.op_index]
    if not isinstance(function, torch._ops.OpOverload):
        function(method.values, call.args)
        return
    arguments = function._schema.arguments
    given: dict[str, Any] = {}
    results: dict[int, Any] = {}
    for argument, index in zip(arguments, call.args, strict=False):
        if argument.is_out:
            given[argument.name] = results[index] = _fresh(method.values[index], method.values)
        else:
            given[argument.name] = _argument(method.values, index)
    try:
        returned = function(**given)
    except Exception as error:  # whatever an operator raises
        raise RefusalError(f"{type(error).__name__}: {reason(error)}") from error
    if not results:
        several = returned if isinstance(returned, (tuple, list)) else [returned]
        results = dict(zip(call.args[len(arguments) :], several, strict=False))
    for index, value in results.items():
        _store(method.values, index, value)


def _fresh(value: Any, values: Sequence[Any]) -> Any:
    """Make what an operator writes to instead of planned memory. Its result is laid out as the
    operator likes it, and then copied to where it belongs."""
    if isinstance(value, ValueList):
        return [_fresh(values[index], values) for index in value]
    return torch.empty(0, dtype=value.dtype)


def _argument(values: Sequence[Any], index: int) -> Any:
    value = values[index] if index >= 0 else None
    if isinstance(value, Slot):
        return value.tensor()
    if isinstance(value, ValueList):
        return [_argument(values, member) for member in value]
    return value


def _store(values: list[Any], index: int, given: Any) -> None:
    value = values[index]
    if isinstance(value, ValueList):
        for member, each in zip(value, given, strict=True):
            _store(values, member, each)
    elif isinstance(value, Slot):
        if not isinstance(given, torch.Tensor):
            raise RefusalError(f"gives {given!r}, must give a tensor")
        value.assign(given)
    else:
        values[index] = given


def describe_instruction(plan: schema.ExecutionPlan, call: Any) -> str:
    """Describe an instruction for people."""
    if isinstance(call, schema.KernelCall):
        operator = plan.operators[call.op_index]
        name = f"{operator.name}.{operator.overload}" if operator.overload else operator.name
        return f"{name} {list(call.args)}"
    if isinstance(call, schema.DelegateCall):
        number = call.delegate_index
        return f"delegate {number} ({plan.delegates[number].id}) {list(call.args)}"
    if isinstance(call, schema.MoveCall):
        return f"move {call.move_from} to {call.move_to}"
    if isinstance(call, schema.JumpFalseCall):
        return f"to {call.destination_instruction} unless {call.cond_value_index}"
    return f"free {call.value_index}" if isinstance(call, schema.FreeCall) else "unknown"
