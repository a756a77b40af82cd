"""What partitioners don't see: modules other than the named ones, and branches."""

import copy

import executorch.kernels.quantized  # noqa: F401  its out variants, which lowering asks for
import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.backend_details import ExportedProgram
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.lowered_backend_module import get_lowered_submodules
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import export

from pipeline.backends import PartitionerSpec
from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.compile.module_filter import (
    FilteredPartitioner,
    make_filtered_partitioners,
)
from pipeline.compile.shared_constants import separate_constants
from pipeline.devices.bindings import Package
from pipeline.devices.interface import PackageFiles
from pipeline.features.module_selection.split_partition import split_partition
from pipeline.features.quantization.quantize import quantize
from pipeline.features.xnnpack.entries import XnnpackOptions, XnnpackQuantize
from pipeline.program.inputs import InputSet
from pipeline.program.module_paths import outline_program
from pipeline.store.errors import PipelineError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.fc(x))


class Stack(nn.Module):
    """Blocks in sequence, with an addition between them that belongs to no block."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block(), Block()])
        self.head = Block()

    def forward(self, x):
        first = self.layers[0](x)
        second = self.layers[1](first)
        return self.head(self.layers[2](first + second))


class Twice(nn.Module):
    """One module called twice, with another one in between."""

    def __init__(self):
        super().__init__()
        self.shared, self.between = Block(), Block()

    def forward(self, x):
        return self.shared(self.between(self.shared(x)))


class Branches(nn.Module):
    """Linear layers in branches; the first one's weights are used outside as well."""

    def __init__(self, shared):
        super().__init__()
        self.outside, self.inside = Block(), Block()
        self.shared = shared

    def forward(self, x):
        y = self.outside(x)
        branch = self.outside if self.shared else self.inside
        return torch.cond(y.sum() > 0, lambda y: branch(y) + 1, lambda y: y - 1, (y,))


X = (torch.randn(3, 8, generator=torch.Generator().manual_seed(0)),)


def program_of(module):
    torch.manual_seed(0)
    made = module().eval().requires_grad_(False)
    return made, export(made, X)


def xnnpack(modules=None, own=None, **options):
    spec = PartitionerSpec(name="xnnpack", options=XnnpackOptions(**options), modules=own)
    return make_filtered_partitioners([spec], modules)


def lowered(program, partitioners):
    return lower({"run": program}, {"run": partitioners})


def delegated_modules(manager):
    """Return the innermost module of each delegated node that has one."""
    program = manager.exported_program("run")
    return {
        list(node.meta["nn_module_stack"].values())[-1][0]
        for _, delegate, _ in get_lowered_submodules(program.graph_module)
        for node in delegate.original_module.graph.nodes
        if node.op == "call_function" and node.meta.get("nn_module_stack")
    }


def check_runs(manager, module, tmp_path, tolerance=1e-5):
    pte = tmp_path / "run.pte"
    pte.write_bytes(emit(manager).buffer)
    for seed in range(4):
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed))
        (actual,) = Package(PackageFiles.of(pte)).run("run", (x,))
        torch.testing.assert_close(actual, module(x), atol=tolerance, rtol=tolerance)


def test_without_a_confine_nothing_changes():
    _, program = program_of(Stack)
    upstream = {"run": [XnnpackPartitioner()]}
    plain = to_edge_transform_and_lower({"run": program}, partitioner=upstream)
    assert emit(lowered(program, xnnpack())).buffer == plain.to_executorch().buffer


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (["head"], {"head", "head.fc"}),
        (["layers.1"], {"layers.1", "layers.1.fc"}),
        (["layers.0.fc"], {"layers.0.fc"}),
        (["layers.0", "layers.2"], {f"layers.{i}{tail}" for i in (0, 2) for tail in ("", ".fc")}),
    ],
)
def test_only_the_named_modules_are_delegated(modules, expected, tmp_path):
    module, program = program_of(Stack)
    manager = lowered(program, xnnpack(modules))
    assert delegated_modules(manager) == expected
    check_runs(manager, module, tmp_path)


def test_a_method_and_a_partitioner_confine_together(tmp_path):
    module, program = program_of(Stack)
    manager = lowered(program, xnnpack(["layers.0", "head"], own=["head.fc", "layers.1"]))
    assert delegated_modules(manager) == {"head.fc"}
    check_runs(manager, module, tmp_path)


def test_partitioners_can_be_confined_to_modules_of_their_own(tmp_path):
    module, program = program_of(Stack)
    specs = [
        PartitionerSpec(name="xnnpack", options=XnnpackOptions(per_op_mode=True), modules=["head"]),
        PartitionerSpec(name="xnnpack", options=XnnpackOptions(), modules=["layers.0"]),
    ]
    manager = lowered(program, make_filtered_partitioners(specs))
    assert delegated_modules(manager) == {"head", "head.fc", "layers.0", "layers.0.fc"}
    assert len(get_lowered_submodules(manager.exported_program("run").graph_module)) == 2
    check_runs(manager, module, tmp_path)


@pytest.mark.parametrize("modules", [["shared@*"], ["between"]])
def test_what_is_left_of_a_partition_does_not_depend_on_itself(modules, tmp_path):
    module, program = program_of(Twice)
    manager = lowered(program, xnnpack(modules))
    expected = {modules[0].removesuffix("@*")}
    assert {name.split(".")[0] for name in delegated_modules(manager)} == expected
    check_runs(manager, module, tmp_path)


