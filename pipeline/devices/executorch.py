"""The ExecuTorch runtime as a device: portable kernels, and the backends that its wheel holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from pipeline.devices.bindings import Package
from pipeline.devices.interface import (
    Computation,
    Declared,
    DeviceData,
    DeviceError,
    DeviceId,
    PackageFiles,
    Runtime,
)
from pipeline.devices.plans import Orders, read_input_orders, read_plans


class ExecutorchRuntime(Runtime):
    """Programs are PackageFiles. Kernels draw from the C++ library's own random numbers, so a seed
    changes nothing."""

    type = "executorch"

    def __init__(self) -> None:
        super().__init__()
        self._opened: WeakKeyDictionary[PackageFiles, Package] = WeakKeyDictionary()
        self._orders: WeakKeyDictionary[PackageFiles, dict[str, Orders]] = WeakKeyDictionary()

    def methods(self, program: PackageFiles) -> list[str]:
        return self._open(program).methods()

    def declared(self, program: PackageFiles, method: str) -> Declared:
        return self._open(program).declared(method)

    def load(self, computation: Computation) -> Package:
        """A Package of its own, since the state of a method is that of its Package."""
        package = open_package(computation.program)
        package.load(computation.name)
        return package

    def to_device(self, value: Any, device: DeviceId | None = None) -> DeviceData:
        """Laid out as it is: each call copies the value."""
        return super().to_device(value, device)

    def call(self, computation: Computation, values: Sequence[Any]) -> Sequence[Any]:
        """Whatever way the values lie: the runtime reads memory in the order that the method
        declares, and looks at no tensor's own."""
        orders = self._input_orders(computation.program).get(computation.name, ())
        laid = zip_longest(values, orders[: len(values)])
        return computation.compiled.run(computation.name, [_in_memory(v, o) for v, o in laid])

    def text(self, computation: Computation) -> str:
        plan = read_plans(computation.program.contents()).get(computation.name)
        if plan is None:
            raise DeviceError(f"{computation.name}: ", "has no plan that can be read")
        delegates = (f"  delegate {number}: {d}" for number, d in enumerate(plan.delegates))
        kernels = (f"  kernel {name}" for name in plan.operators)
        return "\n".join([str(computation), *delegates, *kernels])

    def prepare_to_exit(self) -> None:
        self._opened.clear()
        self._orders.clear()

    def _input_orders(self, program: PackageFiles) -> dict[str, Orders]:
        if program not in self._orders:
            self._orders[program] = read_input_orders(program.contents())
        return self._orders[program]

    def _open(self, program: PackageFiles) -> Package:
        """For questions that load nothing."""
        if program not in self._opened:
            self._opened[program] = open_package(program)
        return self._opened[program]


def _in_memory(value: Any, order: tuple[int, ...] | None) -> Any:
    """A tensor whose memory is the value's in this order of its dimensions, and which says nothing
    of it: the bindings take no tensor of every layout."""
    if not isinstance(value, torch.Tensor) or order is None or value.ndim != len(order):
        return value
    return value.detach().permute(order).contiguous().view(value.shape)


def open_package(files: PackageFiles) -> Package:
    in_memory = not isinstance(files.pte, Path)
    return Package(files.pte, files.data() if in_memory else files.ptds, files.name)
