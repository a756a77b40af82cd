"""Modules exported in training mode are named before anything runs."""

import torch
from torch import nn
from torch.export import export

from pipeline.features.lowering_warnings.warnings import find_training_mode
from pipeline.moments import show_error

X = torch.randn(4, 8)


def warnings(module):
    return find_training_mode(export(module, (X,)))


def test_operators_in_training_mode_are_named_once_each():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.BatchNorm1d(8), nn.Dropout(0.1))
    dropout, norm = warnings(model)
    assert (dropout["operator"], dropout["module"]) == ("aten.dropout", "1")
    assert dropout["what"] == (
        "is in training mode (2 calls); call .eval() on the model before the export (functions "
        "such as F.dropout also need `training=self.training`), or declare that it samples, "
        "`validate: {random: true}`"
    )
    assert show_error(dropout["what"], "warning") == f"{dropout['what']} [PTE373]"
    assert norm["operator"] == "aten.batch_norm" and norm["module"] == "2"
    assert warnings(model.eval()) == []


def test_sampling_has_no_mode():
    class Samples(nn.Module):
        def forward(self, x):
            return x + torch.rand(4, 8)

    assert warnings(Samples()) == []
