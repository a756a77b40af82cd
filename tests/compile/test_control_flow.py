"""Control flow on every backend that lowers with the plain install, and the refused cases."""

import json

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import export

from pipeline.backends import BACKENDS, PartitionerSpec
from pipeline.compile.emit import emit
from pipeline.compile.inspect.delegation import describe_delegation
from pipeline.compile.lower import lower
from pipeline.compile.module_filter import make_filtered_partitioners
from pipeline.config.emission import EmitConfig
from pipeline.devices.bindings import Package
from pipeline.devices.interface import PackageFiles
from pipeline.features.quantization.quantize import quantize
from pipeline.program.inputs import InputSet
from pipeline.program.operators import control_flow_name
from pipeline.store.errors import PipelineError
from tests.support.configs import parse_config
from tests.support.lowerable import bench_for

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))


class Layers(nn.Module):
    """One linear layer outside the control flow, one inside."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.outside, self.inside = nn.Linear(8, 8), nn.Linear(8, 8)


class Cond(Layers):
    def forward(self, x):
        y = self.outside(x)
        return torch.cond(
            y.sum() > 0, lambda y: torch.relu(self.inside(y)) * 2, lambda y: y - 1, (y,)
        )


class Any(Layers):
    """A predicate on a whole tensor, without a comparison after it."""

    def forward(self, x):
        y = self.outside(x)
        return torch.cond(
            (y > 0).any(), lambda y: torch.relu(self.inside(y)) * 2.5, lambda y: y - 1.5, (y,)
        )


class Map(Layers):
    def forward(self, x):
        return torch_map(lambda row: torch.relu(self.inside(row)) + 1, self.outside(x))


class Scan(Layers):
    def forward(self, x):
        def step(carry, row):
            new = torch.relu(self.inside(carry) + row)
            return new, new * 2

        return scan(step, x[0].clone(), self.outside(x))


class While(Layers):
    def forward(self, x):
        return while_loop(
            lambda i, y: i < 3,
            lambda i, y: (i + 1, torch.relu(self.inside(y))),
            (torch.tensor(0), self.outside(x)),
        )


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.loop = While()

    def forward(self, x):
        return self.loop(x)


def program_of(module):
    with torch.no_grad():
        return export(module().eval().requires_grad_(False), (X,))


def lowered(module, backend, **options):
    specs = []
    if backend != "portable":
        specs = [PartitionerSpec(name=backend, options=BACKENDS[backend].options(**options))]
    return lower({"run": program_of(module)}, {"run": make_filtered_partitioners(specs)})


def check_runs(manager, module, tmp_path):
    pte = tmp_path / "run.pte"
    pte.write_bytes(manager.buffer)
    expected = torch.utils._pytree.tree_leaves(module().eval()(X))
    for actual, wanted in zip(
        Package(PackageFiles.of(pte)).run("run", (X,)), expected, strict=True
    ):
        torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "backend",
    [
        "portable",
        "xnnpack",
        *(pytest.param(b, marks=pytest.mark.slow) for b in ("vulkan", "coreml")),
    ],
)
@pytest.mark.parametrize("module", [Cond, Map, Scan])
def test_control_flow_is_lowered(module, backend, tmp_path):
    manager = lowered(module, backend)
    counts = describe_delegation(manager.exported_program("run"))
    if backend != "portable":
        assert set(counts["partitions"]) == {BACKENDS[backend].backend_id}
    assert counts["delegated_nodes"] < counts["nodes"]  # the bodies are counted
    emitted = emit(manager, EmitConfig(remove_view_copy=module is not Scan))
    if backend in ("portable", "xnnpack"):
        check_runs(emitted, module, tmp_path)


def test_a_scan_that_upstream_emits_wrongly_is_emitted_so_with_a_warning(tmp_path, caplog):
    emitted = emit(lowered(Scan, "portable"))
    assert "run: scan reads its carry through a view" in caplog.text
    assert "remove_view_copy: false" in caplog.text
    assert emitted.buffer == lowered(Scan, "portable").to_executorch().buffer
    with pytest.raises(AssertionError):  # a new ExecuTorch may fix it
        check_runs(emitted, Scan, tmp_path)


@pytest.mark.parametrize(("module", "place"), [(While, ""), (Nested, " in module loop")])
def test_while_loop_is_refused_where_the_emitter_refuses_it(module, place):
    manager = lowered(module, "portable")
    with pytest.raises(PipelineError, match=rf"run: while_loop{place} can't be emitted.*scan"):
        emit(manager)


class NoGrad(Layers):
    """Like the rotary embeddings of transformers: decomposition inlines it."""

    def forward(self, x):
        with torch.no_grad():
            y = self.outside(x)
        return self.inside(y)


class Autocast(Layers):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.outside(x)
        return self.inside(y.float())


@pytest.mark.parametrize("module", [NoGrad, Autocast])
def test_what_lowering_inlines_is_lowered_to_the_bytes_of_the_joint_call(module):
    program, again = (export(module().eval().requires_grad_(False), (X,)) for _ in range(2))
    assert any(control_flow_name(node) for node in program.graph.nodes)
    partitioners = {"run": [XnnpackPartitioner()]}
    joint = to_edge_transform_and_lower({"run": program}, partitioner=partitioners)
    assert emit(lower({"run": again}, partitioners)).buffer == joint.to_executorch().buffer


QUANTIZED = """
import torch
from torch import nn
from torch.export import export


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.outside, self.inside = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.outside(x)
        return torch.cond(
            y.sum() > 0, lambda y: torch.relu(self.inside(y)) * 2.5, lambda y: y - 1.5, (y,)
        )


