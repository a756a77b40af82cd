"""Registers devices by name: this package's, those of plugins, and those that programs register.

A distribution provides a device with an entry point of the group `pte_pipeline.devices`, which
names a subclass of Device or a function that makes one. Nothing is imported until it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from pipeline.moments import find_functions
from pipeline.store.errors import PipelineError, did_you_mean

if TYPE_CHECKING:
    from pipeline.devices.interface import Device

GROUP = "pte_pipeline.devices"
_BUILT_IN = {"executorch": "pipeline.devices.bindings:ExecutorchDevice"}


class Registry:
    """Devices by name. Each is created when it is first needed."""

    def __init__(self) -> None:
        self._factories: dict[str, tuple[Callable[..., Device], str]] = {}

    def register(
        self, name: str, factory: Callable[..., Device], origin: str = ""
    ) -> None:
        """Register a device by its class or by the function that makes it.

        Args:
            name: it has no colon, unless it names a family, such as `qemu:<cpu>`. The function of a
                family takes the text in place of the brackets.
            origin: where the device comes from, for messages.

        Raises:
            PipelineError: the name is already registered.
        """
        if not origin:
            origin = f"{factory.__module__}.{getattr(factory, '__qualname__', factory)}"
        if name in self._factories:
            _, first_origin = self._factories[name]
            raise PipelineError(
                f"device '{name}' of {origin}: is already defined by {first_origin}"
            )
        # Cached, so that a device is created once and keeps what it has loaded.
        self._factories[name] = cache(factory), origin

    def names(self) -> list[str]:
        return sorted(self._factories)

    def get(self, name: str) -> Device:
        """Return a device by name. Raises PipelineError if there is none or it can't be made."""
        family, colon, rest = name.partition(":")
        prefixes = {known.partition("<")[0]: known for known in self._factories}
        known = prefixes.get(family + colon)
        if known is None:
            raise PipelineError(
                f"no device '{name}'; {did_you_mean(name, self.names())}"
            )
        make, origin = self._factories[known]
        try:
            return make(rest) if colon else make()
        except PipelineError:
            raise
        except Exception as error:  # a plugin may raise anything
            raise PipelineError(
                f"device '{name}' of {origin}: cannot be made: {type(error).__name__}: {error}"
            ) from error


@cache
def devices() -> Registry:
    """Return this process's devices: this package's, then those of plugins by distribution.

    If a plugin's device has the name of another device, it is prefixed with its distribution's
    name.
    """
    registry = Registry()
    for name, target in (_BUILT_IN | find_functions("devices")).items():
        registry.register(
            name, partial(_make, EntryPoint(name, target, GROUP)), "this package"
        )
    points = {}
    for point in entry_points(group=GROUP):
        distribution = point.dist.name if point.dist else ""
        points[distribution, point.name] = point
    for (distribution, name), point in sorted(points.items()):
        if name in registry.names():
            name = f"{distribution}.{name}"
        registry.register(name, partial(_make, point), distribution)
    return registry


def _make(point: EntryPoint, *arguments: str) -> Device:
    from pipeline.devices.interface import Device

    device = point.load()(*arguments)
    if not isinstance(device, Device):
        raise TypeError(f"{point.value} makes a {type(device).__name__}, not a Device")
    return device