@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_quantization_goes_with_its_module(dynamic, tmp_path):
    module, program = program_of(Stack)
    config = XnnpackQuantize(quantizer="xnnpack", dynamic=dynamic)
    inputs = [] if dynamic else [InputSet(X, {}, "calibration")]
    quantized = quantize(program, config, inputs)
    manager = lowered(quantized, xnnpack(["layers.1"]))
    graph = manager.exported_program("run").graph_module
    inside = [
        str(node.target)
        for _, delegate, _ in get_lowered_submodules(graph)
        for node in delegate.original_module.graph.nodes
    ]
    assert sum("linear" in name or "addmm" in name for name in inside) == 1
    assert any("dequantize_per_channel" in name for name in inside)
    assert any("choose_qparams" in name for name in inside) == dynamic
    check_runs(manager, module, tmp_path, 0.15)


def test_an_unknown_module_is_refused_with_those_that_are_there():
    _, program = program_of(Stack)
    words = r"run: no module 'layer\.1' in the program; did you mean 'layers\.1'\? known: head,"
    with pytest.raises(PipelineError, match=words):
        lowered(program, xnnpack(["layer.1"]))
    assert list(outline_program(program).calls)[:3] == ["head", "head.fc", "layers.0"]


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
def test_branches_are_left_to_portable_kernels(shared, tmp_path):
    """Upstream fails on both: no delegate takes a linear layer that was kept whole in a branch, and
    a delegate's weight may not be an operand of a branch."""
    module, program = program_of(lambda: Branches(shared))
    with pytest.raises(RuntimeError):
        to_edge_transform_and_lower(
            {"run": copy.deepcopy(program)}, partitioner={"run": [XnnpackPartitioner()]}
        )
    manager = lowered(program, xnnpack())
    assert delegated_modules(manager) == {"outside", "outside.fc"}
    check_runs(manager, module, tmp_path)


def test_separated_constants_are_the_same_program():
    module, program = program_of(lambda: Branches(True))
    apart = separate_constants(program, ["p_outside_fc_weight"])
    assert isinstance(apart, ExportedProgram)
    assert len(apart.graph_signature.input_specs) == len(program.graph_signature.input_specs) + 1
    torch.testing.assert_close(apart.module()(*X), module(*X))
    names = [spec.arg.name for spec in program.graph_signature.input_specs]
    assert "p_outside_fc_weight_of_branches" not in names


class Free(nn.Module):
    """An empty module to hold a graph."""


@st.composite
def graphs(draw):
    """Draw a graph of calls, tags without cyclic dependencies, and which tags are kept."""
    size = draw(st.integers(2, 12))
    graph = torch.fx.Graph()
    nodes = [graph.placeholder("x")]
    for _ in range(size):
        inputs = draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=3, unique=True))
        nodes.append(graph.call_function(torch.add, tuple(inputs)))
    graph.output(nodes[-1])
    calls = nodes[1:]
    # Consecutive runs of a topological order can't form a dependency cycle.
    bounds = sorted(draw(st.sets(st.integers(1, size), max_size=3)) | {size})
    start = 0
    for number, end in enumerate(bounds):
        for node in calls[start:end]:
            node.meta["delegation_tag"] = f"tag{number}"
        start = end
    kept = draw(st.sets(st.sampled_from(calls), min_size=1))
    return torch.fx.GraphModule(Free(), graph), calls, kept


@settings(max_examples=100)
@given(graphs())
def test_parts_never_depend_on_each_other_in_a_circle(example):
    module, calls, kept = example
    cut = {}
    for node in calls:
        tag = node.meta["delegation_tag"]
        if any(n not in kept for n in calls if n.meta.get("delegation_tag", tag) == tag):
            cut.setdefault(tag, []).append(node)
    for nodes in cut.values():
        for node in nodes:
            del node.meta["delegation_tag"]
    for tag, nodes in cut.items():
        own = [node for node in nodes if node in kept]
        for number, part in enumerate(split_partition(module, own) if own else []):
            for node in part:
                node.meta["delegation_tag"] = f"{tag}_{number}"
    assert all("delegation_tag" in node.meta for node in kept)
    unit = {node: node.meta.get("delegation_tag", node) for node in module.graph.nodes}
    needs = {}
    for node in module.graph.nodes:
        needs.setdefault(unit[node], set()).update(
            unit[i] for i in node.all_input_nodes if unit[i] != unit[node]
        )
    while needs:
        ready = [each for each, before in needs.items() if not before & needs.keys()]
        assert ready, "a circle"
        for each in ready:
            del needs[each]


def test_partitions_that_depend_on_each_other_in_a_circle_are_refused():
    graph = torch.fx.Graph()
    nodes = [graph.placeholder("x")]
    for tag in ("a", "b", "a", None):
        nodes.append(graph.call_function(torch.sin, (nodes[-1],)))
        if tag is not None:
            nodes[-1].meta["delegation_tag"] = tag
    graph.output(nodes[-1])
    with pytest.raises(PipelineError, match="depend on each other in a cycle"):
        split_partition(torch.fx.GraphModule(nn.Module(), graph), nodes[-1:])


def test_a_confined_partitioner_tells_its_backend():
    (made,) = xnnpack(["head"])
    assert isinstance(made, FilteredPartitioner)
    assert made.delegation_spec.backend_id == "XnnpackBackend"


def test_all_that_executorch_asks_of_a_partitioner_is_asked_of_the_one_within():
    """If a release calls more methods, the base class's defaults would answer them here."""
    asked = {name for name, value in vars(Partitioner).items() if callable(value)}
    asked -= {"__call__"}  # calls `partition`
    assert {name for name in asked if not name.startswith("__")} - {"partition"}
    assert {name for name in asked if name not in vars(FilteredPartitioner)} == set()
