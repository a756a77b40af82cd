"""The ExecuTorch runtime as a device: portable kernels, and the backends that its wheel holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.devices.bindings import Package
from pipeline.devices.interface import Device, PackageFiles


class ExecutorchDevice(Device):
    """Runs packages on ExecuTorch's runtime. A loaded method has a Package of its own, since the
    state of a method is that of its Package."""

    def load(self, files: PackageFiles, method: str) -> tuple[Package, str]:
        package = Package(files)
        package.load(method)
        return package, method

    def call(self, loaded: tuple[Package, str], values: Sequence[Any]) -> list[Any]:
        package, method = loaded
        return package.run(method, values)

    def describe(self, files: PackageFiles, method: str) -> list[str]:
        plan = files.plans.get(method)
        if plan is None:
            return []
        delegates = (f"delegate {n}: {each.backend}" for n, each in enumerate(plan.delegates))
        return [*delegates, *(f"kernel {name}" for name in plan.operators)]
