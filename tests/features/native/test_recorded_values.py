"""A runner's recorded values are read instruction by instruction, for each execution."""

import pytest
import torch
from executorch.devtools.etdump import schema_flatcc as etdump
from executorch.exir.scalar_type import ScalarType

from pipeline.features.native.recorded_values import read_executions
from pipeline.store.errors import PipelineError

CONTENT = torch.arange(8.0).numpy().tobytes()


def timed(name, instruction):
    event = etdump.ProfileEvent(name, 0, instruction, -1, None, None, 1, 2)
    return etdump.Event(event, None, None)


def recorded(instruction, sizes, strides, offset):
    tensor = etdump.Tensor(ScalarType.FLOAT, sizes, strides, offset)
    value = etdump.Value("Tensor", tensor, None, None, None, None, None, None)
    event = etdump.DebugEvent(None, 0, instruction, -1, None, value)
    return etdump.Event(None, None, event)


@pytest.fixture
def read(monkeypatch):
    """Return a function that reads these events of each run, with the values in `CONTENT`."""
    monkeypatch.setattr("pipeline.features.native.recorded_values.read_events", list)
    return lambda *runs: read_executions(runs, CONTENT)


def test_values_are_those_of_the_instruction_that_ends_after_them(read):
    execution = (
        timed("OPERATOR_CALL", 0),  # records nothing
        recorded(2, [2, 2], [1, 2], 0),
        recorded(2, [], [], 16),
        timed("native_call_add.out", 2),
        timed("DELEGATE_CALL", 2),
        timed("Method::execute", 0),
        recorded(0, [2], [1], 8),  # an output of the method
    )
    load = (timed("Method::init", 0),)
    [first, second] = read(load, execution, execution)
    assert [instruction.index for instruction in first] == [0, 2]
    assert [instruction.index for instruction in second] == [0, 2]
    assert not first[0].values
    matrix, scalar = first[1].values
    assert torch.equal(matrix, torch.tensor([[0.0, 2.0], [1.0, 3.0]]))
    assert torch.equal(scalar, torch.tensor(4.0))


def test_a_value_that_there_was_no_room_for_is_none(read):
    events = (recorded(0, [2], [1], 1 << 40), timed("DELEGATE_CALL", 0))
    [[instruction]] = read((*events, timed("Method::execute", 0)))
    assert instruction.values == [None]


def test_a_value_that_is_cut_is_refused(read):
    events = (recorded(0, [4], [1], 24), timed("OPERATOR_CALL", 0))
    with pytest.raises(PipelineError, match="a recorded value can't be read"):
        read(events)
