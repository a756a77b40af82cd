"""The ExecuTorch runtime as a device: portable kernels, and the backends that its wheel holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any
from weakref import WeakKeyDictionary

import torch

from pipeline.devices.bindings import Package
from pipeline.devices.interface import Declared, Device, PackageFiles
from pipeline.program.pte import Orders


@dataclass(frozen=True)
class _Loaded:
    package: Package
    method: str
    orders: Orders


class ExecutorchDevice(Device):
    """Runs packages on ExecuTorch's runtime. A loaded method has a Package of its own, since the
    state of a method is that of its Package."""

    def __init__(self) -> None:
        self._opened: WeakKeyDictionary[PackageFiles, Package] = WeakKeyDictionary()

    def methods(self, files: PackageFiles) -> list[str]:
        return self._open(files).methods()

    def declared(self, files: PackageFiles, method: str) -> Declared:
        return self._open(files).declared(method)

    def load(self, files: PackageFiles, method: str) -> _Loaded:
        package = Package(files)
        package.load(method)
        plan = files.plans.get(method)
        return _Loaded(package, method, plan.input_orders if plan else ())

    def call(self, loaded: _Loaded, values: Sequence[Any]) -> list[Any]:
        pairs = zip_longest(values, loaded.orders[: len(values)])
        return loaded.package.run(loaded.method, [_lay_out(*pair) for pair in pairs])

    def describe(self, files: PackageFiles, method: str) -> list[str]:
        plan = files.plans.get(method)
        if plan is None:
            return []
        delegates = (f"delegate {n}: {each.backend}" for n, each in enumerate(plan.delegates))
        return [*delegates, *(f"kernel {name}" for name in plan.operators)]

    def _open(self, files: PackageFiles) -> Package:
        if files not in self._opened:
            self._opened[files] = Package(files)
        return self._opened[files]


def _lay_out(value: Any, order: tuple[int, ...] | None) -> Any:
    """Lay a tensor's memory out in an order of its dimensions, with contiguous strides.

    The runtime reads memory in the order that the method declares and ignores a tensor's own
    strides, and the bindings do not take tensors of every layout.
    """
    if not isinstance(value, torch.Tensor) or order is None or value.ndim != len(order):
        return value
    return value.detach().permute(order).contiguous().view(value.shape)
