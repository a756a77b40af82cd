"""Kernels that refuse what they are given: named with operator and line, and what mends it.

Each remedy is followed here, and the package then gives what its source gives.
"""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import export

from pipeline.devices.bindings import Package
from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.store.remedies import add_remedy
from tests.support.located import build

CONTIGUOUS = "call `.contiguous()` on it"
LAST = torch.channels_last
X = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4)
        self.volumes = nn.Conv3d(4, 2, (2, 3, 3))


class Mixed(Layer):
    def forward(self, x):
        return x.to(memory_format=LAST) + x


class MixedMended(Layer):
    def forward(self, x):
        return x.to(memory_format=LAST).contiguous() + x


class Joined(Layer):
    def forward(self, x):
        return torch.cat([x.to(memory_format=LAST), x], 1)


class JoinedMended(Layer):
    def forward(self, x):
        return torch.cat([x.to(memory_format=LAST).contiguous(), x], 1)


class Normed(Layer):
    def forward(self, x):
        return self.norm(x.to(memory_format=LAST))


class NormedMended(Layer):
    def forward(self, x):
        return self.norm(x.to(memory_format=LAST).contiguous())


class Summed(Layer):
    def forward(self, x):
        return torch.cumsum(x.to(memory_format=LAST), 1)


class SummedMended(Layer):
    def forward(self, x):
        return torch.cumsum(x.to(memory_format=LAST).contiguous(), 1)


class Weighted(Layer):
    def __init__(self):
        super().__init__()
        self.conv.to(memory_format=LAST)

    def forward(self, x):
        return self.conv(x)


class WeightedMended(Layer):
    def __init__(self):
        super().__init__()
        self.conv.to(memory_format=LAST).to(memory_format=torch.contiguous_format)

    def forward(self, x):
        return self.conv(x)


class Padded(Layer):
    def forward(self, x):
        return F.pad(x, (-1, 0))


class PaddedMended(Layer):
    def forward(self, x):
        return x[..., 1:]


class Volumes(Layer):
    def forward(self, x):
        return self.volumes(torch.stack([x, x * 2, x * 3], 2))


class VolumesMended(Layer):
    def forward(self, x):
        x = torch.stack([x, x * 2, x * 3], 2)
        weight, depth = self.volumes.weight, self.volumes.weight.shape[2]
        slices = [
            sum(F.conv2d(x[:, :, at + n], weight[:, :, n]) for n in range(depth))
            for at in range(x.shape[2] - depth + 1)
        ]
        return torch.stack(slices, 2) + self.volumes.bias.view(-1, 1, 1, 1)


REFUSED = [
    (Mixed, MixedMended, "aten.add.Tensor", "aten::add.out", CONTIGUOUS),
    (Joined, JoinedMended, "aten.cat.default", "aten::cat.out", CONTIGUOUS),
    (Normed, NormedMended, "aten.group_norm.default", "aten::native_group_norm.out", CONTIGUOUS),
    (Summed, SummedMended, "aten.cumsum.default", "aten::cumsum.out", CONTIGUOUS),
    (
        Weighted,
        WeightedMended,
        "aten.conv2d.default",
        "aten::convolution.out",
        "`.to(memory_format=torch.contiguous_format)`",
    ),
    (Padded, PaddedMended, "aten.pad.default", "aten::constant_pad_nd.out", "`x[..., 1:]`"),
    (Volumes, VolumesMended, "aten.conv3d.default", "aten::convolution.out", "functional.conv2d"),
]


def built(module):
    return build({"run": export(module().eval().requires_grad_(False), (X,))})


def line_of(module):
    lines, start = inspect.getsourcelines(module.forward)
    return start + len(lines) - 1


@pytest.mark.parametrize(("module", "mended", "operator", "kernel", "remedy"), REFUSED)
def test_a_refusing_kernel_is_named_and_its_remedy_mends_it(
    module, mended, operator, kernel, remedy
):
    made = built(module)
    with pytest.raises(DeviceError) as refused:
        Package(PackageFiles("small.pte", made.pte)).run("run", (X,))
    instructions = made.emission.instructions("run", made.lowered["run"])
    assert refused.value.code == 0x12
    assert refused.value.instruction in dict(instructions.nodes)
    assert f"in operator {kernel}: 0x12" in refused.value.reason
    assert remedy in add_remedy(refused.value.reason)
    (culprit,) = made.located("run", (X,)).culprits
    assert (culprit["operator"], culprit["kernel"]) == (operator, kernel)
    assert culprit["line"] == f"tests/validate/test_refusing_kernels.py:{line_of(module)}"
    assert culprit["what"].startswith(f"ExecuTorch's runtime refuses {operator}")
    assert remedy in culprit["what"]

    (actual,) = Package(PackageFiles("small.pte", built(mended).pte)).run("run", (X,))
    torch.testing.assert_close(actual, module().eval()(X), atol=1e-5, rtol=1e-5)


def test_what_the_runtime_says_is_kept_whole_but_for_its_tensors():
    with pytest.raises(DeviceError) as refused:
        Package(PackageFiles("small.pte", built(Joined).pte)).run("run", (X,))
    assert refused.value.reason == (
        "fails: wrong dtype or number of inputs, or an argument that an operator refused (0x12); "
        "Check failed (all_contiguous || all_channels_last): 2 input tensors have different dim "
        "orders; KernelCall failed at instruction 0:1 in operator aten::cat.out: 0x12"
    )