class Plain(nn.Linear):
    pass


def export_methods():
    x = (torch.ones(3, 8),)
    made = {"choose": Net(), "plain": Plain(8, 8)}
    return {name: export(m.eval().requires_grad_(False), x) for name, m in made.items()}


def calibration_inputs(method):
    made = torch.Generator().manual_seed(0)
    return [(torch.randn(3, 8, generator=made),) for _ in range(16)]
"""


@pytest.mark.slow
def test_a_person_is_told_what_stays_float_in_a_quantized_method(tmp_path):
    """The log of the quantization, the manifest and the report all say so."""
    method = {"quantize": {"quantizer": "xnnpack"}, "partitioners": ["xnnpack"]}
    config = {
        "methods": {"choose": method, "plain": method},
        "validate": {"atol": 1.0, "min_sqnr": 15.0},
    }
    bench = bench_for(tmp_path / "workspace", {"int8": config})
    (bench.root / "models" / "small.py").write_text(QUANTIZED)
    assert bench.doit(timeout=300) == 0, bench.output
    logs = bench.root / "build" / ".logs" / "int8"
    told = "choose: its control flow is not quantized: 4 of its operators compute in floating point"
    assert told in (logs / "quantize-choose.log").read_text()
    assert "not quantized" not in (logs / "quantize-plain.log").read_text()
    facts = json.loads(bench.bytes_of("int8", "manifest.json"))["methods"]
    assert facts["choose"]["left_float"] == 4  # linear, relu, mul and sub
    assert "left_float" not in facts["plain"]
    report = bench.bytes_of("int8", "report.md").decode()
    assert "| `choose` | 4 | control flow, whose bodies no quantizer looks into |" in report
    assert "`plain`" not in report.split("## Not quantized")[1].split("##")[0]


@pytest.mark.slow
def test_a_scan_in_a_quantized_method_is_refused():
    """Torch fails on a scan with a traceback; a new torch may fix it."""
    data = {"quantize": {"quantizer": "xnnpack"}, "partitioners": ["xnnpack"]}
    method = parse_config("p", {"model": "m", "methods": {"run": data}}, "p.yaml").methods["run"]
    program = quantize(program_of(Scan), method.quantize, [InputSet((X,))])
    with pytest.raises(PipelineError, match=r"run: scan is in a quantized method.*quantize"):
        lower({"run": program}, {"run": make_filtered_partitioners(method.partitioners)})
