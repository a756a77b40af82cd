"""Submodules by name: what a program records about them, in memory and in an archive, exported
strictly or not; every mistake in naming them; and what is delegated."""

import json
import zipfile

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge
from executorch.exir.lowered_backend_module import get_lowered_submodules
from torch import nn
from torch.export import export
from torch.export.pt2_archive._package import package_pt2

from pipeline import to_backend, to_backend_multiple
from pipeline.features.module_selection.names import check_names, stands_in
from pipeline.features.quantization.quantize import quantize
from pipeline.features.xnnpack.entries import XnnpackQuantize
from pipeline.program.archive_facts import describe_archive
from pipeline.program.module_paths import (
    Outline,
    innermost_module,
    outline_archive,
    outline_program,
)
from pipeline.store.errors import PipelineError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x):
        return self.fc(x) * self.scale + self.offset


class Model(nn.Module):
    """A block under two names, one that is called twice, a container, and a constant."""

    def __init__(self):
        super().__init__()
        self.first, self.twice = Block(), Block()
        self.alias = self.first
        self.layers = nn.ModuleList([Block(), Block()])
        self.act = nn.ReLU()
        self.table = torch.ones(4)

    def forward(self, x):
        y = self.act(self.alias(self.first(x)))
        y = self.act(self.twice(torch.tanh(self.twice(y))))
        return self.layers[1](self.layers[0](y)) + self.table


X = (torch.randn(2, 4, generator=torch.Generator().manual_seed(0)),)


def program(strict=False):
    torch.manual_seed(0)
    return export(Model().eval().requires_grad_(False), X, strict=strict)


@pytest.fixture(scope="module", params=[False, True], ids=["non-strict", "strict"])
def exported(request):
    return program(request.param)


@pytest.fixture(scope="module", params=["ATen", "edge", "quantized", "archive", "facts"])
def outline(request, exported, tmp_path_factory):
    if request.param == "ATen":
        return outline_program(exported)
    if request.param == "edge":
        return outline_program(to_edge(exported).exported_program())
    if request.param == "quantized":
        dynamic = XnnpackQuantize(quantizer="xnnpack", dynamic=True)
        return outline_program(quantize(exported, dynamic, []))
    path = tmp_path_factory.mktemp("archives") / "model.pt2"
    package_pt2(path, exported_programs={"run": exported})
    if request.param == "facts":
        return Outline(**json.loads(json.dumps(_facts(path))))
    with zipfile.ZipFile(path) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("models/run.json"))
        return outline_archive(json.loads(archive.read(name)), {})


def _facts(path):
    (program,) = describe_archive(path).programs
    return program.parts["outline"]


def test_every_call_is_seen(outline):
    assert outline.calls["twice"] == outline.calls["twice.fc"] == outline.calls["act"] == [0, 1]
    assert outline.calls["layers.0"] == outline.calls["layers.1.fc"] == [0]
    # Strict export may know a module only by the first of its names.
    ways = ([0], [0]), ([0, 1], None)
    assert (outline.calls["first"], outline.calls.get("alias")) in ways
    assert "layers" not in outline.calls and {"layers", "layers.0.fc"} <= set(outline.modules)


def told(names, outline):
    return [f"{what}; {hint}" for what, hint in check_names(names, outline)]


def test_right_names_have_no_mistakes(outline):
    assert not told(["first@0"], outline)
    assert not told(["twice@1", "act@*", "first@*"], outline)
    assert not told(["layers", "layers.1.fc"], outline)


def test_all_mistakes_are_told(outline):
    names = ["layers.2", "twice", "twice@2", "layers@0", "act@x", "layer"]
    assert told(names, outline) == [
        told_of("layers.2", outline),
        "module 'twice' is called 2 times, but a bare name means one call; name 'twice@0' or "
        "'twice@1', or 'twice@*' for all",
        "module 'twice' has no call '@2'; known: 'twice@0', 'twice@1'",
        "'layers@0': module 'layers' is not called itself; write 'layers'",
        "module 'act' has no call '@x'; known: 'act@0', 'act@1'",
        told_of("layer", outline),
    ]


def told_of(name, outline):
    (line,) = told([name], outline)
    assert line.startswith(f"no module '{name}' in the program; did you mean 'layers")
    return line


def test_what_is_no_module_is_called_what_it_is(exported, tmp_path):
    path = tmp_path / "model.pt2"
    package_pt2(path, exported_programs={"run": exported})
    for outline in (outline_program(exported), Outline(**_facts(path))):
        names = ["layers.0.fc.weight", "twice.scale", "layers.1.offset"]
        assert told(names, outline) == [
            "'layers.0.fc.weight' is a parameter, not a module; its module is 'layers.0.fc'",
            "'twice.scale' is a parameter, not a module; its module is 'twice'",
            "'layers.1.offset' is a buffer, not a module; its module is 'layers.1'",
        ]
        (line,) = told(["twice.unused"], outline)
        assert line.startswith("the program computes nothing in module 'twice.unused'; ")


