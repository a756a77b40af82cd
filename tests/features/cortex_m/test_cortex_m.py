"""Cortex-M as a catalogue entry, lowered by ExecuTorch's passes through doit.

Skipped if the extra `tosa` or CMSIS-NN's sizes aren't installed.
"""

import pytest

from pipeline.backends import BACKENDS
from tests.support.lowerable import (
    MODEL,
    bench_for,
    both,
    check_not_run,
    check_same_bytes,
    manifest_of,
)
from tests.support.resident import run_python

ENTRY = BACKENDS["cortex_m"]
LACKS = "; ".join(f"cortex_m needs {need.what}: {need.remedy}" for need in ENTRY.host.missing())
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(LACKS), reason=LACKS)]
QUANTIZED = {"quantize": {"quantizer": "cortex_m"}, "partitioners": ["cortex_m"]}
CONFIGS = {
    "m55": both(**QUANTIZED) | {"validate": {"gates": {"min_delegated_nodes": 0.7}}},
    "m4": both(**QUANTIZED | {"partitioners": [{"cortex_m": {"cpu": "M4"}}]}),
}
# CMSIS-NN's convolutions read channels last.
CHANNELS_LAST = MODEL.replace(
    "manual_seed(seed)),)", "manual_seed(seed)).to(memory_format=torch.channels_last),)"
)
assert CHANNELS_LAST != MODEL


def cortex_m_bench(root, configs, model=CHANNELS_LAST):
    bench = bench_for(root, configs)
    (root / "models" / "small.py").write_text(model)
    return bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = cortex_m_bench(tmp_path_factory.mktemp("cortex_m") / "workspace", CONFIGS)
    assert bench.doit(timeout=600) == 0, bench.output
    yield bench


@pytest.mark.parametrize("package", CONFIGS)
def test_operators_are_its_kernels_and_neither_delegated_nor_left(bench, package):
    for facts in manifest_of(bench, package)["methods"].values():
        counts = facts["delegation"]
        kernels = counts["kernels"]["CortexMBackend"]
        assert kernels["cortex_m.quantized_conv2d"] == 2
        assert counts["delegated_nodes"] == 0 and counts["partitions"] == {}
        assert not [name for name in counts["undelegated"] if name.startswith("cortex_m.")]
        assert sum(kernels.values()) + sum(counts["undelegated"].values()) == counts["nodes"]
    assert b"cortex_m::quantized_conv2d" in bench.bytes_of(package, f"{package}.pte")
    assert "## Kernels of backends" in bench.bytes_of(package, "report.md").decode()


def test_the_core_counts(bench):
    assert bench.bytes_of("m55", "m55.pte") != bench.bytes_of("m4", "m4.pte")


@pytest.mark.parametrize("package", CONFIGS)
def test_it_is_not_run(bench, package):
    check_not_run(bench, package, ENTRY.execution.cannot_run())


def test_bytes_are_those_of_executorchs_own_call_with_its_passes(bench):
    check_same_bytes(bench, CONFIGS)


_OWN_SEQUENCE = """
import sys
from pathlib import Path

import torch
from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager
from executorch.backends.cortex_m.quantizer.quantizer import CortexMQuantizer
from executorch.exir import EdgeCompileConfig, to_edge
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

sys.path.insert(0, "models")
import small

aten = torch.ops.aten
programs = {}
for name, program in small.export_methods().items():
    prepared = prepare_pt2e(program.module(check_guards=False), CortexMQuantizer())
    with torch.no_grad():
        for inputs in small.calibration_inputs(name):
            prepared(*inputs)
    programs[name] = torch.export.export(convert_pt2e(prepared), small.inputs(2))
whole = [
    getattr(aten, name).default
    for name in ("linear", "hardsigmoid", "hardsigmoid_", "hardswish", "hardswish_", "silu")
]
edge = to_edge(
    programs,
    compile_config=EdgeCompileConfig(
        preserve_ops=whole,
        _check_ir_validity=False,
        _core_aten_ops_exception_list=[aten.max_pool2d.default],
    ),
)
for name in programs:
    edge._edge_programs[name] = CortexMPassManager(edge.exported_program(name)).transform()
Path("own.pte").write_bytes(edge.to_executorch().buffer)
"""


def test_bytes_are_those_of_the_sequence_of_executorchs_own_tests(bench):
    done = run_python("-c", _OWN_SEQUENCE, cwd=bench.root, timeout=600)
    assert done.returncode == 0, done.stderr
    assert bench.bytes_of("m55", "m55.pte") == (bench.root / "own.pte").read_bytes()


def test_a_fresh_checkout_compiles_nothing(bench, tmp_path):
    own = cortex_m_bench(tmp_path / "own", CONFIGS)
    tasks = [f"lower:{package}" for package in CONFIGS]
    assert own.doit(*tasks, PTE_PIPELINE_STORE=str(bench.store)) == 0, own.output
    assert set(own.outcomes().values()) == {"hit"}


TRANSFORMER = """
import torch
from torch import nn
from torch.export import export


def inputs():
    return (torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(0)),)


def export_methods():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval().requires_grad_(False)
    return {"features": export(layer, inputs()), "classify": export(layer, inputs())}


def example_inputs(method):
    return [inputs()]
"""


def test_a_method_without_quantization_stays_float_where_that_is_allowed(tmp_path):
    floating = both(partitioners=["cortex_m"])
    allowed = both(partitioners=["cortex_m"], allow_none=True)
    bench = cortex_m_bench(tmp_path / "float", {"allowed": allowed, "float": floating})
    assert bench.doit("lower:allowed") == 0, bench.output
    assert bench.doit("lower:float") == 1
    assert "cortex_m supports none of its operators" in bench.output
    assert "set `quantize: {quantizer: cortex_m}` in methods." in bench.output
    log = bench.root / "build" / ".logs" / "allowed" / "compile-features.log"
    words = "cortex_m takes quantized operators, but the method has none; set `quantize: {quantizer"
    assert words in log.read_text()


def test_what_its_quantizer_leaves_stays_on_portable_kernels(tmp_path):
    bench = cortex_m_bench(tmp_path, {"attention": both(**QUANTIZED)}, TRANSFORMER)
    assert bench.doit("lower") == 0, bench.output
    counts = manifest_of(bench, "attention")["methods"]["features"]["delegation"]
    assert counts["kernels"]["CortexMBackend"] and counts["undelegated"]


def told(tmp_path, **method):
    bench = cortex_m_bench(tmp_path, {"wrong": both(**method)})
    bench.doit("plan")
    return bench.output


def test_what_passes_cannot_keep_to_is_told_when_planned(tmp_path):
    beside = told(tmp_path / "beside", partitioners=["cortex_m", "xnnpack"])
    assert "methods.features: must have no other partitioner next to cortex_m" in beside
    modules = told(tmp_path / "modules", partitioners=["cortex_m"], modules=["first"])
    assert "methods.features: must not contain `modules`: cortex_m lowers whole methods" in modules
    isa = told(tmp_path / "isa", partitioners=[{"cortex_m": {"cpu": "M0", "isa": "MVE"}}])
    assert "cortex_m.isa: is 'MVE'" in isa and "must be one of those that M0 has: SCALAR" in isa
