"""Runs the bytes of a `.pte` in Python: a device for what ExecuTorch's runtime has no backend for.

The file is read back by ExecuTorch's own deserializer, and the instructions of its plans are run
one by one: kernels are torch's operators, delegates the Python runtimes of their backends
(pipeline/backends/delegate_runtime.py), or ExecuTorch's runtime where it has theirs. Tensors lie
where the memory plan of the file puts them, so a plan by which two of them overlap gives wrong
numbers here as it does on a device. Nothing of the source program is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from executorch.exir import schema

from pipeline.backends.delegate_runtime import Timing
from pipeline.devices.interface import Device, DeviceError, PackageFiles
from pipeline.devices.interpreter.execute import describe_instruction, run
from pipeline.devices.interpreter.load import (
    Method,
    PackageData,
    SharedMemory,
    get_instructions,
    load_method,
    read_package,
    shared_memory,
)


@dataclass(frozen=True)
class _Loaded:
    subject: str
    method: Method


class InterpreterDevice(Device):
    """Runs packages in Python."""

    def __init__(self) -> None:
        self._read: WeakKeyDictionary[PackageFiles, PackageData] = WeakKeyDictionary()
        self._timings: dict[str, list[Timing]] = {}

    def load(self, files: PackageFiles, method: str, shared: SharedMemory | None = None) -> _Loaded:
        subject = f"{files.name}: method '{method}' "
        plan = self._plan(files, method)
        with _device_errors(subject, "does not load"):
            return _Loaded(subject, load_method(plan, self._data(files), shared))

    def load_together(self, files: PackageFiles, methods: Sequence[str]) -> dict[str, Any]:
        """Load methods that share the memory which their plans have beyond their own. All are
        loaded before any runs, since loading one puts the initial values into it."""
        shared = shared_memory([self._plan(files, method) for method in methods])
        return {method: self.load(files, method, shared) for method in methods}

    def call(self, loaded: _Loaded, values: Sequence[Any]) -> list[Any]:
        method, wanted = loaded.method, len(loaded.method.plan.inputs)
        if len(values) != wanted:
            raise DeviceError(loaded.subject, f"takes {wanted} inputs, {len(values)} given")
        with torch.no_grad(), _device_errors(loaded.subject, "fails"):
            outputs = run(method, values)
        self._timings[method.plan.name] = [
            timing for d in method.delegates for timing in d.runtime.timings(d.handle)
        ]
        return outputs

    def timings(self, method: str) -> list[Timing]:
        """Return the times of the delegates' instructions in the last call of a method."""
        return list(self._timings.get(method, ()))

    def describe(self, files: PackageFiles, method: str) -> list[str]:
        plan = self._plan(files, method)
        return [
            f"{number}: {describe_instruction(plan, each.instr_args)}"
            for number, each in enumerate(get_instructions(plan))
        ]

    def _data(self, files: PackageFiles) -> PackageData:
        if files not in self._read:
            self._read[files] = read_package(files)
        return self._read[files]

    def _plan(self, files: PackageFiles, method: str) -> schema.ExecutionPlan:
        plans = self._data(files).plans
        if method not in plans:
            known = ", ".join(sorted(plans)) or "none"
            raise DeviceError(f"{files.name}: ", f"has no method '{method}'; it has {known}")
        return plans[method]


@contextmanager
def _device_errors(subject: str, what: str) -> Iterator[None]:
    try:
        yield
    except DeviceError as error:
        raise DeviceError(subject, f"{what}: {error.reason}", error.debug_handle) from error
