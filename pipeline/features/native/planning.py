"""The devices of a plan's packages, and the facts that decide the outputs of each device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.features.native.target_devices import (
    ANY_TARGET,
    find_devices,
    find_planned_devices,
)
from pipeline.moments import call_all, find_functions, installed_entry_points
from pipeline.plan.models import once
from pipeline.plan.planning import Files, Json, Planning
from pipeline.store.errors import ConfigErrors, Problem, did_you_mean, join
from pipeline.store.json_diff import Difference

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig

FIELD = "devices"  # of a validation's key
# Gates that compare a package with its baseline by running both.
GROWTH_GATES = ("max_latency_growth", "max_memory_growth")
# Gates that may set a separate limit for each device.
DEVICE_GATES = (
    "max_latency",
    "max_latency_p95",
    "max_load_time",
    "max_peak_memory",
    *GROWTH_GATES,
)
_GROUP = "pte_pipeline.devices"  # the same group as in `pipeline.devices.registry`
_EXAMPLE = "qemu:cortex-a72"


def list_traceable(root: Path) -> list[str]:
    """Return the names of the devices that record times in the workspace at `root`.

    The list has one example of an emulated processor. Raises PipelineError if the settings can't be
    read.
    """
    from pipeline.features.native.setups import NATIVE, find_boards

    return sorted({*find_boards(root), NATIVE, _EXAMPLE})


def summarize(config: PackageConfig, has_variables: bool) -> Mapping[str, Any] | None:
    """Return the devices and the target that a config names.

    Returns None if it names neither and no gate sets a limit for a device.
    """
    devices: tuple[str, ...] = getattr(config.validation, FIELD)
    if not devices and not config.target and not any(_iter_device_limits(config)):
        return None
    summary: dict[str, Any] = {"devices": list(devices)}
    if config.target:
        summary["target"] = ANY_TARGET if has_variables else config.target
    if _limits_growth(config):
        summary["growth"] = True
    return summary


def _limits_growth(config: PackageConfig) -> bool:
    """Return whether a gate compares the package with its baseline on devices."""
    for gates in _find_gates(config).values():
        for name in GROWTH_GATES:
            if getattr(gates, name, None) is not None:
                return True
    return False


def _find_gates(config: PackageConfig) -> dict[str, Any]:
    """Return the gates of a package and of its methods, keyed by their path in the config."""
    gates: dict[str, Any] = {"validate.gates": config.validation.gates}
    for method, limits in config.validation.methods.items():
        gates[f"{join('validate.methods', method)}.gates"] = limits.gates
    return gates


def _iter_device_limits(config: PackageConfig) -> Iterator[tuple[str, str]]:
    """Yield each limit that a gate sets for one device: its path in the config, and the device."""
    for place, gates in _find_gates(config).items():
        for name in DEVICE_GATES:
            limit = getattr(gates, name, None)
            for device in limit if isinstance(limit, Mapping) else ():
                yield join(f"{place}.{name}", device), device


class NativePlanning(Planning):
    """Reports unknown devices, and adds known ones to the keys of validations.

    Most no-op runs have no device, and so import nothing that finds one.
    """

    def __init__(self, plan: Any) -> None:
        super().__init__(plan)
        self._known: dict[tuple[str, str], Any] = {}  # by method and package

    def forget(self) -> None:
        self._known.clear()

    def find_problems(
        self, package: str, config: PackageConfig, document: Document
    ) -> Iterator[Problem]:
        from pipeline.features.native.emulator import explain_unknown_cpu
        from pipeline.features.native.setups import BOARD, EMULATED, is_native

        plugins = self._plugins()
        root = self.plan.workspace.root
        known = {*find_functions("devices"), *plugins, *list_traceable(root)} - {BOARD}
        devices = find_devices(config, root)
        named: tuple[str, ...] = getattr(config.validation, FIELD)
        for device in devices:
            remedy = ""
            if device.startswith(EMULATED):
                remedy = explain_unknown_cpu(device)
            if device not in known and not is_native(device, root):
                remedy = did_you_mean(device, sorted(known))
            if remedy:
                fault = f"no device '{device}'"
                if device in named:
                    where = f"validate.devices[{named.index(device)}]"
                    yield document.problem(where, fault, remedy)
                else:
                    fault = f"targets/{config.target}.yaml: devices: {fault}"
                    yield document.problem("target", fault, remedy)
        for where, device in _iter_device_limits(config):
            if device not in devices:
                fault = f"validate.devices does not name '{device}'"
                yield document.problem(where, fault, did_you_mean(device, devices))

        repeats = getattr(config.validation, "device_repeats")  # noqa: B009 - as above
        for device in repeats if isinstance(repeats, Mapping) else ():
            if device not in devices:
                where = "validate.device_repeats"
                what = f"validate.devices does not name '{device}'"
                remedy = did_you_mean(device, devices)
                yield document.problem(where, what, remedy)

    def problem_facts(self, package: str) -> Any:
        devices = self.find_devices(package)
        if not devices:  # so for most packages that name a target
            return []
        from pipeline.features.native.setups import find_boards, find_emulator

        boards = sorted(find_boards(self.plan.workspace.root))
        return [sorted(self._plugins()), boards, find_emulator(), devices]

    @once
    def find_devices(self, package: str) -> tuple[str, ...]:
        return find_planned_devices(self.plan, package)

    def validate_facts(self, package: str, files: Files) -> Any:
        devices = self._describe_devices(self.find_devices(package))
        if devices and self._compares(package):
            workspace = self.plan.workspace
            devices["baseline"] = workspace.find_data(workspace.baseline(package))
        return devices

    def held_to(self, package: str, files: Files, config: PackageConfig) -> Json:
        root = self.plan.workspace.root
        devices = self._describe_devices(find_devices(config, root))
        if not devices:
            return {}
        if self._compares(package):
            baseline = self._find_baseline(package, files)
            for facts in devices.values():
                facts.update(baseline)
        return {FIELD: devices}

    def _compares(self, package: str) -> bool:
        return "growth" in self.plan.configs.summary(package).features["native"]

    def _find_baseline(self, package: str, files: Files) -> dict[str, Any]:
        """Return the files of the baseline under the key `baseline`.

        Returns an empty dict if there is no baseline or it has the same files.
        """
        accepted = _read_accepted(self.plan.workspace.baseline(package))
        if accepted is None or accepted == dict(files):
            return {}
        return {"baseline": accepted}

    def _describe_devices(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return, by device, the facts that decide its outputs."""
        if not names:
            return {}
        from pipeline.features.native.setups import find_setup, is_native

        workspace = self.plan.workspace
        devices = {}
        for device in names:
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
        """Return the devices of other distributions, keyed by name."""
        return {point.name: point for point in installed_entry_points(_GROUP)}


def _read_accepted(path: Path) -> dict[str, str] | None:
    """Return the digests of a baseline's files by name, or None without a readable baseline.

    They are empty if the baseline names none.
    """
    try:
        for figures in call_all("parse_baseline", path.read_bytes(), path.name):
            return dict(figures["files"])
    except (OSError, ConfigErrors):  # judging reports the error
        pass
    return None


def describe_key(difference: Difference) -> str | None:
    """Describe a difference between the devices of two keys; return None for other differences."""
    match difference.path:
        case (*_, "devices", _, "baseline") | (*_, "devices", _, "baseline", _):
            return "the baseline's files for devices changed"
        case (*_, "devices", device, "problem"):
            return f"device {device}: what it needs to run {difference.change()}"
        case (*_, "devices", device, name):
            return f"device {device}: {name} {difference.change()}"
        case (*_, "devices", device, machine, name):
            return f"device {device}: {name} of {machine} {difference.change()}"
        case (*_, "devices", device):
            return f"device {device} {difference.change()}"
        case (*_, "devices"):
            return "the devices in validate.devices or the target changed"
    return None
