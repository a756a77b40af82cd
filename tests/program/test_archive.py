"""Archives are read one method at a time, and nothing in them is unpickled."""

import io
import json
import pickle
import zipfile
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes.sym_shape_eval_pass import HintBasedSymShapeEvalPass
from torch.export import Dim, export
from torch.export.pt2_archive._package import package_pt2
from torch.utils import _pytree as pytree

from pipeline.program.archive import load_example_inputs, load_program, save_programs
from pipeline.program.archive_facts import describe_archive
from pipeline.program.archive_reader import tags_file
from pipeline.program.constant_tags import read_tags, write_tags
from pipeline.program.containers import load_tree
from pipeline.program.eager import Source
from pipeline.program.inputs import InputSet, as_input_sets
from pipeline.program.signature import check_inputs
from pipeline.store.errors import SourceError
from tests.support.signatures import make_method_spec


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(3.0))
        self.constant = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, x):
        return x * self.weight + self.constant


@pytest.fixture
def program():
    return export(Scale().requires_grad_(False), (torch.ones(2, 3),))


@pytest.fixture
def archive(program, tmp_path):
    path = tmp_path / "m.pt2"
    package_pt2(str(path), exported_programs={"a": program, "b": program})
    return path


def test_program_and_example_inputs_are_read(archive, program):
    x = torch.randn(2, 3)
    torch.testing.assert_close(load_program(archive, "b").module()(x), program.module()(x))
    (example,), keywords = load_example_inputs(archive, "b")
    assert torch.equal(example, torch.ones(2, 3)) and keywords == {}


def test_what_is_written_holds_no_pickled_inputs_and_leaves_the_program_alone(program, tmp_path):
    with open(tmp_path / "x.pt2", "wb") as file:
        save_programs({"z": program, "a": program}, file)
    assert program.example_inputs is not None
    assert load_example_inputs(tmp_path / "x.pt2", "z") is None
    assert load_program(tmp_path / "x.pt2", "a").graph_signature == program.graph_signature


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("something was unpickled",)


def rewrite(path, change):
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in members.items():
            new.writestr(*change(name, data))


def pickled_weight(name, data):
    if name.endswith("a_weights_config.json"):
        config = json.loads(data)
        config["config"]["weight"]["use_pickle"] = True
        return name, json.dumps(config)
    return name, data


def disguised_object(name, data):
    """Return a constant that claims to be raw, in a file whose name makes torch unpickle it."""
    if name.endswith("a_constants_config.json"):
        return name, data.replace(b"tensor_0", b"opaque_obj_0")
    if name.endswith("constants/tensor_0"):
        return name.replace("tensor_0", "opaque_obj_0"), pickle.dumps(Bomb())
    return name, data


def bomb(name, data):
    if name.endswith("weights/weight_0"):
        buffer = io.BytesIO()
        torch.save(Bomb(), buffer)
        return name, buffer.getvalue()
    return pickled_weight(name, data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (pickled_weight, r"'weight' is stored pickled, and can't be read \(File is not a zip"),
        (bomb, r"'weight' is stored pickled, and can't be read \(Unsupported global: GLOBAL"),
        (disguised_object, "stores constant as objects that would be unpickled"),
    ],
)
def test_what_is_pickled_is_refused(archive, change, message):
    rewrite(archive, change)
    with pytest.raises(SourceError, match=message) as raised:
        load_program(archive, "a")
    assert "\n" not in str(raised.value)


def test_an_archive_of_the_store_holds_nothing_pickled(archive):
    """Whatever the source, an archive written by a build contains only plain tensors."""
    rewrite(archive, pickled_weight)
    with pytest.raises(SourceError, match="'weight' is pickled, but builds pickle nothing"):
        load_program(archive, "a", without_pickle=True)


