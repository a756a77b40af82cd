"""Control flow on every backend that lowers with the plain install, and what is refused of it."""

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import export

from pipeline.backends import BACKENDS, PartitionerSpec
from pipeline.config import EmitConfig
from pipeline.confine import confined_partitioners
from pipeline.delegation import count_delegation
from pipeline.emission import emit
from pipeline.errors import PipelineError
from pipeline.lowering import lower
from pipeline.runtime import Package

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))


class Layers(nn.Module):
    """One linear layer outside of the control flow, one inside."""

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


def lowered(module, backend):
    specs = []
    if backend != "portable":
        specs = [PartitionerSpec(name=backend, options=BACKENDS[backend].options())]
    return lower({"run": program_of(module)}, {"run": confined_partitioners(specs)})


def check_runs(manager, module, tmp_path):
    pte = tmp_path / "run.pte"
    pte.write_bytes(manager.buffer)
    expected = torch.utils._pytree.tree_leaves(module().eval()(X))
    for actual, wanted in zip(Package(pte).run("run", (X,)), expected, strict=True):
        torch.testing.assert_close(actual, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", ["portable", "xnnpack", "vulkan", "coreml"])
@pytest.mark.parametrize("module", [Cond, Map, Scan])
def test_control_flow_is_lowered(module, backend, tmp_path):
    manager = lowered(module, backend)
    counts = count_delegation(manager.exported_program("run"))
    if backend != "portable":
        assert set(counts.partitions) == {BACKENDS[backend].backend_id}
    assert counts.delegated_nodes < counts.nodes  # the bodies are counted
    emitted = emit(manager, EmitConfig(remove_view_copy=module is not Scan))
    if backend in ("portable", "xnnpack"):
        check_runs(emitted, module, tmp_path)


def test_a_scan_that_would_be_wrong_is_refused_and_upstream_is_wrong(tmp_path):
    words = r"run: scan reads its carry through a view.*remove_view_copy: false"
    with pytest.raises(PipelineError, match=words):
        emit(lowered(Scan, "portable"))
    with pytest.raises(AssertionError):  # what upstream does; a new ExecuTorch may mend it
        check_runs(lowered(Scan, "portable").to_executorch(), Scan, tmp_path)


@pytest.mark.parametrize(("module", "place"), [(While, ""), (Nested, " in module loop")])
def test_while_loop_is_refused(module, place):
    with pytest.raises(PipelineError, match=rf"run: while_loop{place} can't be emitted.*scan"):
        lowered(module, "portable")
