"""A package on its devices: each method on one that can run it, through the interface alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cached_property
from typing import Any

from pipeline.devices.bindings import Package, find_missing_kernels, registered_backends
from pipeline.devices.interface import Declared, Device, PackageFiles
from pipeline.devices.registry import devices
from pipeline.program.operator_libraries import OWN_NAMESPACES, REMEDY, is_registered
from pipeline.store.errors import DeviceError

EXECUTORCH, INTERPRETER = "executorch", "interpreter"
Guard = Callable[[str, str], AbstractContextManager[None]]
_GUARD: ContextVar[Guard] = ContextVar("guard", default=lambda method, what: nullcontext())


@contextmanager
def guarded(guard: Guard) -> Iterator[None]:
    """Wrap all that can crash this process.

    Args:
        guard: makes a context of a method's name, empty for all methods, and of what is about to be
            done to it.
    """
    token = _GUARD.set(guard)
    try:
        yield
    finally:
        _GUARD.reset(token)


class Session:
    """Loads and runs the methods of a package. State lives as long as the session; another one of
    the same files begins anew.

    Args:
        device: runs all methods; by default each runs on one that has its delegates.
        together: methods that share state. They are loaded at once, by default on the interpreter,
            since ExecuTorch's bindings give each method memory of its own.

    Raises:
        PipelineError: there is no such device.
    """

    def __init__(
        self, files: PackageFiles, device: str = "", together: Collection[str] = ()
    ) -> None:
        self.files = files
        self._device = device
        self._together = tuple(together)
        if device:
            devices().get(device)  # there must be one
        self._loaded: dict[str, Any] = {}

    def methods(self) -> list[str]:
        """List the methods, sorted, constant methods among them. Raises DeviceError."""
        with _GUARD.get()("", "it is opened"):
            return self._package.methods()

    def declared(self, method: str) -> Declared:
        """Return what a method takes and gives, without loading it. Raises DeviceError."""
        with _GUARD.get()(method, "it is read"):
            return self._package.declared(method)

    def choose_device(self, method: str) -> str:
        """Return the name of the device on which a method runs.

        That is ExecuTorch's runtime, unless that lacks the backend of a delegate, or a kernel of a
        team's own operator, and the interpreter has a Python runtime for each such, or torch the
        operator; the device that the environment names for a delegate that it lacks; and the
        interpreter for methods that share state. Raises DeviceError for an operator of a team's own
        that nothing here has.
        """
        if self._device:
            return self._device
        if method in self._together:
            return INTERPRETER
        plan = self.files.plans.get(method)
        if plan is None:
            return EXECUTORCH
        lacking = {each.backend for each in plan.delegates} - registered_backends()
        if not lacking:
            return INTERPRETER if self._foreign_operators(method) else EXECUTORCH
        from pipeline.backends import BACKENDS

        for backend in BACKENDS.values():
            if backend.backend_id in lacking and backend.device:
                return backend.device
        able = {b.backend_id for b in BACKENDS.values() if b.execution.make_runtime is not None}
        return INTERPRETER if lacking <= able else EXECUTORCH

    def _foreign_operators(self, method: str) -> list[str]:
        """Return the operators of a team's own in a method that torch has, and the runtime has not.
        Raises DeviceError for those that neither has."""
        missing = find_missing_kernels(self.files.plans[method].operators)
        foreign = [name for name in missing if name.partition("::")[0] not in OWN_NAMESPACES]
        for name in foreign:
            if not is_registered(name.replace("::", ".")):
                what = f"does not load: nothing here has the operator {name}"
                raise DeviceError(f"{self.files.name}: method '{method}' ", f"{what}; {REMEDY}")
        return foreign

    def load(self, method: str) -> None:
        """Make a method ready to run. Raises DeviceError."""
        if method not in self._loaded:
            with _GUARD.get()(method, "it is loaded"):
                if method in self._together:
                    self.load_together(self._together)
                else:
                    self._loaded[method] = self._run_by(method).load(self.files, method)

    def load_together(self, methods: Sequence[str]) -> None:
        """Make methods ready to run that share state, as far as the package lets them.

        The session must be on one device. Raises DeviceError.
        """
        (device,) = {self.choose_device(method) for method in methods}
        self._loaded |= devices().get(device).load_together(self.files, methods)

    def run(self, method: str, inputs: Sequence[Any]) -> list[Any]:
        """Call a method once, on flat inputs; return its flat outputs. Raises DeviceError."""
        self.load(method)
        with _GUARD.get()(method, "it runs"):
            return self._run_by(method).call(self._loaded[method], inputs)

    def text(self, method: str) -> str:
        """Describe for people what a method takes and gives, and what its device runs."""
        declared = self.declared(method)
        takes, gives = (
            ", ".join("no tensor" if each is None else str(each) for each in side)
            for side in (declared.inputs, declared.outputs)
        )
        lines = self._run_by(method).describe(self.files, method)
        return "\n".join([f"{method}({takes}) -> ({gives})", *(f"  {line}" for line in lines)])

    def _run_by(self, method: str) -> Device:
        return devices().get(self.choose_device(method))

    @cached_property
    def _package(self) -> Package:
        """The package, opened to be read, whichever device runs it."""
        return Package(self.files)
