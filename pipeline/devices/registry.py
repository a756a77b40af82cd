"""Which devices there are: this package's own, those of plugins, those that a program registers.

A distribution brings a device by an entry point of the group `pte_pipeline.devices`, which leads to
a subclass of Runtime, or to a function that makes one. Nothing is imported until it is asked for.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from pipeline.store.errors import PipelineError, did_you_mean

if TYPE_CHECKING:
    from pipeline.devices.interface import DeviceId, Runtime

GROUP = "pte_pipeline.devices"
_OWN = {
    "executorch": "pipeline.devices.executorch:ExecutorchRuntime",
    "interpreter": "pipeline.devices.interpreter:InterpreterRuntime",
    "reference": "pipeline.devices.reference:ReferenceRuntime",
}
Factory = Callable[[], "Runtime"]


class Registry:
    """Runtimes by the type of their devices. Each is made when it is first asked for, and told when
    the process ends."""

    def __init__(self) -> None:
        self._factories: dict[str, tuple[Factory, str]] = {}
        self._made: dict[str, Runtime] = {}
        self._default = ""

    def register(self, name: str, factory: Factory, origin: str = "") -> None:
        """Args:
            name: the type of its devices.
            factory: makes its runtime.
            origin: where it is from, for messages.

        Raises:
            PipelineError: there is one of that name.
        """
        origin = origin or f"{factory.__module__}.{getattr(factory, '__qualname__', factory)}"
        if name in self._factories:
            there = self._factories[name][1]
            raise PipelineError(f"device '{name}' of {origin}: is there already, of {there}")
        self._factories[name] = factory, origin

    def names(self) -> list[str]:
        return sorted(self._factories)

    def has(self, name: str) -> bool:
        return name in self._factories

    def get(self, name: str = "") -> Runtime:
        """The runtime of a type of devices, by default of the default one.

        Raises:
            PipelineError: there is none, or it can't be made.
        """
        name = name or self.default
        if name not in self._factories:
            if not self._factories:
                raise PipelineError(f"device '{name}': no device is registered")
            raise PipelineError(f"no device '{name}'; {did_you_mean(name, self.names())}")
        if name not in self._made:
            factory, origin = self._factories[name]
            try:
                runtime = factory()
            except PipelineError:
                raise
            except Exception as error:  # whatever the code of a plugin raises
                what = f"{type(error).__name__}: {error}"
                raise PipelineError(
                    f"device '{name}' of {origin}: cannot be made: {what}"
                ) from error
            atexit.register(runtime.prepare_to_exit)
            self._made[name] = runtime
        return self._made[name]

    @property
    def default(self) -> str:
        """The type of device that is meant where none is named: the first one registered, unless
        another one was set."""
        if not self._factories:
            raise PipelineError("no device is registered")
        return self._default or next(iter(self._factories))

    @property
    def chosen(self) -> str:
        """The default that was set; "" where none was."""
        return self._default

    def set_default(self, name: str) -> None:
        """Raises PipelineError for one that is not there."""
        if name not in self._factories:
            raise PipelineError(f"no device '{name}'; {did_you_mean(name, self.names())}")
        self._default = name

    def devices(self) -> list[DeviceId]:
        """All devices, by type and number; makes every runtime."""
        return sorted(device for name in self.names() for device in self.get(name).devices())


@cache
def devices() -> Registry:
    """This process's: first this package's own, then those of plugins by the names of their
    distributions. A plugin's device that takes a name that is there is told when it is asked for
    by its distribution's name, and takes nothing from the others."""
    registry = Registry()
    for name, target in _OWN.items():
        registry.register(name, partial(_make, target), "this package")
    points = {(p.dist.name if p.dist else "", p.name): p for p in entry_points(group=GROUP)}
    for (distribution, name), point in sorted(points.items()):
        known = name if not registry.has(name) else f"{distribution}.{name}"
        registry.register(known, partial(_load, point), distribution)
    return registry


def _make(target: str) -> Runtime:
    module, _, name = target.partition(":")
    runtime: Runtime = getattr(import_module(module), name)()
    return runtime


def _load(point: Any) -> Runtime:
    from pipeline.devices.interface import Runtime

    runtime = point.load()()
    if not isinstance(runtime, Runtime):
        raise TypeError(f"{point.value} makes a {type(runtime).__name__}, not a Runtime")
    return runtime
