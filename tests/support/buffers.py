"""Models that write to a buffer, for backends that keep buffers in their delegates."""

from __future__ import annotations

import torch
from torch import nn


class Window(nn.Module):
    """A model that assigns a slice of a concatenation to its buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.zeros(1, 8))

    def forward(self, x):
        new = torch.cat([self.window, x], 1)[:, -8:]
        self.window.copy_(new)
        return self.give(new)

    def give(self, new):
        return new.sum()


class Given(Window):
    def give(self, new):
        return new


class Copied(Window):
    def give(self, new):
        return new.clone()


class Scattered(Window):
    def forward(self, x):
        self.window[:, :-2] = self.window[:, 2:].clone()
        self.window[:, -2:] = x
        return self.window.sum()


class Assigned(Window):
    def forward(self, x):
        total = self.window + x.sum()
        self.window = x.repeat(1, 4)
        return total


class Added(Window):
    """A model whose in-place operator also reads the buffer, so upstream notices the mutation."""

    def forward(self, x):
        self.window.add_(x.repeat(1, 4))
        return self.window * 2


class Constant(Window):
    def forward(self, x):
        return self.window + x.repeat(1, 4)


class Used(Window):
    """A model that passes the new value to an operator that Vulkan doesn't delegate."""

    def give(self, new):
        return torch.acosh(new)


class UsedCopy(Window):
    def give(self, new):
        return torch.acosh(new.clone())
