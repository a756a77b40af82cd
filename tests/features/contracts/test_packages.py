"""Contracts and targets through doit: what a package needs, and a runtime that lacks it."""

import json
import re

import pytest

from pipeline.features.contracts.outline import CONTRACT
from pipeline.store.forms import check_of
from tests.support.lowerable import bench_for

pytestmark = pytest.mark.slow
METHODS = {"features": {"partitioners": ["xnnpack"]}, "classify": {"partitioners": []}}
QUICK = {"inputs": 1, "cases": [], "latency": {"seconds": 0}}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    config = {"target": "phone", "methods": METHODS, "validate": QUICK}
    bench = bench_for(tmp_path_factory.mktemp("contract") / "w", {"pack": config})
    assert bench.doit() == 0, bench.output
    return bench


def write(bench, name, text):
    path = bench.root / "targets" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def gates_of(bench):
    gates = json.loads(bench.bytes_of("pack", "report.json"))["gates"]
    return {gate["method"]: gate for gate in gates if gate["gate"] == "runs_on"}


def test_a_target_without_a_file_is_a_label(built):
    report = json.loads(built.bytes_of("pack", "report.json"))
    assert report["target"] == "phone" and report["gates"] == []
    assert built.doit() == 0 and built.output.startswith("up to date"), built.output


def test_the_contract_and_its_lines(built):
    assert built.doit("contract", "pack") == 0, built.output
    lines = built.output.splitlines()
    assert "  backend XnnpackBackend in xnnpack_backend" in lines
    assert "set(EXECUTORCH_BUILD_XNNPACK ON)" in lines
    assert "    aten::convolution.out  float32" in lines
    selection = built.root / "build" / "pack" / "selected_operators.yaml"
    assert f'configure_file("{selection}" ${{selected}}/selected_operators.yaml COPYONLY)' in lines
    contract = json.loads(built.bytes_of("pack", "contract.json"))
    assert check_of(CONTRACT)(contract)  # and no other field
    assert sorted(contract["methods"]) == ["classify", "features"]
    assert contract["executorch"][0].startswith("1.")
    assert built.doit("contract", "pock") == 1
    assert "no package 'pock'; did you mean 'pack'?" in built.output


def test_the_runtime_of_a_device_is_asked(built):
    assert built.doit("contract", "--on", "interpreter") == 0, built.output
    assert re.search(
        r"^pack on interpreter: the runtime has everything that the package needs: \d+ operators",
        built.output,
    )
    assert built.doit("contract", "--on", "interpretr") == 1
    assert "no device 'interpretr'; did you mean 'interpreter'? known: " in built.output
    nothing = {"PTE_PIPELINE_NATIVE_SDK": "nowhere"}
    assert built.doit("contract", "--on", "native", **nothing) == 1
    assert "native: PTE_PIPELINE_NATIVE_SDK: " in built.output


def test_a_missing_operator_fails_with_its_line_and_measures_nothing_again(built):
    write(
        built, "phone", "operators: [aten::convolution.out, aten::relu.out]\nbackends: [xnnpack]\n"
    )
    before = json.loads(built.bytes_of("pack", "report.json"))
    assert built.doit("validate:pack") == 1
    assert "classify: the runtime of phone lacks aten::addmm.out, for `return self.head(" in (
        built.output
    )
    assert "# models/small.py:" in built.output and "delegate it: phone has xnnpack" in built.output
    gates = gates_of(built)
    assert (gates["features"]["ok"], gates["classify"]["ok"], gates[None]["ok"]) == (1, 0, 1)
    assert gates["classify"]["place"].startswith("partition_configs/pack.yaml:")
    assert built.outcomes()["link pack"] == "up-to-date"
    after = json.loads(built.bytes_of("pack", "report.json"))
    assert after["seconds"] == before["seconds"]  # no two runs have the same


def test_the_runtime_of_this_machine_holds_it(built):
    assert built.doit("contract", "--of-runtime", "phone") == 1
    assert (
        "targets/phone.yaml already exists and was written by hand; choose another name"
        in built.output
    )
    (built.root / "targets" / "phone.yaml").unlink()
    assert built.doit("contract", "--of-runtime", "phone") == 0, built.output
    assert "targets/phone.yaml: " in built.output and " operators and " in built.output
    assert built.doit() == 0, built.output
    assert all(gate["ok"] for gate in gates_of(built).values())
    assert built.doit() == 0 and built.output.startswith("up to date"), built.output
    assert built.doit("contract", "--of-runtime", "phone") == 0  # anew
    assert built.doit() == 0 and built.output.startswith("up to date"), built.output
    targets = built.root / "targets"
    moved = targets.rename(built.root / "moved")
    targets.touch()
    assert built.doit("contract", "--of-runtime", "phone") == 1
    assert "/targets: File exists" in built.output and "Traceback" not in built.output
    targets.unlink()
    moved.rename(targets)


def test_mistakes_in_targets_are_told_before_anything_is_built(built):
    config, text = built.root / "partition_configs" / "pack.yaml", ""
    text = config.read_text()
    config.write_text(text.replace("validate:", "validate:\n  gates: {runs_on: [fone]}", 1))
    assert built.doit("check") == 1
    assert "gates.runs_on[0]: no target 'fone': there is no targets/fone.yaml; did" in built.output
    config.write_text(text)
    phone = (built.root / "targets" / "phone.yaml").read_text()
    write(built, "phone", "kernals: [portable]\n")
    write(built, "watch", "memory: much\n")
    assert built.doit("check") == 1
    assert "targets/phone.yaml:1: unknown key 'kernals'; did you mean 'kernels'?" in built.output
    assert "targets/watch.yaml:1: memory: is 'much', must be a size" in built.output
    assert built.doit("lower:pack") == 1
    assert "targets/phone.yaml:1: unknown key" in built.output
    assert "targets/watch.yaml:1" not in built.output  # no package is held to it
    write(built, "phone", phone)
    (built.root / "targets" / "watch.yaml").unlink()
    assert built.doit("check") == 0, built.output
