"""A layer whose result is scaled by a team's custom operator."""

import operators.team_ops  # noqa: F401
import torch


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        return torch.ops.team.scale(self.layer(x), 2.0)


def export_methods():
    torch.manual_seed(0)
    return {"forward": torch.export.export(Scaled(), (torch.randn(2, 4),))}
