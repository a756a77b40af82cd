"""A user's own tasks before, between and after ours: no package is made of old inputs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.support.bench import Bench

MODEL = "models/m.pt2"
CONFIG = "model: {model}\nmethods:\n  forward:\n    partitioners: []\n"
IMPORT = "from pte_pipeline.tasks import *\n"
TRAIN = """
def task_train():
    return {"actions": ["cp versions/$(cat version).pt2 models/m.pt2"], "file_dep": ["version"],
            "targets": ["models/m.pt2"]}
"""
RELEASE = """
def task_release():
    return {"actions": ["cp build/m/m.pte released.pte"], "file_dep": ["build/m/m.pte"],
            "targets": ["released.pte"]}
"""


class Added(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, x):
        return x + self.number


def make_workspace(root: Path, dodo: str) -> Bench:
    for folder in ("models", "partition_configs"):
        (root / folder).mkdir(parents=True)
    (root / "dodo.py").write_text(dodo)
    (root / "partition_configs" / "m.yaml").write_text(CONFIG.format(model="m"))
    return Bench(root)


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """A folder of two versions of a model and, by version, the package that is built from it."""
    folder = tmp_path_factory.mktemp("versions")
    packages = {}
    bench = make_workspace(folder / "workspace", IMPORT)
    for version in ("1", "2"):
        program = torch.export.export(Added(float(version)), (torch.ones(2),))
        torch.export.save(program, folder / f"{version}.pt2")
        shutil.copy(folder / f"{version}.pt2", bench.root / MODEL)
        assert bench.doit("lower") == 0, bench.output
        packages[version] = bench.bytes_of("m", "m.pte")
    return folder, packages


@pytest.fixture
def trained(versions, tmp_path):
    """A workspace whose model is made by a task: with another dodo file, if one is given."""

    def make(dodo: str = IMPORT + TRAIN + RELEASE) -> Bench:
        bench = make_workspace(tmp_path / "trained", dodo)
        (bench.root / "versions").symlink_to(versions[0])
        (bench.root / "version").write_text("1")
        return bench

    return make


@pytest.mark.parametrize(
    "words",
    [
        "train lower",
        "lower",
        "lower:m",
        "m",
        "compile:m/forward lower",
        "train lower validate release",
        "-n 2 validate release",
        "release",
    ],
)
def test_a_model_that_a_task_makes(trained, versions, words):
    bench = trained()
    for version in ("1", "2"):
        (bench.root / "version").write_text(version)
        assert bench.doit(*words.split()) == 0, bench.output
        assert bench.bytes_of("m", "m.pte") == versions[1][version]
        if "release" in words:
            assert (bench.root / "released.pte").read_bytes() == versions[1][version]
    assert bench.doit(*words.split()) == 0
    assert "-- train" in bench.output and "up to date: 1 package" in bench.output
