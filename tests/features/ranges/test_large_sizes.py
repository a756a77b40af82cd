"""Sizes that are too large for a package are named, along with a workable bound."""

import re

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch.export import Dim, export

from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.features.ranges.large_sizes import explain_large_sizes
from pipeline.store.errors import PipelineError


class Net(torch.nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.linear, self.compute = torch.nn.Linear(8, 8), compute

    def forward(self, x):
        return self.compute(self.linear(x))


def write(compute, most, *partitioners):
    """Lower, emit and write a module exported for batches of at most `most`."""
    sizes = ({0: Dim("n", max=most)},)
    with torch.no_grad():
        module = Net(compute).requires_grad_(False)
        program = export(module, (torch.ones(4, 8),), dynamic_shapes=sizes)
    with explain_large_sizes({"run": program}):
        return emit(lower({"run": program}, {"run": partitioners})).buffer


@pytest.mark.parametrize(
    ("compute", "most", "partitioners", "message"),
    [
        (torch.relu, 2**31, [], r"run: x.shape\[0\] may be larger than 2147483647, .*"),
        (torch.relu, 2**31, [XnnpackPartitioner], r"run: x.shape\[0\] may be larger.*"),
        # refused by XNNPACK's serializer
        (torch.relu, 2**40, [XnnpackPartitioner], r"run: x.shape\[0\] may be larger.*"),
        (
            lambda x: torch.cat([x, x, x[:1]]),
            2**31 - 1,
            [],
            r"run: x.shape\[0\] can make aten.cat.default return a size over 2147483647.*",
        ),
        (torch.flatten, 2**28, [], r"run: x.shape\[0\] can make aten.flatten.* return .*"),
    ],
)
def test_a_size_that_is_too_large_is_named_with_the_bound(compute, most, partitioners, message):
    with pytest.raises(PipelineError) as caught:
        write(compute, most, *(each() for each in partitioners))
    (bound,) = re.findall(r"set `max=(\d+)` or less of its torch.export.Dim$", str(caught.value))
    assert re.fullmatch(message, str(caught.value)), str(caught.value)
    assert write(compute, int(bound), *(each() for each in partitioners))


def test_other_errors_stay_as_they_are():
    with pytest.raises(TypeError, match="no size"), explain_large_sizes({}):
        raise TypeError("no size")
