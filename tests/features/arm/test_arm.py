"""Arm's catalogue entries: TOSA, Ethos-U and VGF, lowered through doit; VGF also runs.

Packages are skipped if their extra isn't installed. docs/reference/backends.md says what VGF needs
in order to run here.
"""

import json
import re

import pytest
import yaml

from pipeline.backends import BACKENDS
from pipeline.compile.emit import emit
from pipeline.compile.inspect.delegation import describe_delegation
from pipeline.compile.lower import lower
from pipeline.compile.module_filter import make_filtered_partitioners
from pipeline.config.emission import EmitConfig
from pipeline.features.arm import emulation as arm_emulation
from pipeline.features.arm import vgf
from pipeline.features.quantization.quantize import quantize
from pipeline.program.inputs import InputSet
from tests.compile.test_control_flow import Any, Cond, Map, Scan, X, check_runs, lowered, program_of
from tests.support.bench import REPOSITORY
from tests.support.configs import parse_config
from tests.support.lowerable import (
    bench_for,
    both,
    check_delegated,
    check_fresh_checkout_hits,
    check_not_run,
    check_ran,
    check_same_bytes,
    manifest_of,
)
from tests.support.refused import left_by

pytestmark = pytest.mark.slow


def ethos_u(target):
    device = {"target": target}
    return both(quantize={"quantizer": "ethos-u", **device}, partitioners=[{"ethos-u": device}])


TOSA_INT = {"tosa_spec": "TOSA-1.0+INT"}
TOSA_MIXED = {"tosa_spec": "TOSA-1.0+INT+FP+int16"}
CLOSE = {"validate": {"atol": 0.1, "min_sqnr": 20.0}}
# For each package: the backend, the least share of nodes that it takes, and the config.
CONFIGS = {
    "tosa-fp": ("tosa", 1.0, both(partitioners=[{"tosa": {"tosa_spec": "TOSA-1.0+FP"}}])),
    "tosa-int": (
        "tosa",
        0.85,
        both(quantize={"quantizer": "tosa", **TOSA_INT}, partitioners=[{"tosa": TOSA_INT}]),
    ),
    "tosa-mixed": (
        "tosa",
        0.6,
        {
            "methods": {
                name: {
                    "quantize": {
                        "quantizer": "tosa",
                        **TOSA_MIXED,
                        "modules": {first: "none"},
                        "operators": {"conv2d": {"per_channel": False}},
                    },
                    "partitioners": [{"tosa": TOSA_MIXED}],
                }
                for name, first in (("features", "first"), ("classify", "trunk.first"))
            }
        },
    ),
    "u55": ("ethos-u", 0.85, ethos_u("ethos-u55-128")),
    "u65": ("ethos-u", 0.85, ethos_u("ethos-u65-256")),
    "u85": ("ethos-u", 0.85, ethos_u("ethos-u85-256")),
    "vgf-fp": ("vgf", 1.0, both(partitioners=["vgf"])),
    "vgf-int": ("vgf", 1.0, both(quantize={"quantizer": "vgf"}, partitioners=["vgf"]) | CLOSE),
}
LACKS = {
    name: "; ".join(
        f"{name} needs {need.what}: {need.remedy}" for need in BACKENDS[name].host.missing()
    )
    for name in ("tosa", "ethos-u", "vgf")
}
DOCS = REPOSITORY / "docs" / "reference" / "backends.md"


def documented(backend):
    """Return the documentation's example for a backend."""
    section = re.search(rf"^## {backend}$(.*?)^## ", DOCS.read_text(), re.M | re.S).group(1)
    config = yaml.safe_load(re.search(r"^```yaml$(.*?)^```$", section, re.M | re.S).group(1))
    return {key: value for key, value in config.items() if key != "model"} | CLOSE


CONFIGS |= {f"docs-{name}": (name, 0.85, documented(name)) for name in LACKS}
BUILT = [package for package, (backend, _, _) in CONFIGS.items() if not LACKS[backend]]


def packages(*backends):
    """Return the packages with these backends, skipped if something isn't installed."""
    return [
        pytest.param(package, marks=pytest.mark.skipif(bool(LACKS[name]), reason=LACKS[name]))
        for package, (name, _, _) in CONFIGS.items()
        if name in backends
    ]


needs_one = pytest.mark.skipif(not BUILT, reason="; ".join(LACKS.values()))


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arm")
    with pytest.MonkeyPatch.context() as patch:
        if not LACKS["vgf"]:
            for variable, value in arm_emulation.set_up(folder / "layers").items():
                patch.setenv(variable, value)
        bench = bench_for(folder / "workspace", {name: CONFIGS[name][2] for name in BUILT})
        assert bench.doit(timeout=600) == 0, bench.output
        bench.first = bench.output
        yield bench


