"""Runs a package on devices, each method on one that can run it, only through their interface."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cached_property
from typing import Any

from pipeline.devices.bindings import Package, find_missing_kernels, registered_backends
from pipeline.devices.interface import (
    DeclaredTensor,
    Device,
    FlatSignature,
    PackageFiles,
)
from pipeline.devices.registry import devices
from pipeline.program.operator_libraries import OWN_NAMESPACES, REMEDY, is_registered
from pipeline.store.errors import DeviceError

EXECUTORCH, INTERPRETER = "executorch", "interpreter"
Guard = Callable[[str, str], AbstractContextManager[None]]
_GUARD: ContextVar[Guard] = ContextVar(
    "guard", default=lambda method, step: nullcontext()
)


@contextmanager
def guarded(guard: Guard) -> Iterator[None]:
    """Wrap each step that can crash this process.

    Args:
        guard: returns a context, given a method's name, or "" for all methods, and the step, such
            as "it is loaded".
    """
    token = _GUARD.set(guard)
    try:
        yield
    finally:
        _GUARD.reset(token)


class Session:
    """Loads and runs the methods of a package.

    State lives as long as the session; another session of the same files starts from the initial
    state.

    Args:
        device: runs all methods; by default each runs on one that has its delegates.
        together: methods that share state. They are loaded at once, by default on the interpreter,
            since ExecuTorch's bindings give each method its own memory.

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
            self._get_device(device)  # raises if there is none
        self._loaded: dict[str, Any] = {}

    def methods(self) -> list[str]:
        """Return the sorted names of all methods, constant ones included. Raises DeviceError."""
        with _GUARD.get()("", "it is opened"):
            return self._package.methods()

    def signature(self, method: str) -> FlatSignature:
        """Return the declared inputs and outputs of a method, without loading it.

        Raises DeviceError.
        """
        with _GUARD.get()(method, "it is read"):
            return self._package.signature(method)

    def choose_device(self, method: str) -> str:
        """Return the name of the device that runs a method.

        Methods that share state run on the interpreter. Any other runs on ExecuTorch's runtime,
        unless the runtime lacks the backend of a delegate or a kernel of a custom operator. It then
        runs on the device that the environment names for the backend, or on the interpreter if that
        has a Python runtime for the backend, or if torch has the operator. Raises DeviceError for a
        custom operator that nothing here has.
        """
        if self._device:
            return self._device
        if method in self._together:
            return INTERPRETER
        plan = self.files.plans.get(method)
        if plan is None:
            return EXECUTORCH
        missing_backends = {
            backend for backend, _ in plan.delegates
        } - registered_backends()
        if not missing_backends:
            return INTERPRETER if self._needs_torch_operators(method) else EXECUTORCH
        from pipeline.backends import BACKENDS

        for backend in BACKENDS.values():
            if backend.backend_id in missing_backends and backend.device:
                return backend.device
        python_backends = set()
        for backend in BACKENDS.values():
            if backend.execution.make_runtime is not None:
                python_backends.add(backend.backend_id)
        return INTERPRETER if missing_backends <= python_backends else EXECUTORCH

    def _needs_torch_operators(self, method: str) -> bool:
        """Return whether a method has custom operators that torch has and the runtime lacks.

        Raises DeviceError for custom operators that neither has.
        """
        missing = find_missing_kernels(self.files.plans[method].operators)
        custom = [
            name for name in missing if name.partition("::")[0] not in OWN_NAMESPACES
        ]
        for name in custom:
            if not is_registered(name.replace("::", ".")):
                subject = f"{self.files.name}: method '{method}' "
                reason = (
                    f"does not load: no library here has the operator {name}; {REMEDY}"
                )
                raise DeviceError(subject, reason)
        return bool(custom)

    def load(self, method: str) -> None:
        """Make a method ready to run. Raises DeviceError."""
        if method in self._loaded:
            return
        with _GUARD.get()(method, "it is loaded"):
            if method in self._together:
                self.load_together(self._together)
            else:
                device = self._device_of(method)
                self._loaded[method] = device.load(self.files, method)

    def load_together(self, methods: Sequence[str]) -> None:
        """Load methods together, with the state that the package shares.

        One device must run all of them. Raises DeviceError.
        """
        # The interpreter, unless the caller chose a device, so there is exactly one.
        (device,) = {self.choose_device(method) for method in methods}
        self._loaded |= self._get_device(device).load_together(self.files, methods)

    def run(self, method: str, inputs: Sequence[Any]) -> list[Any]:
        """Call a method once, on flat inputs; return its flat outputs. Raises DeviceError."""
        self.load(method)
        return self.call_loaded(method, inputs)

    def call_loaded(self, method: str, inputs: Sequence[Any]) -> list[Any]:
        """Call a method that is already loaded, like `run`."""
        with _GUARD.get()(method, "it runs"):
            return self._device_of(method).call(self._loaded[method], inputs)

    def text(self, method: str) -> str:
        """Describe a method's inputs and outputs, and what its device runs, as text."""
        signature = self.signature(method)
        inputs = _describe_tensors(signature.inputs)
        outputs = _describe_tensors(signature.outputs)
        lines = [f"{method}({inputs}) -> ({outputs})"]
        for line in self._device_of(method).describe(self.files, method):
            lines.append(f"  {line}")
        return "\n".join(lines)

    def _device_of(self, method: str) -> Device:
        return self._get_device(self.choose_device(method))

    def _get_device(self, name: str) -> Device:
        """Return the device with a name.

        Raises DeviceError if the interpreter is not installed, and PipelineError if any other
        device doesn't exist.
        """
        if name == INTERPRETER and name not in devices().names():
            reason = 'does not load: this installation has no feature "locating"'
            raise DeviceError(f"{self.files.name}: ", reason)
        return devices().get(name)

    @cached_property
    def _package(self) -> Package:
        """The package, opened for reading, whichever device runs it."""
        return Package(self.files)


def _describe_tensors(tensors: Sequence[DeclaredTensor | None]) -> str:
    texts = ["no tensor" if tensor is None else str(tensor) for tensor in tensors]
    return ", ".join(texts)
