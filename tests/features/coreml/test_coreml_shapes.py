"""Enumerated shapes of Core ML: what configs may list, and what the model contains."""

import json

import pytest
import torch
from pydantic import ValidationError
from torch.export import Dim, export

import pipeline.backends  # noqa: F401 - it must be imported before the options of a family
from pipeline.features.coreml.options import CoreMLOptions
from pipeline.program.inputs import InputSet
from pipeline.store.errors import PipelineError
from pipeline.validate.interface import find_unlisted
from tests.support.lowerable import bench_for, check_fresh_checkout_hits, check_same_bytes

PAIR = {"x": [[1, 5, 10], [4, 6, 10]], "y": [[3, 11], [5, 11]]}


def options(shapes, **others):
    given = {"lower_full_graph": True, "minimum_deployment_target": "ios18", **others}
    return CoreMLOptions.model_validate({**given, "enumerated_shapes": shapes})


@pytest.mark.parametrize(
    ("shapes", "rule"),
    [
        ("some", "must be all, or a mapping"),
        ([], "must be all, or a mapping"),
        ({}, "must be all, or a mapping"),
        ({"x": [[1, 5, 10]]}, "must be a list of 2 to 128 shapes for x"),
        ({"x": [[n] for n in range(1, 130)]}, "must be a list of 2 to 128 shapes for x"),
        ({"x": "ab"}, "must be a list of 2 to 128 shapes for x"),
        ({"x": [[1, 5], [1, 5]]}, "must be different shapes"),
        (
            {"x": [[1], [2]], "y": [[1], [2], [3]]},
            "must have the same number of shapes for every input",
        ),
        ({"x": [[1], [0]]}, "must be whole numbers from 1 up in each shape for x"),
        ({"x": [[1], []]}, "must be whole numbers from 1 up in each shape for x"),
        ({"x": [[1], [True]]}, "must be whole numbers from 1 up in each shape for x"),
        ({"x": [[1], "5"]}, "must be whole numbers from 1 up in each shape for x"),
        ({3: [[1], [2]]}, "keys are strings"),
    ],
)
def test_a_mistake_is_one_error_that_says_the_rule(shapes, rule):
    with pytest.raises(ValidationError) as raised:
        options(shapes)
    (error,) = raised.value.errors()
    assert error["loc"] == ("enumerated_shapes",) and rule in error["msg"]


def test_what_they_need_is_said():
    with pytest.raises(ValidationError, match="needs lower_full_graph: true"):
        options("all", lower_full_graph=False)
    for target in (None, "ios17", "macos14", "tvos17", "watchos10"):
        with pytest.raises(ValidationError, match="needs minimum_deployment_target: ios18"):
            options(PAIR, minimum_deployment_target=target)
        options({"x": PAIR["x"]}, minimum_deployment_target=target)
    for target in ("ios18", "ios26", "macos15", "tvos18", "watchos11"):
        options(PAIR, minimum_deployment_target=target)


def test_inputs_that_share_no_shape_twice_may_repeat_one_of_their_own():
    """The lists are combined element by element, so one input may keep its size."""
    shapes = {"x": [[1, 5], [1, 5]], "y": [[1], [2]]}
    resolved = options(shapes).resolved()["enumerated_shapes"]
    assert json.loads(json.dumps(resolved)) == shapes


class Pair(torch.nn.Module):
    def forward(self, x, y):
        return x.sum() + torch.relu(y)


class Nested(torch.nn.Module):
    def forward(self, states):
        return torch.relu(states["key"][0])


class Tokens(torch.nn.Module):
    def forward(self, tokens):
        return torch.nn.functional.one_hot(tokens.to(torch.int64), 8).sum(1)


ROWS = Dim("rows", min=2, max=4)
BLOCKS = Dim("blocks", min=2, max=4)


def pair():
    dims = ({0: ROWS, 1: Dim("columns", min=5, max=6)}, {0: Dim("others", min=3, max=5)})
    inputs = torch.randn(4, 6, 10), torch.randn(5, 11)
    return export(Pair(), inputs, dynamic_shapes=dims)


def tokens(size, dtype=torch.int32):
    return export(Tokens(), (torch.zeros(1, 8, dtype=dtype),), dynamic_shapes=({1: size},))


