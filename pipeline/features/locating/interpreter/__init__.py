"""Runs the bytes of a `.pte` in Python: a device for backends that ExecuTorch's runtime lacks.

ExecuTorch's own deserializer reads the file, and the instructions of its plans are run one by one.
Kernels are torch's operators. Delegates run on the Python runtimes of their backends
(pipeline/backends/delegate_runtime.py), or on ExecuTorch's runtime if it has the backend. Tensors
lie where the file's memory plan puts them, so a plan in which two of them overlap computes wrong
numbers here as on a device. The source program isn't used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from executorch.exir import schema

from pipeline.backends.delegate_runtime import Timing
from pipeline.devices.interface import Device, DeviceError, PackageFiles
from pipeline.devices.package_data import PackageData, read_package
from pipeline.features.locating.interpreter.execute import describe_instruction, run
from pipeline.features.locating.interpreter.load import (
    InterpretedMethod,
    SharedMemory,
    get_instructions,
    load_method,
    shared_memory,
)

# A method, and its name in messages.
_Loaded = tuple[str, InterpretedMethod]


class InterpreterDevice(Device):
    """Runs packages in Python."""

    def __init__(self) -> None:
        self._read: WeakKeyDictionary[PackageFiles, PackageData] = WeakKeyDictionary()
        self._timings: dict[str, list[Timing]] = {}

    def load(
        self, files: PackageFiles, method: str, shared: SharedMemory | None = None
    ) -> _Loaded:
        subject = f"{files.name}: method '{method}' "
        plan = self._plan(files, method)
        with _device_errors(subject, "does not load"):
            return subject, load_method(plan, self._data(files), shared)

    def load_together(
        self, files: PackageFiles, methods: Sequence[str]
    ) -> dict[str, Any]:
        """Load methods that share memory beyond their own arenas.

        All are loaded before any of them runs, because loading a method writes initial values to
        the shared memory.
        """
        shared = shared_memory([self._plan(files, method) for method in methods])
        return {method: self.load(files, method, shared) for method in methods}

    def call(self, loaded: _Loaded, values: Sequence[Any]) -> list[Any]:
        subject, method = loaded
        arity = len(method.plan.inputs)
        if len(values) != arity:
            raise DeviceError(subject, f"takes {arity} inputs, {len(values)} given")
        with torch.no_grad(), _device_errors(subject, "fails"):
            outputs = run(method, values)
        timings: list[Timing] = []
        for runtime, handle in method.delegates:
            timings += runtime.timings(handle)
        self._timings[method.plan.name] = timings
        return outputs

    def timings(self, method: str) -> list[Timing]:
        """Return the times of the delegate instructions in the last call of a method."""
        return list(self._timings.get(method, ()))

    def describe(self, files: PackageFiles, method: str) -> list[str]:
        plan = self._plan(files, method)
        lines = []
        for number, instruction in enumerate(get_instructions(plan)):
            lines.append(
                f"{number}: {describe_instruction(plan, instruction.instr_args)}"
            )
        return lines

    def _data(self, files: PackageFiles) -> PackageData:
        if files not in self._read:
            self._read[files] = read_package(files)
        return self._read[files]

    def _plan(self, files: PackageFiles, method: str) -> schema.ExecutionPlan:
        plans = self._data(files).plans
        if method not in plans:
            names = ", ".join(sorted(plans)) or "none"
            raise DeviceError(
                f"{files.name}: ", f"has no method '{method}'; it has {names}"
            )
        return plans[method]


@contextmanager
def _device_errors(subject: str, failure: str) -> Iterator[None]:
    try:
        yield
    except DeviceError as error:
        raise DeviceError(
            subject, f"{failure}: {error.reason}", error.debug_handle
        ) from error
