"""When references that change one module are compared in sequence."""

import pytest
import yaml

from pipeline.features.references.measuring import counts_sequences
from tests.support.bench import Bench
from tests.support.configs import parse_config

MODEL = """
import torch
from torch.export import export


class Kept:
    value = torch.zeros(3)


class Step(torch.nn.Module):
    def __init__(self, kept, reads):
        super().__init__()
        self.kept, self.reads = kept, reads

    def forward(self, x):
        if self.reads:
            return x + self.kept.value
        self.kept.value = x * 2
        return x * 2


def export_methods():
    kept = Kept()
    steps = {"prefill": Step(kept, False), "decode": Step(kept, True)}
    pairs = {}
    for name, step in steps.items():
        pairs[name] = (export(step, (torch.ones(3),)), step)
        kept.value = torch.zeros(3)
    return pairs
"""


@pytest.mark.parametrize(
    ("planning", "validate", "counts"),
    [
        ({}, {}, True),  # no common buffer, but maybe an attribute that tracing lost
        ({"share_mutable_buffers": True}, {}, True),
        ({"share_mutable_buffers": False}, {}, False),
        ({"alloc_mutable_buffers": False}, {}, False),
        ({"share_mutable_buffers": True}, {"sequences": []}, False),
    ],
)
def test_sequences_count_unless_the_config_splits_state(planning, validate, counts):
    methods = {name: {"partitioners": []} for name in ("prefill", "decode")}
    emit = {"memory_planning": planning}
    config = {"model": "m", "methods": methods, "emit": emit, "validate": validate}
    assert counts_sequences(parse_config("p", config, "f.yaml")) is counts


@pytest.mark.slow
def test_an_attribute_that_one_method_fills_and_another_reads_is_found(tmp_path):
    """Each export by itself agrees with its eager module."""
    bench = Bench(tmp_path)
    for name in ("models", "partition_configs"):
        (tmp_path / name).mkdir()
    (tmp_path / "dodo.py").write_text("from pipeline.tasks import *\n")
    (tmp_path / "models" / "m.py").write_text(MODEL)
    methods = {name: {"partitioners": []} for name in ("prefill", "decode")}
    config = {"model": "m", "methods": methods, "validate": {"inputs": 1, "cases": []}}
    path = tmp_path / "partition_configs" / "p.yaml"
    path.write_text(yaml.safe_dump(config))
    assert bench.doit() != 0
    report = (tmp_path / "build" / "p" / "report.md").read_text()
    assert "decode on example 0 (call 2 of prefill > decode)" in report
    # If the config splits them on purpose, that is what it asks for.
    planning = {"memory_planning": {"share_mutable_buffers": False}}
    path.write_text(yaml.safe_dump({**config, "emit": planning}))
    assert bench.doit() == 0
