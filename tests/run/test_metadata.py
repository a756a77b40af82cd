"""Metadata inside packages: read without a manifest, and added only by linking."""

import json
import pickle
import shutil
import subprocess

import pytest
import torch

from pipeline import load_package
from pipeline.store.names import METADATA
from tests.features.refit.test_refit import METHODS, PORTABLE, REFIT, XNNPACK, lower, start, write

MEAN = [0.485, 0.456, 0.406]
WITHOUT = {"constant_methods": {"get_image_mean": MEAN, "get_layout": "NCHW"}}
CONFIG = {"emit": {"metadata": True}, **WITHOUT}


def rewrite(bench, **config):
    path = bench.root / "partition_configs" / "small.yaml"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))


def git(bench, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", "-C", str(bench.root), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_package_says_itself_what_its_manifest_says(tmp_path):
    bench = start(tmp_path / "w", {"run": PORTABLE, "again": PORTABLE}, **CONFIG)
    write(bench, 1)
    lower(bench)
    shutil.copy(bench.root / "build" / "small" / "small.pte", alone := tmp_path / "alone.pte")
    package = load_package(alone, trust=True)
    manifest = json.loads(bench.bytes_of("small", "manifest.json"))
    assert package.metadata == manifest["metadata"] == json.loads(package.get_metadata())
    assert package.metadata["methods"] == {n: manifest["methods"][n]["signature"] for n in METHODS}
    assert package.metadata["constants"] == {"get_image_mean": MEAN, "get_layout": "NCHW"}
    assert package.metadata["toolchain"]["executorch"] and package.metadata["revision"] is None
    x, i = torch.randn(1, 3, 6, 6), torch.tensor([1])
    assert package.run.has_names and torch.equal(package.run(i=i, x=x), package["run"](x, i))
    assert load_package(alone, device="interpreter", trust=True).metadata == package.metadata
    assert pickle.loads(pickle.dumps(package)).metadata == package.metadata


@pytest.mark.slow
def test_linking_alone_puts_metadata_in(tmp_path):
    bench = start(tmp_path / "w", {"run": PORTABLE, "again": PORTABLE}, **WITHOUT)
    write(bench, 1)
    lower(bench)
    bare = bench.bytes_of("small", "small.pte")
    rewrite(bench, **CONFIG)
    assert bench.doit() == 0, bench.output  # validates get_metadata as a constant
    assert bench.outcomes()["compile small/run"] == "up-to-date"
    assert bench.outcomes()["link small"] == "built"
    held = bench.bytes_of("small", "small.pte")
    assert METADATA.encode() in held and METADATA.encode() not in bare
    for seed in (2, 3):  # new weights are inserted next to it
        write(bench, seed)
        outcome = lower(bench)
    assert outcome == REFIT
    package = load_package(bench.root / "build" / "small" / "small.pte")
    assert package.metadata == json.loads(bench.bytes_of("small", "manifest.json"))["metadata"]
    assert bench.doit("rebuild") == 0, bench.output
    rewrite(bench, emit={})
    write(bench, 1)
    assert set(lower(bench).values()) <= {"hit", "up-to-date"}
    assert bench.bytes_of("small", "small.pte") == bare


@pytest.mark.slow
def test_a_commit_is_named_where_it_is_asked_for(tmp_path):
    asked = {"emit": {"metadata": True, "metadata_revision": True}}
    bench = start(tmp_path / "w", {"run": PORTABLE, "again": PORTABLE}, **asked)
    write(bench, 1)
    assert bench.doit("lower") == 1
    line = (
        "small.yaml:1: emit.metadata_revision: can't name a commit: the workspace is not in a git"
    )
    assert line in bench.output
    git(bench, "init", "-q")
    git(bench, "add", "dodo.py", "partition_configs")
    git(bench, "commit", "-qm", "first")
    lower(bench)
    first = json.loads(bench.bytes_of("small", "manifest.json"))["metadata"]["revision"]
    assert first == git(bench, "rev-parse", "HEAD")
    git(bench, "commit", "-qm", "second", "--allow-empty")
    assert bench.doit("explain", "small") == 0
    assert f"the commit in metadata: {first[:12]}" in bench.output
    assert lower(bench) == {**dict.fromkeys(METHODS, "up-to-date"), "link": "built"}
    assert set(lower(bench).values()) == {"up-to-date"}
    (bench.root / "dodo.py").write_text("from pipeline.tasks import *  # noqa\n")
    lower(bench)
    second = json.loads(bench.bytes_of("small", "manifest.json"))["metadata"]["revision"]
    assert second == f"{git(bench, 'rev-parse', 'HEAD')}-dirty" != first


def test_a_method_of_that_name_is_told(tmp_path):
    clash = {**CONFIG, "constant_methods": {METADATA: 1}}
    bench = start(tmp_path / "w", {"run": PORTABLE, "again": PORTABLE}, **clash)
    write(bench, 1)
    assert bench.doit("check") == 1
    assert "emit.metadata: adds the method get_metadata, but a method of this name" in bench.output


@pytest.mark.slow
def test_weights_may_be_in_files_of_their_own(tmp_path):
    """The files belong to a family, or to the package alone."""
    bench = start(tmp_path / "w", {"run": XNNPACK, "again": PORTABLE}, family="both", **CONFIG)
    small = json.loads((bench.root / "partition_configs" / "small.yaml").read_text())
    alone = {**small, "emit": {"metadata": True, "external_weights": True}}
    del alone["family"]
    for name, config in (("other", small), ("alone", alone)):
        (bench.root / "partition_configs" / f"{name}.yaml").write_text(json.dumps(config))
    write(bench, 1)
    assert bench.doit() == 0, bench.output
    x, i = torch.randn(1, 3, 6, 6), torch.tensor([1])
    results = []
    for name, ptd in (("small", "both.ptd"), ("other", "both.ptd"), ("alone", "weights.ptd")):
        (folder := tmp_path / name).mkdir()
        for file in (f"{name}.pte", ptd):
            shutil.copy(bench.root / "build" / name / file, folder)
        package = load_package(folder / f"{name}.pte", ptds=[folder / ptd], trust=True)
        assert package.metadata["package"] == name
        results.append(package.run(i=i, x=x))
    assert torch.equal(results[0], results[1]) and torch.allclose(results[0], results[2])
