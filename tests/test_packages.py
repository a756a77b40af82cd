"""Every shipped package: built by `doit`, equal to ExecuTorch's joint call, validated."""

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import REPOSITORY, Bench
from joint import joint_call

from pipeline.plan import Plan
from pipeline.store import Store
from pipeline.workspace import Workspace

PACKAGES = sorted(path.stem for path in (REPOSITORY / "partition_configs").glob("*.yaml"))


class Shipped(Bench):
    """A copy of the shipped workspace, on the store of the environment where there is one."""

    @property
    def store(self) -> Path:
        return Path(os.environ.get("PTE_PIPELINE_STORE") or self.root / ".store")


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    root = tmp_path_factory.mktemp("shipped")
    for name in ("models", "partition_configs"):
        shutil.copytree(REPOSITORY / name, root / name)
    shutil.copy(REPOSITORY / "dodo.py", root)
    bench = Shipped(root)
    code = bench.doit(timeout=1200)
    assert code == 0, bench.output
    return bench


@pytest.mark.parametrize("package", PACKAGES)
def test_bytes_are_those_of_the_joint_call(shipped, package):
    plan = Plan(Workspace(shipped.root, Store(shipped.store), 1))
    manager = joint_call(plan, package)
    model = plan.config(package).model
    assert shipped.bytes_of(package, f"{model}.pte") == manager.buffer
    expected = {
        f"{name.removesuffix('.ptd')}.ptd": bytes(cord)
        for name, cord in manager._tensor_data.items()
    }
    folder = shipped.root / "build" / package
    assert {path.name: path.read_bytes() for path in folder.glob("*.ptd")} == expected


@pytest.mark.parametrize("package", PACKAGES)
def test_validation_ran_on_every_method(shipped, package):
    record = json.loads(shipped.bytes_of(package, "validation.json"))
    plan = Plan(Workspace(shipped.root, Store(shipped.store), 1))
    programs = {m["method"]: m for m in record["methods"] if m["kind"] == "program"}
    assert record["ok"] and set(programs) == set(plan.methods(package))
    assert all(method["runs"] for method in programs.values())


def test_manifest_names_what_a_package_was_made_of(shipped):
    manifest = json.loads(shipped.bytes_of("vision-mixed", "manifest.json"))
    methods = manifest["methods"]
    assert methods["embed"]["delegation"]["partitions"] == {}
    mixed = methods["features"]["delegation"]["partitions"]["XnnpackBackend"]
    assert mixed > methods["classify"]["delegation"]["partitions"]["XnnpackBackend"]
    assert manifest["toolchain"]["executorch"] == "1.4.1"
    pte = shipped.bytes_of("vision-mixed", "vision.pte")
    assert manifest["files"]["vision.pte"]["size"] == len(pte)
    assert str(shipped.root) not in json.dumps(manifest)


def test_state_dynamic_sizes_and_several_calls_were_validated(shipped):
    record = json.loads(shipped.bytes_of("language_model", "validation.json"))
    decode = next(m for m in record["methods"] if m["method"] == "decode")
    assert decode["state"] and max(run["step"] for run in decode["runs"]) >= 4
    speech = json.loads(shipped.bytes_of("speech", "validation.json"))
    encode = next(m for m in speech["methods"] if m["method"] == "encode")
    assert len({run["origin"] for run in encode["runs"]}) >= 4
