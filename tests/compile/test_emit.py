"""Emission options take effect, and units of several methods link to the joint call's bytes."""

import copy
import json

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from torch import nn
from torch.export import export

from pipeline.compile.edge_config import make_edge_config
from pipeline.compile.emission import collect_named_data
from pipeline.compile.emit import emit, make_emission_config, tag_weights
from pipeline.compile.lower import lower
from pipeline.compile.objects import make_object, parse_object
from pipeline.config.emission import EmitConfig, LayoutConfig, MemoryPlanning
from pipeline.devices.bindings import Package
from pipeline.devices.interface import PackageFiles
from pipeline.store.errors import PipelineError
from pipeline.store.store import Store
from tests.support.linking import link
from tests.support.programs import Shared, Stateful, shared_programs


class Deep(nn.Module):
    """Intermediate values with disjoint lifetimes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        for _ in range(3):
            x = torch.sin(self.second(torch.cos(self.first(x))))
        return x


def deep():
    return {"run": export(Deep().eval().requires_grad_(False), (torch.ones(4, 8),))}


def emitted(programs, **settings):
    return emit(lower(programs, dict.fromkeys(programs, ())), EmitConfig(**settings))


def planned(manager):
    (plan,) = manager.executorch_program.execution_plan
    return sum(plan.non_const_buffer_sizes)


def allocation(manager, side):
    (plan,) = manager.executorch_program.execution_plan
    return plan.values[getattr(plan, f"{side}s")[0]].val.allocation_info


def test_naive_planning_takes_more_memory_than_greedy():
    greedy, naive = (
        planned(emitted(deep(), memory_planning=MemoryPlanning(algorithm=name)))
        for name in ("greedy", "naive")
    )
    assert naive > 2 * greedy


@pytest.mark.parametrize("side", ["input", "output"])
def test_memory_of_inputs_and_outputs_can_be_the_callers(side, tmp_path):
    options = {f"alloc_graph_{side}": False}
    manager = emitted(deep(), memory_planning=MemoryPlanning(**options))
    assert allocation(manager, side) is None
    assert allocation(emitted(deep()), side) is not None
    pte = tmp_path / "run.pte"
    pte.write_bytes(manager.buffer)
    if side == "input":
        (actual,) = Package(PackageFiles.of(pte)).run("run", (torch.ones(4, 8),))
        torch.testing.assert_close(actual, Deep()(torch.ones(4, 8)), atol=1e-5, rtol=1e-5)


def test_alignment_of_planned_memory():
    (plan,) = emitted(
        deep(), memory_planning=MemoryPlanning(alignment=256)
    ).executorch_program.execution_plan
    offsets = [
        value.val.allocation_info.memory_offset_low
        for value in plan.values
        if getattr(value.val, "allocation_info", None) is not None
    ]
    assert len(offsets) > 2 and all(offset % 256 == 0 for offset in offsets)


def test_constants_go_to_the_files_whose_patterns_their_names_match(tmp_path):
    manager = emitted(deep(), external_files={"first": ["first.*"], "rest": ["*.weight"]})
    files = {name.removesuffix(".ptd"): bytes(c) for name, c in manager._tensor_data.items()}
    assert set(files) == {"first", "rest"}
    assert b"first.weight" in files["first"] and b"first.bias" in files["first"]
    assert b"second.weight" in files["rest"] and b"second.bias" not in files["rest"]
    pte = tmp_path / "run.pte"
    pte.write_bytes(manager.buffer)
    ptds = []
    for name, data in files.items():
        ptds.append(tmp_path / f"{name}.ptd")
        ptds[-1].write_bytes(data)
    (actual,) = Package(PackageFiles.of(pte, ptds)).run("run", (torch.ones(4, 8),))
    torch.testing.assert_close(actual, Deep()(torch.ones(4, 8)), atol=1e-5, rtol=1e-5)


def test_stack_traces_are_stored_on_demand():
    def traced(**settings):
        (plan,) = emitted(deep(), **settings).executorch_program.execution_plan
        return plan.chains[0].stacktrace

    assert traced(emit_stacktrace=True) and not traced()


def units(programs, partitioners, groups, settings, store):
    """Return the objects of methods, compiled in these groups."""
    for group in groups:
        own = {name: programs[name] for name in group}
        lowered = lower(own, {name: partitioners[name] for name in group})
        named = {name: collect_named_data(lowered.exported_program(name)) for name in group}
        made = make_object(emit(lowered, settings), store, named if len(group) > 1 else {})
        yield parse_object(json.loads(json.dumps(made.to_json())))


def joint(programs, partitioners, settings):
    return emitted_jointly(lowered_jointly(programs, partitioners), settings)


def lowered_jointly(programs, partitioners):
    return to_edge_transform_and_lower(programs, partitioner=partitioners)


def emitted_jointly(edge, settings):
    own = {name: edge.exported_program(name) for name in edge.methods}
    return edge.to_executorch(make_emission_config(settings, (), own))


class Head(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x)


def test_a_unit_of_several_methods_links_in_among_others(tmp_path):
    """Its methods come before and after a single one, and each adds weights."""
    programs = {
        name: export(Head(seed).eval().requires_grad_(False), (torch.ones(2, 8),))
        for seed, name in enumerate(("c", "a", "b", "d"))
    }
    partitioners = {name: [XnnpackPartitioner()] for name in programs}
    store, settings = Store(tmp_path / "store"), EmitConfig()
    objects = list(units(programs, partitioners, [("c", "b"), ("a",), ("d",)], settings, store))
    linked = link(objects, {}, store, list(programs))
    assert store.read(linked.pte.digest) == joint(programs, partitioners, settings).buffer


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory):
    """Return the objects of programs, and their joint call before it has a layout."""
    programs, store = shared_programs(), Store(tmp_path_factory.mktemp("laid_out"))
    partitioners = {"step": [], "plain": [XnnpackPartitioner()], "branch": []}
    objects = list(units(programs, partitioners, [(n,) for n in programs], EmitConfig(), store))
    return store, objects, lowered_jointly(shared_programs(), partitioners)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        {"segment_alignment": 4096},
        {"constant_tensor_alignment": 64, "delegate_alignment": 64},
        {"extract_delegate_segments": False},
    ],
    ids=lambda layout: next(iter(layout)),
)
def test_the_layout_is_that_of_the_joint_call(laid_out, layout):
    store, objects, edge = laid_out
    settings = EmitConfig(layout=LayoutConfig(**layout))
    linked = link(objects, {}, store, list(edge.methods), dict(settings.layout))
    expected = emitted_jointly(copy.deepcopy(edge), settings).buffer
    assert store.read(linked.pte.digest) == expected
    assert expected != emitted_jointly(copy.deepcopy(edge), EmitConfig()).buffer


class Reads(Stateful):
    def forward(self, x):
        return x + self.shared.cache


def stateful():
    shared = Shared().eval().requires_grad_(False)
    x = (torch.ones(3, 8),)
    return {"prefill": export(Stateful(shared), x), "decode": export(Stateful(shared), x)}


def test_shared_buffers_have_one_place_in_all_methods(tmp_path):
    settings = EmitConfig(memory_planning=MemoryPlanning(share_mutable_buffers=True))
    partitioners = {"prefill": [], "decode": []}
    store = Store(tmp_path / "store")
    objects = list(units(stateful(), partitioners, [("prefill", "decode")], settings, store))
    linked = link(objects, {}, store, ["prefill", "decode"])
    expected = joint(stateful(), partitioners, settings)
    assert store.read(linked.pte.digest) == expected.buffer
    plans = expected.executorch_program.execution_plan
    assert [len(plan.non_const_buffer_sizes) for plan in plans] == [3, 3]
    assert plans[0].non_const_buffer_sizes[2] == plans[1].non_const_buffer_sizes[2] > 0


def test_an_unknown_operator_is_named():
    from pipeline.config.edge import EdgeConfig

    with pytest.raises(PipelineError, match=r"no operator 'aten\.nonsense\.default'"):
        make_edge_config(EdgeConfig(preserve_ops=["aten.nonsense.default"]))


def test_preserved_operators_stay_whole():
    from pipeline.config.edge import EdgeConfig

    names = {}
    for keep in (None, ["aten.linear.default"]):
        lowered = lower(deep(), {"run": ()}, edge=make_edge_config(EdgeConfig(preserve_ops=keep)))
        nodes = lowered.exported_program("run").graph.nodes
        names[bool(keep)] = {str(node.target) for node in nodes if node.op == "call_function"}
    assert any("linear" in name for name in names[True])
    assert not any("linear" in name for name in names[False])


class Words(nn.Module):
    """A portable embedding in front of layers that XNNPACK takes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.first, self.head = nn.Embedding(4, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.head(torch.relu(self.first(self.table(x)))) * 2.5


class HeadOfWords(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.words = words

    def forward(self, x):
        return self.words.head(x)


def words():
    made = Words().eval().requires_grad_(False)
    head = export(HeadOfWords(made), (torch.ones(2, 8),))
    return {"run": export(made, (torch.tensor([1, 2]),)), "head": head}


@pytest.mark.parametrize(
    ("written", "choose"),
    [
        ({"a": ["head", "words.*"], "b": ["*"]}, lambda name: "a" if "head" in name else "b"),
        pytest.param(True, lambda name: "weights", marks=pytest.mark.slow),
        pytest.param(
            ["*.weight"],
            lambda n: "weights" if n.endswith("weight") else None,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_weights_go_to_files_as_in_a_joint_call_with_these_tags(written, choose, tmp_path):
    settings = EmitConfig(external_weights=written)
    store, objects, programs = Store(tmp_path), [], words()
    tag_weights(programs, settings)
    for name, program in programs.items():
        edge = lower({name: program}, {name: [XnnpackPartitioner()]})
        objects.append(make_object(emit(edge, settings), store))
    linked = link(objects, {}, store, list(programs))

    own = words()
    for program in own.values():
        for node in program.graph.find_nodes(op="placeholder"):
            target = program.graph_signature.inputs_to_parameters.get(node.name)
            if target and (tag := choose(target)):
                node.meta["custom"] = {"delegate_constant_tag": tag}
    joint = to_edge_transform_and_lower(
        own, partitioner={name: [XnnpackPartitioner()] for name in own}
    ).to_executorch(
        ExecutorchBackendConfig(
            external_constants=lambda node: node.meta.get("custom", {}).get("delegate_constant_tag")
        )
    )
    assert store.read(linked.pte.digest) == joint.buffer
    files = {name: store.read(blob.digest) for name, blob in linked.ptds.items()}
    assert files == {name: bytes(data) for name, data in joint._tensor_data.items()}
    assert sum(map(len, files.values())) > 4 * 8 * 8
    given = PackageFiles("m.pte", joint.buffer, tuple(files.values()))
    (actual,) = Package(given).run("run", (torch.tensor([1, 2]),))
    torch.testing.assert_close(actual, Words()(torch.tensor([1, 2])), atol=1e-5, rtol=1e-5)
