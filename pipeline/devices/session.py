"""A package on its devices: each method on one that can run it, through the interface alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cached_property
from typing import Any

from pipeline.devices.interface import Computation, Declared, DeviceId, PackageFiles, Runtime
from pipeline.devices.plans import read_plans
from pipeline.devices.registry import devices

EXECUTORCH, INTERPRETER, REFERENCE = "executorch", "interpreter", "reference"
Around = Callable[[str, str], AbstractContextManager[None]]
_AROUND: ContextVar[Around] = ContextVar("around")


@contextmanager
def guarded(around: Around) -> Iterator[None]:
    """Within it, all that may be the end of this process is done in the context that `around` gives
    of a method, empty where it is all of them, and of what is about to be done to it."""
    token = _AROUND.set(around)
    try:
        yield
    finally:
        _AROUND.reset(token)


def _about_to(method: str, what: str) -> AbstractContextManager[None]:
    around = _AROUND.get(None)
    return around(method, what) if around else nullcontext()


class Session:
    """Loads and runs the methods of a package. State lives as long as the session; another one of
    the same files begins anew.

    Args:
        device: for all methods; by default the one that was set (`devices().set_default`), and
            where none was, for each method one that can run it.
    """

    def __init__(self, files: PackageFiles, device: str = "") -> None:
        self.files = files
        device = device or devices().chosen
        self._device = DeviceId.parse(device) if device else None
        self._computations: dict[str, Computation] = {}

    def methods(self) -> list[str]:
        """The methods' names, sorted, constant methods among them. Raises DeviceError."""
        with _about_to("", "it is opened"):
            return self._runtime_of_all.methods(self.files)

    def declared(self, method: str) -> Declared:
        """What the package says of a method, without loading it. Raises DeviceError."""
        with _about_to(method, "it is read"):
            return self._runtime_of_all.declared(self.files, method)

    def device_of(self, method: str) -> DeviceId:
        """The device on which a method runs."""
        if self._device is not None:
            return self._device
        return devices().get(self._choose(method)).default_device

    def load(self, method: str) -> Computation:
        """Makes a method ready to run. Raises DeviceError."""
        if method not in self._computations:
            with _about_to(method, "it is loaded"):
                device = self.device_of(method)
                runtime = devices().get(device.type)
                (self._computations[method],) = runtime.compile(
                    [runtime.lower(method, self.files, device)]
                )
        return self._computations[method]

    def load_together(self, methods: Sequence[str]) -> None:
        """Makes methods ready to run that share state, as far as the package has them share it.
        The session must be on one device. Raises DeviceError."""
        (device,) = {self.device_of(method) for method in methods}
        runtime = devices().get(device.type)
        lowered = [runtime.lower(method, self.files, device) for method in methods]
        compiled = runtime.compile_together(lowered)
        self._computations |= dict(zip(methods, compiled, strict=True))

    def run(self, method: str, inputs: Sequence[Any]) -> list[Any]:
        """The flat outputs of one call on flat inputs. Raises DeviceError."""
        computation = self.load(method)
        with _about_to(method, "it runs"):
            return executed(computation, inputs)

    def text(self, method: str) -> str:
        """What a method's device makes of it, for people."""
        computation = self.load(method)
        return devices().get(computation.device.type).text(computation)

    @cached_property
    def _runtime_of_all(self) -> Runtime:
        """Of the device that reads the package; ExecuTorch's opens it faster than any other."""
        return devices().get(self._device.type if self._device is not None else EXECUTORCH)

    @cached_property
    def _delegates(self) -> dict[str, tuple[str, ...]]:
        return {name: plan.delegates for name, plan in read_plans(self.files.contents()).items()}

    def _choose(self, method: str) -> str:
        """ExecuTorch's runtime, unless that lacks the backend of a delegate and the interpreter has
        a Python runtime for each such."""
        used = set(self._delegates.get(method, ()))
        if not used:
            return EXECUTORCH
        from pipeline.devices.bindings import registered_backends

        lacking = used - registered_backends()
        if not lacking:
            return EXECUTORCH
        from pipeline.backends import BACKENDS

        able = {b.backend_id for b in BACKENDS.values() if b.make_runtime is not None}
        return INTERPRETER if lacking <= able else EXECUTORCH


def executed(computation: Computation, values: Sequence[Any]) -> list[Any]:
    """One call of a compiled computation, there and back. Raises DeviceError."""
    runtime = devices().get(computation.device.type)
    given = [runtime.to_device(value, computation.device) for value in values]
    return [runtime.to_host(data) for data in runtime.execute(computation, given)]
