"""Values of a plan whose memory is overwritten before they are read."""

import pytest
from executorch.exir import schema

from pipeline.features.lost_results.lost_results import find_lost_results


@pytest.mark.parametrize("moves", [[(0, 0)], [(0, 1), (1, 0)]])
def test_values_that_are_moved_in_a_circle_are_followed_once(moves):
    values = [schema.EValue(schema.Int(number)) for number in range(2)]
    instructions = [schema.Instruction(schema.MoveCall(*move)) for move in moves]
    plan = schema.ExecutionPlan(
        name="run",
        container_meta_type=schema.ContainerMetadata("", ""),
        values=values,
        inputs=[],
        outputs=[0],
        chains=[schema.Chain([], [], instructions, None)],
        operators=[],
        delegates=[],
        non_const_buffer_sizes=[0],
    )
    assert find_lost_results(plan) == []
