"""Core ML's payloads, checked on a machine that can't run them."""

import json

import pytest
import torch

from pipeline.devices.interface import PackageFiles
from pipeline.features.coreml.payload import check_payload, read_archive
from pipeline.features.payloads import check as payloads
from tests.support.lowerable import bench_for, both
from tests.validate.test_package import validate_one

pytestmark = pytest.mark.slow

CONFIGS = {
    "joint": both(partitioners=["coreml"]),
    "apart": both(partitioners=[{"coreml": {"multimethod_weight_sharing_strategy": "disabled"}}]),
    "parts": both(
        partitioners=[
            {
                "coreml": {
                    "skip_ops_for_coreml_delegation": ["aten.relu.default"],
                    "multimethod_weight_sharing_strategy": "disabled",
                }
            }
        ]
    ),
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = bench_for(tmp_path_factory.mktemp("payload") / "workspace", CONFIGS)
    assert bench.doit(timeout=600) == 0, bench.output
    return bench


def calls_of(bench, package, monkeypatch):
    """Return the calls of a package's delegates, as validation passes them to the check."""
    calls = []
    monkeypatch.setattr(payloads, "_find_checks", lambda: {"CoreMLBackend": keep(calls)})
    files = PackageFiles.of(bench.root / "build" / package / f"{package}.pte")
    for method in ("features", "classify"):
        assert not list(payloads.find_payload_faults(files, method))
    return calls


def keep(calls):
    def check(*values):
        names = ("method", "payload", "named", "inputs", "outputs")
        calls.append(dict(zip(names, values, strict=True)))
        return []

    return check


@pytest.mark.parametrize(("package", "least"), [("joint", 2), ("apart", 2), ("parts", 4)])
def test_what_was_lowered_has_no_fault(bench, package, least, monkeypatch):
    calls = calls_of(bench, package, monkeypatch)
    assert len(calls) >= least
    for call in calls:
        assert call["inputs"] and call["outputs"]
        assert list(check_payload(**call)) == []


def with_metadata(call, change):
    """Return the call with other metadata of equal length, so that offsets in the archive hold."""
    name, payload = None, call["payload"]
    if payload.startswith(b"CMJR"):
        name = json.loads(payload[4:])["key"]
        payload = call["named"][name]
    before = read_archive(payload)["metadata.json"]
    after = change(before)
    assert len(after) == len(before) and after != before
    changed = payload.replace(before, after)
    if name is None:
        return {**call, "payload": changed}
    return {**call, "named": {**call["named"], name: changed}}


def test_every_kind_of_fault_is_told(bench, monkeypatch):
    call, *_ = calls_of(bench, "apart", monkeypatch)
    joint, *_ = calls_of(bench, "joint", monkeypatch)
    (size,) = call["inputs"]
    wider = (*size[:-1], size[-1] + 1)
    faults = {
        "and the package's call 2": {**call, "inputs": (size, size)},
        f"and the package's call {list(wider)}": {**call, "inputs": (wider,)},
        "has 1 outputs, and the package's call 0": {**call, "outputs": ()},
        "can't be read: JSONDecodeError": {**call, "payload": call["payload"][:-100]},
        "has no function other; it has features, classify": {**joint, "method": "other"},
        "can't be read: KeyError": {**joint, "named": {}},
        "metadata lists ['y']": with_metadata(call, lambda m: m.replace(b'["x"]', b'["y"]')),
    }
    for told, faulty in faults.items():
        (fault,) = check_payload(**faulty)
        assert told in fault


def test_weights_that_are_gone_are_told(bench, monkeypatch):
    call, *_ = calls_of(bench, "apart", monkeypatch)
    payload = call["payload"].replace(b"weights/weight.bin", b"weights/weight.bak")
    (fault,) = check_payload(**{**call, "payload": payload})
    assert "lacks weights: model.mlpackage/Data/com.apple.CoreML/weights/weight.bak" in fault


def test_validation_fails_for_a_fault(monkeypatch):
    check = "pipeline.features.payloads.check.find_payload_faults"
    monkeypatch.setattr(check, lambda files, method: ["lacks weights"])
    failed = validate_one(torch.nn.ReLU(), torch.ones(3), not_run={"run": "needs a Mac"})
    assert failed.failures == ("run: lacks weights",)
