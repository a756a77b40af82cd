"""Which instruction stems from which node."""

import json
from dataclasses import asdict
from functools import cache

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from pydantic import TypeAdapter

from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.features.instructions.emit_trace import record_emission
from pipeline.features.locating.interpreter.load import get_instructions
from pipeline.program.graphs import iter_nodes
from pipeline.store.compiled import Instructions
from pipeline.store.forms import fits
from tests.support.located import opened, plan_of
from tests.support.programs import shared_programs


@cache
def emitted(delegate):
    programs = shared_programs()
    partitioners = {name: [XnnpackPartitioner()] for name in programs if name == "plain"}
    manager = lower(programs, partitioners if delegate else {})
    with record_emission() as emission:
        made = emit(manager)
    return (
        programs,
        bytes(made.buffer),
        {n: emission.instructions(n, programs[n]) for n in programs},
    )


@cache
def names(delegate, method):
    programs, _, known = emitted(delegate)
    nodes = list(iter_nodes(programs[method]))
    return {index: nodes[place].name for index, place in known[method].node_places.items()}


def test_each_kernel_call_is_of_a_node():
    assert names(False, "plain") == {0: "linear", 1: "linear", 2: "softmax", 3: "add"}


def test_branches_are_part_of_it():
    programs, pte, known = emitted(False)
    plan = plan_of(opened(pte), "branch")
    kernels = {
        index: plan.operators[i.instr_args.op_index].name
        for index, i in enumerate(get_instructions(plan))
        if type(i.instr_args).__name__ == "KernelCall"
    }
    assert kernels.keys() == names(False, "branch").keys()
    (division,) = [index for index, name in kernels.items() if name == "aten::div"]
    assert names(False, "branch")[division] == "div"
    node = list(iter_nodes(programs["branch"]))[known["branch"].node_places[division]]
    assert node.graph is not programs["branch"].graph


def test_state_lies_in_values():
    known = emitted(False)[2]["step"]
    assert [name for name, _ in known.state] == ["shared.cache", "shared.count"]
    assert emitted(False)[2]["plain"].state == ()


def test_a_delegate_call_covers_nodes_and_gives_one():
    programs, _, known = emitted(True)
    nodes = list(iter_nodes(programs["plain"]))
    (call,) = known["plain"].delegates
    assert {nodes[place].name for place in call.places} == {"linear", "softmax", "add"}
    assert [nodes[place].name for place in call.outputs if place is not None] == ["add"]
    assert call.index == 0


@pytest.mark.parametrize("method", ["plain", "step", "branch"])
def test_it_survives_json(method):
    known = emitted(True)[2][method]
    record = json.loads(json.dumps(asdict(known)))
    assert fits(record, Instructions)
    assert TypeAdapter(Instructions).validate_python(record) == known


def test_recording_changes_no_byte():
    programs = shared_programs()
    partitioners = {"plain": [XnnpackPartitioner()]}
    assert bytes(emit(lower(programs, partitioners)).buffer) == emitted(True)[1]


def test_it_is_the_same_for_another_export():
    programs = shared_programs()
    with record_emission() as emission:
        emit(lower(programs, {}))
    for name, program in programs.items():
        assert emission.instructions(name, program) == emitted(False)[2][name]
    assert torch.is_grad_enabled()
