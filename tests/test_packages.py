"""Every shipped package: built by `doit`, equal to ExecuTorch's joint call, validated."""

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import REPOSITORY, Bench
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower

from pipeline.backends import make_partitioners
from pipeline.compile import load_examples
from pipeline.inputs import load_inputs
from pipeline.plan import Plan
from pipeline.programs import load_program
from pipeline.quantize import quantize
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


def joint_call(plan, package):
    """What a user writes today: all methods of the package in one call."""
    config, sources, store = plan.config(package), plan.methods(package), plan.workspace.store
    programs = {name: load_program(m.archive, m.entry) for name, m in sources.items()}
    for name, method in config.methods.items():
        if method.quantize is not None:
            source = sources[name]
            calibration = []
            if method.quantize.calibrates:
                calibration = [
                    inputs for blob in source.batches for inputs in load_inputs(store.read(blob))
                ] or load_examples(source, store)
            programs[name] = quantize(programs[name], method.quantize, calibration)
    partitioners = {n: make_partitioners(config.methods[n].partitioners) for n in programs}
    edge = to_edge_transform_and_lower(
        programs,
        partitioner=partitioners,
        constant_methods=dict(config.constant_methods) or None,
    )
    emit = ExecutorchBackendConfig(external_constants=config.emit.external_constants)
    return edge.to_executorch(emit)


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