def listed(program, shapes, several=True):
    """Return the shapes of each input in the compile spec for a program."""
    from pipeline.features.coreml.shapes import make_spec

    spec = make_spec(program, shapes, several)
    assert spec.key == "enumerated_shapes"
    return {name: own for _, (own, names) in json.loads(spec.value) for name in names}


@pytest.mark.slow
def test_listed_shapes_are_upstreams_spec():
    from executorch.backends.apple.coreml.compiler import CoreMLBackend

    from pipeline.features.coreml.shapes import make_spec

    program = pair()
    theirs = CoreMLBackend.generate_enumerated_shapes_compile_spec(program, PAIR)
    backwards = dict(reversed(PAIR.items()))
    assert make_spec(program, PAIR, True) == make_spec(program, backwards, True) == theirs


@pytest.mark.slow
def test_all_shapes_are_those_of_the_dynamic_sizes():
    assert listed(tokens(4 * BLOCKS), "all") == {"tokens": [[1, 8], [1, 12], [1, 16]]}
    both = ({0: ROWS, 1: ROWS}, {0: 2 * ROWS})
    tied = export(Pair(), (torch.randn(3, 3), torch.randn(6)), dynamic_shapes=both)
    assert listed(tied, "all") == {"x": [[2, 2], [3, 3], [4, 4]], "y": [[4], [6], [8]]}
    apart = listed(pair(), "all")
    together = list(zip(apart["x"], apart["y"], strict=True))
    assert len(together) == 3 * 2 * 3 and together[0] == ([2, 5, 10], [3, 11])
    assert together[-1] == ([4, 6, 10], [5, 11])


@pytest.mark.slow
def test_an_input_within_a_container_has_the_name_that_people_write():
    dims = ({"key": [{0: ROWS}]},)
    program = export(Nested(), ({"key": [torch.randn(3, 2)]},), dynamic_shapes=dims)
    name = "states['key'][0]"
    assert listed(program, {name: [[2, 2], [4, 2]]}) == {"states_key_0": [[2, 2], [4, 2]]}
    with pytest.raises(PipelineError, match=r"no input states_key_0; .*known: states"):
        listed(program, {"states_key_0": [[2, 2], [4, 2]]})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": [[1, 5, 10], [4, 7, 10]]}, "size 7 at dimension 1, must be at least 5 and at most"),
        ({"x": [[1, 5, 10], [4, 6, 11]]}, "size 11 at dimension 2, must be 10"),
        ({"x": [[1, 5, 10], [4, 6]]}, "rank 2, must be 3"),
        ({"z": [[1], [2]]}, "has no input z; known: x, y"),
    ],
)
def test_shapes_that_the_method_does_not_take_are_told(change, message):
    with pytest.raises(PipelineError, match=f"^coreml: enumerated_shapes: .*{message}"):
        listed(pair(), PAIR | change)


@pytest.mark.slow
def test_methods_that_can_have_none_are_told():
    x = {"x": PAIR["x"]}
    for program, shapes, several, message in [
        (pair(), x, True, "lists no shapes of y, whose sizes are dynamic"),
        (pair(), "all", False, "x, y have dynamic sizes, .*minimum_deployment_target: ios18"),
        (export(Pair(), (torch.ones(3), torch.ones(3))), "all", True, "no input .* dynamic size"),
        (tokens(Dim("n", min=2, max=500)), "all", True, "are 499 shapes, .* takes 2 to 128"),
        (tokens(Dim("n", min=2)), "all", True, r"tokens.shape\[1\] has no maximum"),
        (tokens(4 * BLOCKS, torch.int64), "all", True, "tokens is of int64; .*int32"),
        (tokens(4 * BLOCKS), {"tokens": [[1, 8], [1, 10]]}, True, "size 10 at dimension 1"),
    ]:
        with pytest.raises(PipelineError, match=message):
            listed(program, shapes, several)


