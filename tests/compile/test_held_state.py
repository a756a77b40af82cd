"""Shared state that a delegate keeps internally is refused."""

import pytest
import torch
from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch.export import export

from pipeline.compile.lower import lower
from pipeline.features.held_state.held_state import refuse_held_state
from pipeline.store.errors import PipelineError

pytestmark = pytest.mark.slow


class State(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 4))


class Write(State):
    def forward(self, x):
        self.cache.copy_(x)
        return x * 2


class Read(State):
    def forward(self, x):
        return self.cache + x


@pytest.fixture(scope="module")
def programs():
    x = torch.ones(2, 4)
    return {"write": export(Write(), (x,)), "read": export(Read(), (x,))}


def lowered(programs, partitioner):
    manager = lower(programs, {name: [partitioner()] for name in programs})
    return {name: manager.exported_program(name) for name in programs}


def test_state_that_is_left_to_the_program_is_shared(programs):
    refuse_held_state(lowered(programs, XnnpackPartitioner))


def test_state_inside_a_delegate_is_refused(programs):
    delegated = lowered(programs, VulkanPartitioner)
    with pytest.raises(PipelineError, match="read: VulkanBackend keeps cache inside its delegate"):
        refuse_held_state(delegated)
    refuse_held_state({"read": delegated["read"]})  # by itself, it is a constant
