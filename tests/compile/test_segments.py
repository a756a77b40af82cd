"""The sequence of a method's delegates and the operators between them, on every kind of graph."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pipeline.compile.inspect.delegation import describe_delegation
from tests.compile.test_control_flow import Cond, Map, lowered

OURS = SimpleNamespace(
    backend_id="Ours", lowering=SimpleNamespace(kernels="aten", make_passes=None)
)


class Between(nn.Module):
    """Two convolutions, with a sort in between that no delegate takes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.second(torch.sort(torch.relu(self.first(x)))[0] * 2)


def segments(manager, partitioners=None):
    return describe_delegation(manager.exported_program("run"), partitioners)["segments"]


@pytest.mark.parametrize(
    "backend", ["portable", "xnnpack", pytest.param("vulkan", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("module", [Between, Cond, Map])
def test_every_node_is_in_one_segment(module, backend):
    manager = lowered(module, backend)
    counts, row = describe_delegation(manager.exported_program("run")), segments(manager)
    inside = [each for each in row if each["backend"] is not None]
    outside = sum((Counter(s["operators"]) for s in row if s["backend"] is None), Counter())
    assert sum(s["nodes"] for s in row) == counts["nodes"]
    assert sum(s["nodes"] for s in inside) == counts["delegated_nodes"]
    assert Counter(s["backend"] for s in inside) == Counter(counts["partitions"])
    assert dict(outside) == counts["undelegated"]


def test_segments_stand_in_the_order_of_the_graph():
    row = segments(lowered(Between, "xnnpack"))
    sort = next(n for n, s in enumerate(row) if any("sort" in name for name in s["operators"]))
    assert row[sort]["backend"] is None
    assert "XnnpackBackend" in [s["backend"] for s in row[:sort]]
    assert "XnnpackBackend" in [s["backend"] for s in row[sort + 1 :]]


def test_a_body_of_control_flow_stands_where_it_is_called():
    """The comparison that chooses between the branches comes before them."""
    row = segments(lowered(Cond, "portable"))
    assert len(row) == 1
    names = list(row[0]["operators"])
    assert names.index("aten.gt.Scalar") < names.index("aten.relu")


def test_kernels_of_a_backend_are_segments_of_its_own():
    row = segments(lowered(Between, "xnnpack"), [SimpleNamespace(backend=OURS)])
    left = [name for s in row if s["backend"] is None for name in s["operators"]]
    assert "Ours" in [s["backend"] for s in row]
    assert not [name for name in left if name.startswith("aten.")]
