"""Asks whether a device's runtime has everything that a package needs, without calling a method."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.devices.interface import Device, DeviceError, PackageFiles
from pipeline.devices.registry import devices
from pipeline.features.native.device import NativeDevice
from pipeline.features.native.emulator import explain_unknown_cpu
from pipeline.features.native.planning import list_traceable
from pipeline.features.native.setups import EMULATED, find_setup, is_native
from pipeline.features.native.verdicts import find_missing_operators
from pipeline.store.errors import PipelineError, did_you_mean
from pipeline.store.workspace import Workspace


def find_lacks(
    workspace: Workspace, name: str, paths: Sequence[Path]
) -> dict[str, list[str]]:
    """Return, by method, sentences that say what a device's runtime lacks.

    Methods that lack nothing are left out. First, the runner lists the operators that it has
    registered. Then each method is loaded, which also reveals missing backends. For a device from a
    plugin, loading is the only check.

    Args:
        paths: the `.pte` of a package, then its `.ptd` files.

    Raises:
        PipelineError: the device doesn't exist or can't run here.
    """
    pte, *ptds = paths
    files = PackageFiles.of(pte, ptds)
    device = _open(workspace, name)
    lacks = {method: _find_lacks(device, files, method) for method in files.plans}
    if isinstance(device, NativeDevice):
        problem = device.problem
        device.close(files)
        if problem:
            raise PipelineError(f"{name}: {problem}")
    return {method: sentences for method, sentences in lacks.items() if sentences}


def _open(workspace: Workspace, name: str) -> Device:
    root = workspace.root
    if is_native(name, root):
        if name.startswith(EMULATED) and (remedy := explain_unknown_cpu(name)):
            raise PipelineError(f"no device '{name}'; {remedy}")
        if problem := find_setup(name, root).problem:
            raise PipelineError(f"{name}: {problem}")
        return NativeDevice(name, root)
    known = {*devices().names(), *list_traceable(root)}
    if name not in known:
        raise PipelineError(f"no device '{name}'; {did_you_mean(name, sorted(known))}")
    return devices().get(name)


def _find_lacks(device: Device, files: PackageFiles, method: str) -> list[str]:
    operators: list[str] = []
    if isinstance(device, NativeDevice):
        with suppress(DeviceError):  # loading then fails for the same reason
            operators = find_missing_operators(device, files, method)
    if operators:
        return [f"has no kernel for {operator}" for operator in operators]
    try:
        device.load(files, method)
    except DeviceError as error:
        return [error.reason]
    return []