def test_example_inputs_that_are_objects_are_refused(archive):
    def change(name, data):
        if not name.endswith("sample_inputs/a.pt"):
            return name, data
        buffer = io.BytesIO()
        torch.save(Bomb(), buffer)
        return name, buffer.getvalue()

    rewrite(archive, change)
    with pytest.raises(SourceError, match="example inputs of 'a' cannot be read") as raised:
        load_example_inputs(archive, "a")
    assert "safe_globals" not in str(raised.value)


def test_missing_method_is_a_clear_error(archive):
    with pytest.raises(SourceError, match=r"m\.pt2: contains no program 'c'"):
        load_program(archive, "c")


def test_messages_name_no_blob(tmp_path):
    path = tmp_path / "ab" / ("c" * 62)
    path.parent.mkdir()
    path.write_bytes(b"x")
    with pytest.raises(SourceError, match=r"^the exported program: is not a readable PT2 archive"):
        load_program(path, "a")


# Derived dimensions

N, K = Dim("n", min=2, max=64), Dim("k", min=2, max=20)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((3, 8), 2 * N), ((3, 32), 8 * N), ((3, 48 * 4 - 25), 48 * K - 25), ((3, 9), N + 1)],
    ids=str,
)
def test_derived_dimensions_are_lowered_as_in_memory(shape, size, tmp_path):
    def made():
        return export(torch.nn.ReLU(), (torch.ones(shape),), dynamic_shapes=({1: size},))

    with open(tmp_path / "x.pt2", "wb") as file:
        save_programs({"m": made()}, file)
    loaded = load_program(tmp_path / "x.pt2", "m")
    for emission in (
        None,
        ExecutorchBackendConfig(sym_shape_eval_pass=HintBasedSymShapeEvalPass()),
    ):
        files = [
            to_edge_transform_and_lower({"m": program}).to_executorch(emission).buffer
            for program in (made(), load_program(tmp_path / "x.pt2", "m"))
        ]
        assert files[0] == files[1]
    assert str(loaded.range_constraints) == str(made().range_constraints)


# Containers


@dataclass
class Answer:
    logits: torch.Tensor
    cache: list[torch.Tensor]
    loss: torch.Tensor | None = None


class Scores(NamedTuple):
    best: torch.Tensor
    worst: torch.Tensor


class Named(NamedTuple):
    """A named tuple that archives have no name for."""

    one: torch.Tensor


class Containers(torch.nn.Module):
    def forward(self, given):
        x = given.logits + given.cache[0]
        return {"answer": Answer(x, [x * 2]), "scores": Scores(x + 1, x - 1)}


class Nameless(torch.nn.Module):
    def forward(self, x):
        return [torch.topk(x, 2), x.max(dim=1), Named(x)]


@pytest.fixture
def containers():
    """Register classes for a test, and yield a function that unregisters them."""
    pytree.register_dataclass(Answer, serialized_type_name="acme.Answer")
    pytree._register_namedtuple(Scores, serialized_type_name="acme.Scores")

    def forget():
        for each in (Answer, Scores):
            if each in pytree.SUPPORTED_NODES:
                pytree._deregister_pytree_node(each)

    yield forget
    forget()
    for name in ("acme.Answer", "acme.Scores"):
        if (own := pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)) is not None:
            pytree._deregister_pytree_node(own)


def test_classes_that_a_process_does_not_know_are_stood_in_for(containers, tmp_path):
    """The package has the same names as one made by a process that knows the classes."""
    x = torch.randn(2, 3)
    given = Answer(x, [x + 3])
    program = export(Containers(), (given,))
    (inputs,) = as_input_sets((given,), "example")
    assert set(inputs.args[0]) == {"logits", "cache"}
    with open(tmp_path / "x.pt2", "wb") as file:
        save_programs({"m": program}, file)
    joint = to_edge_transform_and_lower({"m": program}).to_executorch().buffer
    assert b"acme.Answer" in joint
    containers()
    loaded = load_program(tmp_path / "x.pt2", "m")
    check_inputs(loaded, inputs)
    spec = make_method_spec(loaded)
    assert spec.outputs.keys() == {"answer", "scores"}
    assert spec.outputs["answer"].keys() == {"logits", "cache"}
    assert type(spec.outputs["scores"]) is tuple
    wanted = [x + x + 3, (x + x + 3) * 2, x + x + 4, x + x + 2]
    for actual, expected in zip(Source(loaded).run(inputs), wanted, strict=True):
        torch.testing.assert_close(actual, expected)
    assert to_edge_transform_and_lower({"m": loaded}).to_executorch().buffer == joint


