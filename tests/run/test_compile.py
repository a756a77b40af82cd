"""A unit is compiled from its request alone, and the facts from listeners are merged."""

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from torch.export import export

from pipeline.compile.preprocess.spill import spilling
from pipeline.run.build.compile import CompileRequest, compile_unit
from pipeline.run.build.listening import CompileListener
from pipeline.run.stages import Stages
from pipeline.store.store import Store


class Names(CompileListener):
    """A fact about each method: its number of nodes before it is emitted."""

    def __init__(self, field):
        self.field = field
        self.calls = []

    def add_lowered(self, programs):
        self.calls.append("lowered")
        self.nodes = {name: len(program.graph.nodes) for name, program in programs.items()}

    def find_facts(self, emitted):
        self.calls.append("emitted")
        assert emitted.methods == set(self.nodes)
        return {name: {self.field: number} for name, number in self.nodes.items()}


def program_of(operator):
    class Net(torch.nn.Module):
        def forward(self, x):
            return operator(x)

    return export(Net(), (torch.ones(2, 3),))


def make_programs():
    return {"exp": program_of(torch.exp), "sin": program_of(torch.sin)}


def make_request():
    return CompileRequest(
        programs=make_programs(),
        partitioners={"exp": [], "sin": []},
        edge=EdgeCompileConfig(),
        passes={},
        passes_after={},
        delegates_beside=False,
        etrecord=False,
        shares_state=False,
        make_emission=lambda lowered: ExecutorchBackendConfig(),
    )


def test_a_unit_is_compiled_as_the_joint_call_does_without_a_config(tmp_path):
    store, stages = Store(tmp_path), Stages()
    listeners = [Names("nodes"), Names("further")]
    manager, linkable, facts = compile_unit(make_request(), store, None, stages, listeners)
    joint = to_edge_transform_and_lower(make_programs()).to_executorch()
    assert bytes(manager.buffer) == bytes(joint.buffer)
    assert all(store.intact([blob.digest]) for blob in linkable.blobs())
    assert facts == {name: {"nodes": 3, "further": 3} for name in ("exp", "sin")}
    assert [listener.calls for listener in listeners] == [["lowered", "emitted"]] * 2
    assert [name for name, _, _ in stages.spans] == ["lower", "describe", "emit", "store"]


def test_a_unit_of_stand_ins_is_serialized_only_when_it_is_linked(tmp_path):
    store = Store(tmp_path)
    with spilling():
        manager, linkable, _ = compile_unit(make_request(), store, store, Stages())
    assert manager._pte_data is None
    assert linkable == compile_unit(make_request(), store, None, Stages())[1]
