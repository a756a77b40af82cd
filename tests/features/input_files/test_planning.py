"""Damaged files of examples and calibration inputs are config mistakes."""

import json
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.features.input_files.damage import describe_damage
from pipeline.features.input_files.planning import InputFilePlanning, summarize
from tests.support.configs import parse_config
from tests.support.documents import DOCUMENT

TENSOR = {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


def write_npz(path):
    np.savez(path, x=np.ones(3, np.float32), y=np.zeros((0, 2)))
    return path.read_bytes()


def write_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"a text")


def tensors(header, data=b""):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        (tensors({**TENSOR, "__metadata__": {"a": "b"}}, bytes(8)), ""),
        (tensors(TENSOR, bytes(3)), "it lacks 5 bytes"),
        (tensors({"x": 1}), "its header has an unknown form"),
        (tensors([1]), "cannot convert dictionary update sequence"),
        (tensors({}), "contains no tensors"),
        (bytes(8), "Expecting value"),
        (b"not one of these files", "its header is truncated"),
    ],
)
def test_safetensors(tmp_path, content, damage):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    assert describe_damage(path).startswith(damage) and bool(describe_damage(path)) == bool(damage)


def test_npz(tmp_path):
    path = tmp_path / "a.npz"
    content = write_npz(path)
    assert describe_damage(path) == ""
    for size in (len(content) - 1, 100, 0):
        path.write_bytes(content[:size])
        assert describe_damage(path) == "File is not a zip file"
    write_zip(path)
    assert describe_damage(path) == "'x.npy' is not an array"
    with zipfile.ZipFile(path, "w"):
        pass
    assert describe_damage(path) == "contains no arrays"


def test_files_of_a_config_are_looked_at(tmp_path):
    files = {name: tmp_path / f"{name}.npz" for name in ("good", "bad", "observed")}
    for path in files.values():
        write_npz(path)
    files["bad"].write_text("no archive")
    files["observed"].write_bytes(b"")
    quantize = {"quantizer": "xnnpack", "calibration": ["observed.npz"]}
    data = {
        "model": "m",
        "methods": {"f": {"partitioners": [], "quantize": quantize}},
        "validate": {"methods": {"f": {"examples": ["good.npz", "bad.npz", "gone.npz", "a.pt"]}}},
    }
    config = parse_config("p", data, "f.yaml")
    names = {"files": ["bad.npz", "gone.npz", "good.npz", "observed.npz"]}
    assert summarize(config, False) == names

    def find_data(name):
        path = tmp_path / name
        return path.name if path.exists() else None

    workspace = SimpleNamespace(root=tmp_path, find_data=find_data)
    summary = SimpleNamespace(features={"input_files": names})
    configs = SimpleNamespace(summary=lambda package: summary)
    planning = InputFilePlanning(SimpleNamespace(workspace=workspace, configs=configs))
    assert planning.problem_facts("p") == {n: find_data(n) for n in names["files"]}
    reason = "cannot be read as a .npz file (File is not a zip file); save it again"
    assert [*map(str, planning.find_problems("p", config, DOCUMENT))] == [
        f"f.yaml: methods.f.quantize.calibration: observed.npz: {reason}",
        f"f.yaml: validate.methods.f.examples: bad.npz: {reason}",
    ]
