"""The devices of a plan: which ones packages are run on, and what these run with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from pipeline.features.native.setups import NATIVE, find_boards, find_setup, is_native
from pipeline.moments import find_functions, installed_entry_points
from pipeline.plan.planning import Files, Json, Planning
from pipeline.store.errors import Problem, did_you_mean
from pipeline.store.json_diff import Difference

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig

FIELD = "devices"  # of the key of a validation
_GROUP = "pte_pipeline.devices"  # as `pipeline.devices.registry` has it
_EXAMPLE = "qemu:cortex-a72"


def find_devices(config: PackageConfig) -> tuple[str, ...]:
    """Return the devices that a config names."""
    devices: tuple[str, ...] = getattr(config.validation, "devices")  # noqa: B009 - of this feature
    return devices


def summarize(config: PackageConfig, has_variables: bool) -> Mapping[str, Any] | None:
    """Return the devices that a config names, None where it names none."""
    devices = find_devices(config)
    if not devices:
        return None
    return {"devices": list(devices)}


class NativePlanning(Planning):
    """Refuses devices that there are not, and holds validations to those that there are."""

    def find_problems(
        self, package: str, config: PackageConfig, document: Document
    ) -> Iterator[Problem]:
        plugins = self._plugins()
        own_devices = [
            name for name in find_functions("devices") if not name.endswith(":")
        ]
        root = self.plan.workspace.root
        known = {*own_devices, *plugins, *find_boards(root), NATIVE, _EXAMPLE}
        for number, device in enumerate(find_devices(config)):
            if device not in known and not is_native(device, root):
                where = f"validate.devices[{number}]"
                remedy = did_you_mean(device, sorted(known))
                yield document.problem(where, f"no device '{device}'", remedy)

    def problem_facts(self, package: str) -> Any:
        return [sorted(self._plugins()), sorted(find_boards(self.plan.workspace.root))]

    def validate_facts(self, package: str, files: Files) -> Any:
        return self._describe_devices(package)

    def held_to(self, package: str, files: Files, config: PackageConfig) -> Json:
        return {FIELD: self._describe_devices(package)}

    def _describe_devices(self, package: str) -> dict[str, Any]:
        """Return by device what decides what it gives."""
        workspace = self.plan.workspace
        summary = self.plan.configs.summary(package)
        devices = {}
        for device in summary.features["native"]["devices"]:
            if is_native(device, workspace.root):
                setup = find_setup(device, workspace.root)
                devices[device] = setup.describe(workspace.file_digests)
            else:
                devices[device] = {"distribution": self._describe_plugin(device)}
        return devices

    def _describe_plugin(self, device: str) -> str:
        point = self._plugins().get(device)
        if point is None or point.dist is None:
            return ""
        return f"{point.dist.name} {point.dist.version}"

    def _plugins(self) -> dict[str, EntryPoint]:
        """Return the devices of other distributions by name."""
        return {point.name: point for point in installed_entry_points(_GROUP)}


def describe_key(difference: Difference) -> str | None:
    """Describe a difference of the devices that a package is run on; None for any other."""
    match difference.path:
        case (*_, "devices", device, "problem"):
            return f"device {device}: what it needs to run {difference.change()}"
        case (*_, "devices", device, name):
            return f"device {device}: {name} {difference.change()}"
        case (*_, "devices", device, machine, name):
            return f"device {device}: {name} of {machine} {difference.change()}"
        case (*_, "devices", device):
            return f"device {device} {difference.change()}"
        case (*_, "devices"):
            return "validate.devices names other devices"
    return None