@pytest.mark.parametrize("package", packages("tosa", "ethos-u", "vgf"))
def test_what_tosa_knows_is_delegated(bench, package):
    backend, least, _ = CONFIGS[package]
    check_delegated(bench, package, BACKENDS[backend].backend_id, least)


@pytest.mark.parametrize("package", packages("tosa", "ethos-u"))
def test_npus_are_not_run(bench, package):
    check_not_run(bench, package, BACKENDS[CONFIGS[package][0]].execution.cannot_run())


@pytest.mark.parametrize("package", packages("vgf"))
def test_vgf_runs(bench, package):
    if arm_emulation.missing():
        check_not_run(bench, package, arm_emulation.missing())
        pytest.skip(f"{arm_emulation.missing()}; see docs/reference/backends.md")
    check_ran(bench, package)


@needs_one
def test_a_fresh_checkout_compiles_nothing(bench, tmp_path):
    check_fresh_checkout_hits(bench, tmp_path / "other", *BUILT)


@pytest.mark.parametrize("package", ["u55", "u65"])
@pytest.mark.skipif(bool(LACKS["ethos-u"]), reason=LACKS["ethos-u"])
def test_velas_report_is_in_the_log(bench, package):
    log = bench.root / "build" / ".logs" / package / "compile-classify.log"
    assert "Network summary" in log.read_text()
    assert "Network summary" not in bench.first


@pytest.mark.skipif(bool(LACKS["ethos-u"]), reason=LACKS["ethos-u"])
def test_velas_estimate_is_kept_shown_and_held_to_gates(tmp_path):
    """A partition found in the store keeps the estimate that it was compiled with."""
    config = ethos_u("ethos-u55-128")
    loose = {"max_npu_cycles": 10**7, "max_npu_sram": "1MB"}
    strict = {"max_npu_cycles": 100, "max_npu_sram": 100}
    own = {"classify": {"gates": {"max_npu_sram": "1MB"}}}
    bench = bench_for(
        tmp_path / "workspace",
        {
            "made": config | {"validate": {"gates": loose}},
            "found": config
            | {"emit": {"remove_view_copy": False}}
            | {"validate": {"gates": strict, "methods": own}},
        },
    )
    assert bench.doit("lower:made", timeout=600) == 0, bench.output
    logs = bench.root / "build" / ".logs"
    assert "Network summary" in (logs / "made" / "compile-classify.log").read_text()
    assert bench.doit("lower:found", timeout=600) == 0, bench.output
    assert "Network summary" not in (logs / "found" / "compile-classify.log").read_text()
    made, found = (
        {name: facts["delegation"]["estimates"] for name, facts in methods.items()}
        for methods in (manifest_of(bench, package)["methods"] for package in ("made", "found"))
    )
    assert found == made
    (features,), (classify,) = made["features"], made["classify"]
    assert features["backend"] == "EthosUBackend" and features["clock"] == 500_000_000
    assert classify["macs"] - features["macs"] == 8 * 4 * 4 * 10  # its head
    assert classify["cycles"] >= classify["busy_cycles"] > 0
    assert features["sram"] >= 3 * 8 * 8 and classify["off_chip_flash"] >= 8 * 4 * 4 * 10

    assert bench.doit("validate", timeout=600) != 0, bench.output
    assert f"takes {classify['cycles']:,} cycles according to vela, at most 100" in bench.output
    report = json.loads(bench.bytes_of("found", "report.json"))
    failed = {(gate["gate"], gate["method"]) for gate in report["gates"] if not gate["ok"]}
    cycles = {("max_npu_cycles", "features"), ("max_npu_cycles", "classify")}
    assert failed == {*cycles, ("max_npu_sram", "features")}
    assert json.loads(bench.bytes_of("made", "report.json"))["ok"]
    assert f"| {classify['cycles']:,} |" in bench.bytes_of("made", "report.md").decode()


# The CPU sorts, which splits the method into partitions that feed one another. Their bytes depend
# on the order of lowering, which upstream takes from a set of strings.
APART = """
import torch
from torch import nn
from torch.export import export


class Apart(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
            x = x + torch.sort(x, dim=-1)[0]
        return x


def export_methods():
    model = Apart().eval().requires_grad_(False)
    return {"forward": export(model, (torch.ones(1, 4, 8, 8),))}
"""