def test_containers_without_a_name_are_tuples(tmp_path):
    """ExecuTorch's own call fails to emit them."""
    x = torch.randn(2, 3)
    with open(tmp_path / "x.pt2", "wb") as file:
        save_programs({"m": export(Nameless(), (x,))}, file)
    loaded = load_program(tmp_path / "x.pt2", "m")
    spec = make_method_spec(loaded)
    assert [type(each) for each in spec.outputs] == [tuple, tuple, tuple]
    expected = [*torch.topk(x, 2), *x.max(dim=1), x]
    for actual, wanted in zip(Source(loaded).run(InputSet((x,))), expected, strict=True):
        torch.testing.assert_close(actual, wanted)
    assert to_edge_transform_and_lower({"m": loaded}).to_executorch().buffer


def test_a_stand_in_of_one_archive_is_none_for_a_class_of_another_kind_in_the_next():
    """A worker loads many archives, and a name in one must not make the next one fail."""
    name, leaf = "acme.Given", {"type": None, "context": None, "children_spec": []}
    trees = [
        json.dumps([1, {"type": kind, "context": context, "children_spec": [leaf]}])
        for kind, context in (("collections.namedtuple", name), (name, '["a"]'))
    ]
    try:
        for tree in (*trees, trees[0]):
            assert pytree.treespec_dumps(load_tree(tree)) == tree
        both = {"type": "builtins.tuple", "context": "null"}
        both["children_spec"] = [json.loads(tree)[1] for tree in trees]
        with pytest.raises(ValueError, match="named tuple"):
            load_tree(json.dumps([1, both]))
    finally:
        pytree._deregister_pytree_node(pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[name])


# Tags of constants


def test_tags_of_constants_are_kept_and_count(program, tmp_path):
    def written(name):
        with open(tmp_path / name, "wb") as file:
            save_programs({"m": program}, file)
        (facts,) = describe_archive(tmp_path / name).programs
        return facts.program, load_program(tmp_path / name, "m")

    plain, loaded = written("plain.pt2")
    assert not read_tags("m", loaded)
    write_tags(program, {"weight": "foundation"})
    tagged, loaded = written("tagged.pt2")
    assert read_tags("m", loaded) == {"weight": "foundation"}
    write_tags(program, {"weight": "other"})
    assert len({plain, tagged, written("other.pt2")[0]}) == 3
    write_tags(program, {"weight": "../up"})
    with pytest.raises(SourceError, match=r"m: constant 'weight' has the tag '../up'; it must be"):
        written("wrong.pt2")


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({"weight": "../up"}, r"\[\"?'weight'\"?\]: is '../up', must be a plain file name"),
        ({"weight": 3}, "is 3, must be a plain file name"),
        (["weight"], "must be a mapping"),
        ({"bias": "a"}, "tags 'bias', which is not a constant of the program"),
        ({'w"t': "a"}, "not a qualified name"),
    ],
)
def test_forged_tags_are_refused(tags, message, program, tmp_path):
    path = str(tmp_path / "x.pt2")
    extra = {tags_file("m"): json.dumps(tags)}
    package_pt2(path, exported_programs={"m": program}, extra_files=extra)
    with pytest.raises(SourceError, match=message):
        load_program(tmp_path / "x.pt2", "m")
