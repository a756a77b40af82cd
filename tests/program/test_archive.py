"""Archives are read one method at a time, and nothing in them is unpickled."""

import io
import json
import pickle
import zipfile

import pytest
import torch
from torch.export import export
from torch.export.pt2_archive._package import package_pt2

from pipeline.program.archive import load_example_inputs, load_program, save_programs
from pipeline.store.errors import SourceError


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
    """A constant that says that it is raw, in a file that torch unpickles for its name."""
    if name.endswith("a_constants_config.json"):
        return name, data.replace(b"tensor_0", b"opaque_obj_0")
    if name.endswith("constants/tensor_0"):
        return name.replace("tensor_0", "opaque_obj_0"), pickle.dumps(Bomb())
    return name, data


@pytest.mark.parametrize("change", [pickled_weight, disguised_object])
def test_what_is_pickled_is_refused(archive, change):
    rewrite(archive, change)
    with pytest.raises(SourceError, match=r"stores (weight|constant) pickled"):
        load_program(archive, "a")


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
    with pytest.raises(SourceError, match=r"m\.pt2: holds no program 'c'"):
        load_program(archive, "c")


def test_messages_name_no_blob(tmp_path):
    path = tmp_path / "ab" / ("c" * 62)
    path.parent.mkdir()
    path.write_bytes(b"x")
    with pytest.raises(SourceError, match=r"^the exported program: is not a readable PT2 archive"):
        load_program(path, "a")
