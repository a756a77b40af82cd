"""The devices that there are: this package's own, those of plugins, those that a program registers.

A distribution brings a device by an entry point of the group `pte_pipeline.devices`, which leads to
a subclass of Device, or to a function that makes one. Nothing is imported until it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from pipeline.store.errors import PipelineError, did_you_mean

if TYPE_CHECKING:
    from pipeline.devices.interface import Device

GROUP = "pte_pipeline.devices"
_OWN = {
    "executorch": "pipeline.devices.bindings:ExecutorchDevice",
    "interpreter": "pipeline.devices.interpreter:InterpreterDevice",
}


class Registry:
    """Devices by name. Each is made when it is first asked for."""

    def __init__(self) -> None:
        self._factories: dict[str, tuple[Callable[[], Device], str]] = {}

    def register(self, name: str, factory: Callable[[], Device], origin: str = "") -> None:
        """Register a device by the function that makes it, or by its class.

        Args:
            origin: where it is from, for messages.

        Raises:
            PipelineError: there is one of that name.
        """
        origin = origin or f"{factory.__module__}.{getattr(factory, '__qualname__', factory)}"
        if name in self._factories:
            there = self._factories[name][1]
            raise PipelineError(f"device '{name}' of {origin}: is there already, of {there}")
        self._factories[name] = cache(factory), origin

    def names(self) -> list[str]:
        return sorted(self._factories)

    def get(self, name: str) -> Device:
        """Return the device of a name. Raises PipelineError if there is none, or if it cannot be
        made."""
        if name not in self._factories:
            raise PipelineError(f"no device '{name}'; {did_you_mean(name, self.names())}")
        make, origin = self._factories[name]
        try:
            return make()
        except PipelineError:
            raise
        except Exception as error:  # whatever the code of a plugin raises
            what = f"cannot be made: {type(error).__name__}: {error}"
            raise PipelineError(f"device '{name}' of {origin}: {what}") from error


@cache
def devices() -> Registry:
    """Return this process's devices: this package's own, then those of plugins by the names of
    their distributions.

    A plugin's device whose name is taken gets its distribution's name in front.
    """
    registry = Registry()
    for name, target in _OWN.items():
        registry.register(name, partial(_make, EntryPoint(name, target, GROUP)), "this package")
    points = {(p.dist.name if p.dist else "", p.name): p for p in entry_points(group=GROUP)}
    for (distribution, name), point in sorted(points.items()):
        known = f"{distribution}.{name}" if name in registry.names() else name
        registry.register(known, partial(_make, point), distribution)
    return registry


def _make(point: EntryPoint) -> Device:
    from pipeline.devices.interface import Device

    device = point.load()()
    if not isinstance(device, Device):
        raise TypeError(f"{point.value} makes a {type(device).__name__}, not a Device")
    return device