FLOWS = {flow.__name__: flow for flow in (Cond, Any, Map, Scan)}
# What each leaves to portable kernels in float. Arm's partitioners look only into branches of
# `cond`; there, integer constants are cast outside the delegate.
LEFT = {"Cond": {"dim_order_ops._to_dim_order_copy": 2}, "Any": {"aten.any": 1}}


@pytest.mark.skipif(bool(LACKS["vgf"]), reason=LACKS["vgf"])
@pytest.mark.parametrize("name", FLOWS)
def test_control_flow_beside_vgf(name, tmp_path, monkeypatch):
    """Branches of `cond` are delegated; of the others only the code around them, not the body."""
    module = FLOWS[name]
    for variable, value in arm_emulation.set_up(tmp_path / "layers").items():
        monkeypatch.setenv(variable, value)
    manager = lowered(module, "vgf")
    counts = describe_delegation(manager.exported_program("run"))
    assert set(counts["partitions"]) == {"VgfBackend"}
    emitted = emit(manager, EmitConfig(remove_view_copy=name != "Scan"))
    if arm_emulation.missing():
        pytest.skip(f"{arm_emulation.missing()}; see docs/reference/backends.md")
    check_runs(emitted, module, tmp_path)


@pytest.mark.skipif(bool(LACKS["tosa"]), reason=LACKS["tosa"])
@pytest.mark.parametrize("name", ["Cond", "Any"])
def test_branches_are_tosas(name):
    manager = lowered(FLOWS[name], "tosa", tosa_spec="TOSA-1.0+FP")
    counts = describe_delegation(manager.exported_program("run"))
    assert counts["partitions"] == {"TOSABackend": 3}  # the predicate, and each branch
    assert counts["undelegated"] == LEFT[name]


@pytest.mark.skipif(bool(LACKS["ethos-u"]), reason=LACKS["ethos-u"])
@pytest.mark.parametrize("name", ["Cond", "Any", "Map"])
def test_control_flow_beside_ethos_u(name):
    """The code around it is quantized and delegated; its body is neither."""
    data = {"model": "m", "methods": {"run": ethos_u("ethos-u85-256")["methods"]["features"]}}
    method = parse_config("p", data, "p.yaml").methods["run"]
    program = quantize(program_of(FLOWS[name]), method.quantize, [InputSet((X,))])
    manager = lower({"run": program}, {"run": make_filtered_partitioners(method.partitioners)})
    counts = describe_delegation(manager.exported_program("run"))
    assert set(counts["partitions"]) == {"EthosUBackend"}
    assert counts["undelegated"]["aten.addmm"] == 1  # the inner layer; the outer one is delegated
    assert counts["undelegated"]["aten.relu"] == 1
    emit(manager)


@needs_one
def test_bytes_are_those_of_the_joint_call_and_of_another_build(bench, monkeypatch):
    """Last, since it rebuilds what the other tests look at."""
    if not LACKS["vgf"]:
        monkeypatch.setenv("MODEL_CONVERTER_PATH", vgf.converter())  # otherwise it must be on PATH
    check_same_bytes(bench, BUILT)


@pytest.mark.skipif(bool(LACKS["tosa"]), reason=LACKS["tosa"])
def test_partitions_are_lowered_in_their_order_whatever_the_hash_seed(tmp_path):
    bench = bench_for(tmp_path / "workspace", {})
    (bench.root / "models" / "small.py").write_text(APART)
    (bench.root / "partition_configs" / "apart.yaml").write_text(
        "model: small\nmethods:\n  forward:\n    partitioners: [tosa: {tosa_spec: TOSA-1.0+FP}]\n"
    )
    made = set()
    for seed in ("1", "2", "3"):
        code = bench.doit(
            "-a", "lower", PYTHONHASHSEED=seed, PTE_PIPELINE_STORE=str(tmp_path / seed)
        )
        assert code == 0, bench.output
        made.add(bench.bytes_of("apart", "apart.pte"))
    assert len(made) == 1


@pytest.mark.skipif(bool(LACKS["tosa"]), reason=LACKS["tosa"])
def test_what_arm_leaves_has_its_reason():
    told = left_by("tosa", tosa_spec="TOSA-1.0+FP")
    assert told["aten.argmax"] == "TOSA ARGMAX produces int32 but aten.argmax returns int64"
    assert told["aten.sort"].startswith("Not included in BaseTOSASupportList")
    assert told["dim_order_ops._to_dim_order_copy"].startswith(
        "Output dtype torch.float64 is not supported in dim_order_ops._to_dim_order_copy.default"
    )
    assert "aten.exp" not in told
