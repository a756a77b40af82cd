"""Partitions that differ only in their constants: each becomes what ExecuTorch makes of it."""

import copy

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from torch import nn
from torch.export import Dim, export

from pipeline.backends import BACKENDS
from pipeline.compile.lower import lower
from pipeline.features.preprocess_cache.key import describe
from pipeline.features.preprocess_cache.shared_passes import (
    _READING,
    _WRITING,
    _RecordingTable,
    current_passes,
    sharing_passes,
)
from pipeline.features.quantization.quantize import quantize
from pipeline.features.speedups.patches import fast_lowering
from pipeline.features.torchao.entries import TorchaoQuantize
from pipeline.features.xnnpack import passes
from pipeline.features.xnnpack.entries import XnnpackQuantize
from tests.support.matrix import in_tiers

XNNPACK = BACKENDS["xnnpack"].preprocessing.make_cache_scope()


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(-2, -1)
        return self.norm(x + torch.softmax(scores, -1) @ x)


class Layers(nn.Module):
    """Layers that differ in their weights; the last one contains a weight twice."""

    def __init__(self, width=8):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(width) for _ in range(4))
        self.layers[3].key.weight = self.layers[3].query.weight

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            x = x + torch.cumsum(x, 1)  # no partition takes it
        return x


class Convolutions(nn.Module):
    """Convolutions: some with a batch norm folded into their weights, some one-dimensional."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.folded = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(3))
        self.alone = nn.ModuleList(nn.Conv1d(3, 3, 1) for _ in range(3))

    def forward(self, x):
        for folded, norm, alone in zip(self.folded, self.norms, self.alone, strict=True):
            x = torch.cumsum(norm(folded(x)), 1)
            x = torch.cumsum(alone(x.flatten(2)).view_as(x), 1)
        return x


def export_layers(width=8, **options):
    model = Layers(width).eval().requires_grad_(False)
    return export(model, (torch.randn(2, 6, width),), **options)


def export_convolutions():
    return export(Convolutions().eval().requires_grad_(False), (torch.randn(1, 3, 8, 8),))


def quantize_dynamically():
    return quantize(export_layers(), XnnpackQuantize(quantizer="xnnpack", dynamic=True), [])


def quantize_to_4_bits():
    scheme = TorchaoQuantize(
        quantizer="torchao", scheme="int8_dynamic_activation_int4_weight", group_size=32
    )
    return quantize(export_layers(64), scheme, [])


PROGRAMS = {
    "float": export_layers,
    "dynamic sizes": lambda: export_layers(dynamic_shapes=({1: Dim("n", min=2, max=16)},)),
    "dynamic int8": quantize_dynamically,
    "4 bits": quantize_to_4_bits,
    "convolutions": export_convolutions,
}


class Comparison:
    """Preprocesses partitions with shared passes and with ExecuTorch alone, to equal bytes."""

    def __init__(self):
        self.count = 0
        self._preprocess = XnnpackBackend.preprocess

    def preprocess(self, partition, specs):
        expected = self._preprocess(copy.deepcopy(partition), specs)
        with passes.fast_passes():
            current_passes().expect(partition, describe(partition, specs, XNNPACK))
            result = self._preprocess(partition, specs)
        assert result.processed_bytes == expected.processed_bytes
        assert result.data_store_output == expected.data_store_output
        self.count += 1
        return result


def change_constants(partition, generator):
    """Return a copy with other values in all constants, and other debug handles."""
    changed = copy.deepcopy(partition)
    for tensor in {**changed.state_dict, **changed.constants}.values():
        if tensor.is_floating_point():
            values = torch.rand(tensor.shape, generator=generator) + 0.1
            if torch.rand((), generator=generator) < 0.2:
                values = torch.ones(tensor.shape)  # equal to others
        else:
            values = torch.randint(-8, 8, tensor.shape, generator=generator)
        with torch.no_grad():
            tensor.copy_(values)
    for node in changed.graph.nodes:
        if node.meta.get("debug_handle"):
            node.meta["debug_handle"] += 1000
    return changed


@pytest.mark.parametrize("name", in_tiers(PROGRAMS, ["float"]))
def test_layers_share_passes(name, monkeypatch):
    comparison = Comparison()
    with sharing_passes(), fast_lowering():
        program = PROGRAMS[name]()
        monkeypatch.setattr(XnnpackBackend, "preprocess", staticmethod(comparison.preprocess))
        lower({"forward": program}, {"forward": [XnnpackPartitioner()]})
        shared = current_passes().shared
    # Folded batch norms and one-dimensional convolutions read weights.
    assert shared == 0 if name == "convolutions" else shared >= comparison.count / 4


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize("name", PROGRAMS)
def test_any_constants_and_handles_are_filled_in(name, monkeypatch):
    """2,000 partitions in total."""
    comparison, partitions = Comparison(), []

    def collect(partition, specs):
        partitions.append((copy.deepcopy(partition), specs))
        return comparison.preprocess(partition, specs)

    generator = torch.Generator().manual_seed(0)
    with sharing_passes(), fast_lowering():
        monkeypatch.setattr(XnnpackBackend, "preprocess", staticmethod(collect))
        lower({"forward": PROGRAMS[name]()}, {"forward": [XnnpackPartitioner()]})
        while comparison.count < 2000 / len(PROGRAMS):
            for partition, specs in partitions:
                comparison.preprocess(change_constants(partition, generator), specs)


@pytest.mark.parametrize("access", [*_READING, *_WRITING])
def test_table_records_access_to_constants(access):
    table = _RecordingTable(a=1)
    arguments = {
        "__getitem__": ["a"],
        "get": ["a"],
        "pop": ["a"],
        "__delitem__": ["a"],
        "__setitem__": ["a", 2],
        "setdefault": ["a"],
        "update": [{}],
        "__or__": [{}],
        "__ror__": [{}],
        "__ior__": [{}],
        "__eq__": [{}],
    }
    assert "a" in table and list(table) == ["a"] and not table.is_touched
    getattr(table, access)(*arguments.get(access, []))
    assert table.is_touched


@pytest.mark.parametrize("make", [dict, lambda table: {**table}, copy.copy, copy.deepcopy])
def test_copies_of_a_table_are_recorded(make):
    table = _RecordingTable(a=1)
    assert make(table)["a"] == 1 and table.is_touched


def test_user_code_sees_no_shared_passes():
    with sharing_passes(patches=False):
        assert current_passes() is None
    with sharing_passes(kind="quantize"):
        assert current_passes() is None
