"""XNNPACK's passes without their redundant work, against ExecuTorch's preprocess function.

Each partition must give the same payload and the same named data.
"""

import copy

import pytest
import torch
from executorch.backends.xnnpack._passes import XNNPACKPassManager
from executorch.backends.xnnpack.partition.graphs import bilinear_2d, sdpa
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir.pass_base import _ExportPassBase
from torch import nn
from torch.export import Dim, export
from torch.nn import functional as F

from pipeline.backends import PartitionerSpec, make_partitioners
from pipeline.compile.lower import lower
from pipeline.features.quantization.quantize import quantize
from pipeline.features.speedups.patches import fast_lowering
from pipeline.features.xnnpack import passes
from pipeline.features.xnnpack.entries import XnnpackOptions, XnnpackQuantize
from pipeline.program.patching import digest_source
from tests.support.matrix import in_tiers


class Convolutions(nn.Module):
    """Fused and separate batch norms, fused activations, a one-dimensional convolution, slopes, and
    a concatenation that is split."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.alone, self.slope = nn.BatchNorm2d(4), nn.PReLU(1)
        self.conv1d, self.out = nn.Conv1d(4, 4, 3), nn.Linear(4, 2)

    def forward(self, x):
        x = F.hardtanh(self.bn(self.conv(x)))
        x = F.max_pool2d(self.slope(self.alone(torch.sigmoid(x))), 2, 2)
        y = self.conv1d(x.flatten(2)).mean(2)
        return torch.relu(self.out(y)), torch.cat([x * n for n in range(1, 8)], 1)


class Plain(nn.Module):
    """Padding, a convolution, a pool, a sum and a linear layer, all of which int8 supports."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        x = torch.relu(self.first(F.pad(x, (1, 1, 1, 1))))
        x = x + self.second(F.max_pool2d(x, 3, 1, 1))
        return self.out(x.mean((2, 3))), torch.cat([x, x], 1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8)

    def forward(self, x, mask):
        query, key, value = (
            each(x).unflatten(-1, (2, 4)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        x = x + F.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2).flatten(2)
        return F.gelu(self.norm(x)), F.softmax(x, -1)


class Upsampling(nn.Module):
    def forward(self, x):
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
        return F.interpolate(torch.relu(x), size=(5, 7), mode="bilinear")


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = torch.cond(x.sum() > 0, lambda x: x.clone() * 2, lambda x: x + x, (self.linear(x),))
        return torch.sigmoid(x)


def image(model, *shape):
    return export(model().eval().requires_grad_(False), (torch.randn(shape or (1, 3, 8, 8)),))


def attention(dtype=torch.float32, **options):
    model = Attention().eval().requires_grad_(False).to(dtype)
    return export(
        model, (torch.randn(2, 6, 8, dtype=dtype), torch.zeros(6, 6, dtype=dtype)), **options
    )


def quantized(program, dynamic):
    return quantize(program, XnnpackQuantize(quantizer="xnnpack", dynamic=dynamic), [])


N = Dim("n", min=2, max=16)
PROGRAMS = {
    "convolutions": lambda: image(Convolutions),
    "static int8": lambda: quantized(image(Plain), False),
    "dynamic int8": lambda: quantized(attention(), True),
    "fp16": lambda: attention(torch.float16),
    "dynamic sizes": lambda: attention(dynamic_shapes=({1: N}, {0: N, 1: N})),
    "no bound": lambda: attention(dynamic_shapes=({0: Dim("m", min=2)}, None)),
    "bilinear": lambda: image(Upsampling),
    "branches": lambda: image(Branching, 2, 4),
}
QUICK = ("convolutions",)
OPTIONS = {"each its own": {"per_op_mode": True}, "weights outside": {
    "force_non_static_weights_for_f32_linear": True
}}  # fmt: skip


def compare(program, **options):
    """Lower a program with each partition both ways; return how many graphs each way traced."""
    plain, traced, counts = XnnpackBackend.preprocess, [], []
    trace = _ExportPassBase.call

    def counting(self, module):
        traced.append(module)
        return trace(self, module)

    def run(partition, specs):
        before = len(traced)
        return plain(partition, specs), len(traced) - before

    def both(partition, specs):
        expected, before = run(copy.deepcopy(partition), specs)
        with fast_lowering(), passes.fast_passes():
            result, after = run(partition, specs)
        assert result.processed_bytes == expected.processed_bytes
        assert result.data_store_output == expected.data_store_output
        assert result.debug_handle_map == expected.debug_handle_map
        counts.append((before, after))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_ExportPassBase, "call", counting)
        patch.setattr(passes, "_is_known", lambda: True)  # all but the count
        patch.setattr(XnnpackBackend, "preprocess", staticmethod(both))
        lower({"forward": program}, {"forward": [XnnpackPartitioner(**options)]})
    return counts


@pytest.mark.parametrize(
    "name", in_tiers(PROGRAMS, ["static int8", "fp16", "branches", "dynamic sizes"], QUICK)
)
def test_payload_is_that_of_executorch(name):
    counts = compare(PROGRAMS[name]())
    assert counts and all(after < before for before, after in counts)
    if name == "dynamic sizes":  # no pass changes dynamic sizes
        assert {after for _, after in counts} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_payload_is_that_of_executorch_with_other_options(options):
    assert compare(attention(), **options)


def test_passes_are_those_that_this_was_written_for():
    """On failure, look at what changed, and fix or remove `FastPassManager`."""
    assert digest_source(*passes.SOURCES) == passes.known_digest()
    assert passes._has_known_patterns()


def test_no_partitioner_looks_for_who_calls_it():
    """Partitioners look for callers of ExecuTorch's `to_backend` to suggest another function."""
    assert hasattr(XnnpackPartitioner, "_check_if_called_from_to_backend")
    (own,) = make_partitioners([PartitionerSpec(name="xnnpack", options=XnnpackOptions())])
    assert type(own) is XnnpackPartitioner and not own._check_if_called_from_to_backend()


def test_other_release_is_left_alone(monkeypatch):
    monkeypatch.setattr(passes, "known_digest", lambda: "another")
    passes._is_known.cache_clear()
    with fast_lowering(), passes.fast_passes():
        from executorch.backends.xnnpack import xnnpack_preprocess

        assert xnnpack_preprocess.XNNPACKPassManager is XNNPACKPassManager
    passes._is_known.cache_clear()


@pytest.mark.slow
def test_patterns_hold_the_operators_by_which_they_are_passed_over():
    assert all(passes.find_operators(each) >= passes.SDPA for each in sdpa.get_graphs())
    found = [passes.find_operators(each) for each in bilinear_2d.get_graphs()]
    assert found and all(each == passes.BILINEAR for each in found)
