"""A module that no backend takes as a whole, and the reasons that partitioners give."""

from __future__ import annotations

from typing import Any

import torch

from pipeline.backends import BACKENDS, PartitionerSpec, edge_operators
from pipeline.compile.edge_config import make_edge_config
from pipeline.compile.inspect.delegation import describe_delegation
from pipeline.compile.lower import lower
from pipeline.compile.module_filter import make_filtered_partitioners
from pipeline.config.edge import EdgeConfig


class Refused(torch.nn.Module):
    """Operators that backends lack, or support only in another form, and an unsupported dtype."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        y = torch.exp(x)
        z = torch.add(y, x, alpha=2)
        return z, torch.asinh(y), torch.argmax(y), torch.sort(y)[0], torch.trunc(y), y.double()


def left_by(backend: str, **options: Any) -> dict[str, str]:
    """Return the reason why a backend leaves each operator that it doesn't delegate."""
    spec = PartitionerSpec(name=backend, options=BACKENDS[backend].options(**options))
    program = torch.export.export(Refused(), (torch.ones(3, 8),))
    operators = edge_operators([spec.backend])
    partitioners = {"run": make_filtered_partitioners([spec])}
    lowered = lower({"run": program}, partitioners, edge=make_edge_config(EdgeConfig(), operators))
    counts = describe_delegation(lowered.exported_program("run"))
    assert len(counts["left"]) == sum(counts["undelegated"].values())
    return {left["operator"]: left["reason"] for left in counts["left"]}
