"""Models with arguments that ExecuTorch's own kernels reject, each followed by its fixed form."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

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


class MixedFixed(Layer):
    def forward(self, x):
        return x.to(memory_format=LAST).contiguous() + x


class Joined(Layer):
    def forward(self, x):
        return torch.cat([x.to(memory_format=LAST), x], 1)


class JoinedFixed(Layer):
    def forward(self, x):
        return torch.cat([x.to(memory_format=LAST).contiguous(), x], 1)


class Normed(Layer):
    def forward(self, x):
        return self.norm(x.to(memory_format=LAST))


class NormedFixed(Layer):
    def forward(self, x):
        return self.norm(x.to(memory_format=LAST).contiguous())


class Summed(Layer):
    def forward(self, x):
        return torch.cumsum(x.to(memory_format=LAST), 1)


class SummedFixed(Layer):
    def forward(self, x):
        return torch.cumsum(x.to(memory_format=LAST).contiguous(), 1)


class Weighted(Layer):
    def __init__(self):
        super().__init__()
        self.conv.to(memory_format=LAST)

    def forward(self, x):
        return self.conv(x)


class WeightedFixed(Layer):
    def __init__(self):
        super().__init__()
        self.conv.to(memory_format=LAST).to(memory_format=torch.contiguous_format)

    def forward(self, x):
        return self.conv(x)


class Padded(Layer):
    def forward(self, x):
        return F.pad(x, (-1, 0))


class PaddedFixed(Layer):
    def forward(self, x):
        return x[..., 1:]


class Volumes(Layer):
    def forward(self, x):
        return self.volumes(torch.stack([x, x * 2, x * 3], 2))


class VolumesFixed(Layer):
    def forward(self, x):
        x = torch.stack([x, x * 2, x * 3], 2)
        weight, depth = self.volumes.weight, self.volumes.weight.shape[2]
        slices = [
            sum(F.conv2d(x[:, :, at + n], weight[:, :, n]) for n in range(depth))
            for at in range(x.shape[2] - depth + 1)
        ]
        return torch.stack(slices, 2) + self.volumes.bias.view(-1, 1, 1, 1)