MODEL = '''
"""A trunk for images of several sizes, and a head."""

import torch
from torch import nn
from torch.export import Dim, export


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, image):
        return torch.relu(self.first(image))


class Classify(nn.Module):
    def __init__(self, trunk):
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(8, 10)

    def forward(self, image):
        return self.head(self.trunk(image).mean((2, 3)))


def inputs(seed, size=8):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(1, 3, size, size, generator=generator),)


def export_methods():
    trunk = Features().eval().requires_grad_(False)
    classify = Classify(trunk).eval().requires_grad_(False)
    side = 8 * Dim("blocks", min=1, max=4)
    dims = ({2: side, 3: side},)
    methods = {"features": trunk, "classify": classify}
    return {
        name: export(module, inputs(0, 16), dynamic_shapes=dims)
        for name, module in methods.items()
    }


def example_inputs(method):
    return [inputs(1, 16)]
'''
SIDES = [[1, 3, 16, 16], [1, 3, 32, 32]]
LISTED = {
    "enumerated_shapes": {"image": SIDES},
    "lower_full_graph": True,
    "minimum_deployment_target": "ios18",
}
CONFIGS = {
    "listed": {"methods": dict.fromkeys(("features", "classify"), LISTED)},
    "all": {"methods": {"classify": LISTED | {"enumerated_shapes": "all"}}},
    # A range of multiples; upstream can lower such a program if it is in memory.
    "range": {"methods": {"classify": {}}},
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    configs = {}
    for package, config in CONFIGS.items():
        methods = {
            name: {"partitioners": [{"coreml": json.loads(json.dumps(own))}]}
            for name, own in config["methods"].items()
        }
        left_out = {"features", "classify"} - methods.keys()
        methods |= {name: {"partitioners": []} for name in left_out}
        configs[package] = {"methods": methods, "validate": {"bundle": True, "inputs": 6}}
    bench = bench_for(tmp_path_factory.mktemp("shapes") / "workspace", configs)
    (bench.root / "models" / "small.py").write_text(MODEL)
    assert bench.doit(timeout=600) == 0, bench.output
    return bench


def shapes_of(bench, package, folder):
    """Return the shapes of each function's only input, for each model."""
    import coremltools as ct

    from tests.features.apple.test_apple import models_of, unpacked

    shapes = {}
    for place, model in enumerate(models_of(bench.bytes_of(package, f"{package}.pte"))):
        root = unpacked(model, folder / str(place))
        spec = ct.models.MLModel(str(root / "model.mlpackage"), skip_model_load=True).get_spec()
        described = spec.description.functions or [spec.description]
        for function in described:
            (feature,) = function.input
            kind = feature.type.multiArrayType
            assert kind.WhichOneof("ShapeFlexibility") == "enumeratedShapes"
            listed = [list(each.shape) for each in kind.enumeratedShapes.shapes]
            shapes[getattr(function, "name", "")] = list(kind.shape), listed
    return shapes


@pytest.mark.slow
def test_the_model_takes_these_shapes_and_the_first_by_default(bench, tmp_path):
    shapes = SIDES[0], SIDES
    assert shapes_of(bench, "listed", tmp_path) == {"features": shapes, "classify": shapes}
    (tmp_path / "all").mkdir()
    (only,) = shapes_of(bench, "all", tmp_path / "all").values()
    assert only[0] == [1, 3, 16, 16] and [side[2] for side in only[1]] == [16, 24, 32]


@pytest.mark.slow
def test_bytes_are_those_of_the_joint_call_and_of_another_build(bench):
    check_same_bytes(bench, ["all", "range"], "listed")


@pytest.mark.slow
def test_expected_outputs_for_a_device_are_of_the_listed_shapes(bench):
    from executorch.devtools.bundled_program.serialize import (
        deserialize_from_flatbuffer_to_bundled_program as read,
    )

    for package, allowed in (("listed", {16, 32}), ("all", {16, 24, 32})):
        suites = read(bench.bytes_of(package, f"{package}.bpte")).method_test_suites
        sizes = {
            case.inputs[0].val.sizes[2]
            for suite in suites
            if suite.method_name == "classify"
            for case in suite.test_cases
        }
        assert 16 in sizes and sizes <= allowed, (package, sizes)


@pytest.mark.slow
def test_a_fresh_checkout_compiles_nothing(bench, tmp_path):
    check_fresh_checkout_hits(bench, tmp_path / "other", "listed", "all")


def test_an_example_of_another_shape_is_told():
    program = export(Pair(), (torch.randn(3, 2), torch.randn(5, 2)), dynamic_shapes=({0: ROWS}, {}))
    inputs = InputSet((torch.ones(3, 2), torch.ones(5, 2)), {}, "example 0")
    shapes = {"x": [[2, 2], [4, 2]]}
    (outside,) = find_unlisted(program, inputs, shapes)
    assert outside == "x [3, 2] is not among the package's enumerated_shapes; list it there"
    assert not list(find_unlisted(program, inputs, {"x": [[2, 2], [3, 2]]}))
    assert not list(find_unlisted(program, inputs, None))
