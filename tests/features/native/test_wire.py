"""Values survive the round trip to a runner."""

import io

import pytest
import torch

from pipeline.features.native.wire import AnswerReader, put_value


def sent_and_read(value, order=None):
    stream = io.BytesIO(put_value(value, order))
    result = AnswerReader(stream.read).value()
    assert not stream.read()
    return result


@pytest.mark.parametrize("value", [None, True, False, -3, 2**40, 0.1, float("inf")])
def test_a_number_survives(value):
    result = sent_and_read(value)
    assert result == value and type(result) is type(value)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3, 4)])
def test_a_tensor_survives(dtype, shape):
    value = torch.randint(0, 2, shape).to(dtype)
    result = sent_and_read(value)
    assert result.dtype == dtype and torch.equal(result, value)


def test_a_tensor_lies_in_the_order_that_its_method_reads():
    value = torch.arange(24.0).reshape(2, 3, 4)
    channels_last = put_value(value, (0, 2, 1))
    content = torch.frombuffer(bytearray(channels_last[-96:]), dtype=torch.float32)
    assert torch.equal(content, value.permute(0, 2, 1).reshape(-1))
    assert torch.equal(sent_and_read(value, (0, 2, 1)), value)
    assert torch.equal(sent_and_read(value.transpose(0, 1).contiguous().transpose(0, 1)), value)


def test_what_no_runner_takes_is_refused():
    with pytest.raises(ValueError, match="a str can't be sent"):
        put_value("text", None)