def test_a_constant_is_no_module():
    outline = outline_program(program())
    (name,) = (n for n, kind in outline.tensors.items() if kind == "constant")
    (line,) = told([name], outline)
    assert line == f"'{name}' is a constant, not a module; it belongs to the whole program"


def test_one_module_under_two_names_is_told(exported, tmp_path):
    path = tmp_path / "model.pt2"
    package_pt2(path, exported_programs={"run": exported})
    for outline in (outline_program(exported), Outline(**_facts(path))):
        if "alias" in outline.calls:
            assert told(["alias"], outline) == [
                "module 'alias' shares all of its weights with 'first', which is also called; "
                "name both, or 'alias@0' for this call alone"
            ]
            assert not told(["alias", "first"], outline) and not told(["alias@0"], outline)
        else:
            words = "the program computes nothing in module 'alias'; it is called as 'first'"
            assert told(["alias"], outline) == [words]
            assert told(["first"], outline)[0].startswith("module 'first' is called 2 times")
        assert ["alias.fc", "first.fc"] in [list(names) for names in outline.same]


# What is then delegated


def delegated(lowered):
    """Return the key and path of the innermost module of each delegated node, by delegate."""
    return [
        {
            list(node.meta["nn_module_stack"])[1].rpartition("__")[2]
            for node in delegate.original_module.graph.nodes
            if node.op == "call_function" and len(node.meta.get("nn_module_stack", ())) > 1
        }
        for _, delegate, _ in get_lowered_submodules(lowered.graph_module)
    ]


@pytest.fixture(scope="module")
def edge():
    return to_edge(program()).exported_program()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["twice@0"], {"twice"}),
        (["twice@1"], {"twice@1"}),
        (["twice@*"], {"twice", "twice@1"}),
        (["layers"], {"layers.0", "layers.1"}),
        (["layers.1.fc", "first@0"], {"layers.1", "first"}),
        (["layers", "!layers.0"], {"layers.1"}),
    ],
)
def test_only_the_calls_that_are_named_are_delegated(edge, names, expected):
    lowered = to_backend(edge, XnnpackPartitioner(), modules_to_lower=names)
    assert set().union(*delegated(lowered)) == expected
    expected_output = edge.module()(*X)
    torch.testing.assert_close(lowered.module()(*X), expected_output)


def test_names_that_only_leave_out_mean_all_else(edge):
    calls = [node for node in edge.graph.nodes if node.op == "call_function"]

    def list_modules(*names):
        return {innermost_module(node) for node in calls if stands_in(node, names)}

    everything = {innermost_module(node) for node in calls}
    named = list_modules("layers", "twice@*")
    assert named and list_modules("!layers", "!twice@*") == everything - named
    assert list_modules("!twice@0") == everything  # its other call remains


def test_by_method_and_for_all_methods(edge):
    programs = {"a": edge, "b": edge}
    every = to_backend_multiple(programs, XnnpackPartitioner(), modules_to_lower=["layers"])
    assert all(set().union(*delegated(p)) == {"layers.0", "layers.1"} for p in every.values())
    one = to_backend_multiple(programs, XnnpackPartitioner(), modules_to_lower={"b": ["twice@1"]})
    assert len(set().union(*delegated(one["a"]))) > 3
    assert set().union(*delegated(one["b"])) == {"twice@1"}


def test_mistakes_of_all_methods_are_told_together(edge):
    programs = {"a": edge, "b": edge}
    wrong = {"a": ["twice", "nothing"], "b": ["layers.0.offset"]}
    with pytest.raises(PipelineError) as told:
        to_backend_multiple(programs, XnnpackPartitioner(), modules_to_lower=wrong)
    lines = str(told.value).splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "a: module 'twice' is called 2 times, but a bare name means one call",
        "a: no module 'nothing' in the program",
        "b: 'layers.0.offset' is a buffer, not a module",
    ]


@pytest.mark.parametrize("wrong", ["layers", [1], 3, {"a": "layers"}])
def test_modules_to_lower_must_be_names(edge, wrong):
    with pytest.raises(TypeError, match="modules_to_lower"):
        to_backend_multiple({"a": edge}, XnnpackPartitioner(), modules_to_lower=wrong)


def test_modules_for_a_method_that_is_not_there(edge):
    with pytest.raises(KeyError, match="modules_to_lower: no method b; known: a"):
        to_backend_multiple({"a": edge}, XnnpackPartitioner(), modules_to_lower={"b": ["layers"]})


def test_no_names_at_all_are_refused(edge):
    with pytest.raises(PipelineError, match="modules_to_lower names nothing"):
        to_backend(edge, XnnpackPartitioner(), modules_to_lower=[])
