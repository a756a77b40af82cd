"""Operators other than ATen's: where their libraries come from, and what happens without one."""

import json
import os
import subprocess
import sys

import pytest
from executorch.exir import to_edge_transform_and_lower

from tests.support.bench import bench_of

pytestmark = pytest.mark.slow


def joint_call(root, model, target):
    """Write the result of ExecuTorch's own call, in a fork that keeps the operators to itself."""
    if (child := os.fork()) == 0:
        status = 1
        try:
            os.chdir(root)
            sys.path[:0] = [str(root), str(root / "models")]
            from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

            programs = __import__(model).export_methods()
            partitioners = {name: [XnnpackPartitioner()] for name in programs}
            lowered = to_edge_transform_and_lower(programs, partitioner=partitioners)
            target.write_bytes(lowered.to_executorch().buffer)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    return target.read_bytes()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    bench = bench_of("operators", tmp_path_factory.mktemp("operators"))
    assert bench.doit() == 1, bench.output
    return bench


@pytest.mark.parametrize("package", ["cached", "scaled"])
def test_lowered_to_the_bytes_of_the_joint_call_and_validated(built, package, tmp_path):
    assert built.outcomes()[f"validate {package}"] == "built", built.output
    expected = joint_call(built.root, package, tmp_path / "expected.pte")
    assert built.bytes_of(package, f"{package}.pte") == expected


def test_a_missing_one_is_one_line_with_its_name_and_a_remedy(built):
    (line,) = [line for line in built.output.splitlines() if "team.scale.default" in line]
    assert "compile:unnamed/forward failed in stage 'load'" in line
    assert "name the module or library that registers it in `operators`" in line


def test_the_manifest_lists_what_an_app_links(built):
    def libraries(package):
        return json.loads(built.bytes_of(package, "manifest.json"))["operators"]

    llm, quantized = libraries("cached")
    assert llm["name"] == "executorch.extension.llm.custom_ops.custom_ops"
    assert llm["operators"] == ["llama::custom_sdpa.out", "llama::update_cache.out"]
    assert llm["kernels"] == llm["operators"] and llm["methods"] == ["step"]
    assert llm["version"].startswith("executorch ") and "digest" not in llm
    assert (quantized["name"], quantized["methods"]) == ("executorch.kernels.quantized", ["embed"])
    (team,) = libraries("scaled")
    assert (team["name"], team["operators"], team["kernels"]) == (
        "team_ops",
        ["team::scale.out"],
        [],
    )
    assert len(team["digest"]) == 64
    assert "team::scale.out" in built.bytes_of("scaled", "report.md").decode()


def test_the_contract_names_the_library_of_each_kernel(built):
    cached, scaled = (
        json.loads(built.bytes_of(package, "contract.json"))["operators"]
        for package in ("cached", "scaled")
    )
    assert cached["llama::custom_sdpa.out"]["library"] == "custom_ops"
    table = cached["quantized_decomposed::embedding_byte.out"]
    assert (table["kernels"], table["dtypes"]) == ("quantized", ["float32", "int64", "uint8"])
    assert scaled["team::scale.out"]["kernels"] == "own"
    assert scaled["team::scale.out"]["library"] == "team_ops"
    assert built.doit("contract", "--all", "cached", "scaled") == 0, built.output
    assert "set(EXECUTORCH_BUILD_KERNELS_LLM ON)" in built.output
    assert "$<LINK_LIBRARY:WHOLE_ARCHIVE,custom_ops>" in built.output
    assert "kernels/quantized/quantized.yaml" in built.output
    assert "# team::scale.out: link your kernel (team_ops)." in built.output
    joined = json.loads((built.root / "build" / "contract.json").read_bytes())
    assert joined["operators"].keys() == cached.keys() | scaled.keys()


def test_a_failure_is_reproduced_with_its_library_and_says_when_it_is_gone(built):
    config = built.root / "partition_configs" / "scaled.yaml"
    text = config.read_text()
    config.write_text(f"{text}validate: {{min_sqnr: 500, inputs: 1, cases: []}}\n")
    assert built.doit("validate:scaled") == 1, built.output
    script = built.root / "build" / "scaled" / "reproduce" / "forward" / "reproduce.py"

    def reproduce():
        environment = {**built.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(
            [sys.executable, script], cwd="/", env=environment, capture_output=True, text=True
        )

    done = reproduce()
    assert done.returncode == 1 and "SQNR" in done.stdout and "it fails" in done.stdout, done.stderr
    library = built.root / "operators" / "team_ops.py"
    library.rename(built.root / "elsewhere.py")
    done = reproduce()
    (built.root / "elsewhere.py").rename(library)
    config.write_text(text)
    assert done.returncode == 2
    (line,) = done.stdout.splitlines()
    assert "scaled: method 'forward': operators: team_ops: is not a module or library here" in line


def test_an_edit_of_a_library_compiles_again_what_has_it_and_nothing_else(built):
    built.edit("operators/team_ops.py", "x * by", "by * x")
    assert built.doit("validate:scaled", "validate:cached") == 0, built.output
    outcomes = built.outcomes()
    assert outcomes["compile scaled/forward"] == "built"
    assert outcomes["compile cached/step"] == "up-to-date"


def test_an_untrusted_build_loads_what_its_environment_lists_alone(built):
    untrusted = {"PTE_PIPELINE_UNTRUSTED": "1"}
    assert built.doit("lower:scaled", **untrusted) == 1
    wanted = "partition_configs/scaled.yaml:2: operators[0]: team_ops is not listed by"
    assert wanted in built.output
    assert "only PTE_PIPELINE_OPERATORS in its environment can list them" in built.output
    assert built.doit("lower:scaled", **untrusted, PTE_PIPELINE_OPERATORS="team_ops") == 0


def test_a_loaded_package_says_which_operator_it_lacks_and_takes_its_library(built):
    script = """
from pipeline import load_package
import torch
path = "build/scaled/scaled.pte"
try:
    load_package(path).forward(torch.ones(2, 4))
except Exception as error:
    print(error)
print(load_package(path, operators=["team_ops"]).forward(torch.ones(2, 4)).shape)
"""
    environment = {**built.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=built.root,
        env=environment,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert "no library here has the operator team::scale.out; name the" in lines[0], done.stderr
    assert lines[1] == "torch.Size([2, 4])"
