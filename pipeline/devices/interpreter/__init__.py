"""Runs the bytes of a `.pte` in Python: a device for what ExecuTorch's runtime has no backend for.

The file is read back by ExecuTorch's own deserializer, and the instructions of its plans are walked
one by one: kernels are torch's operators, delegates the Python runtimes of their backends
(pipeline/backends/delegate_runtime.py), or ExecuTorch's runtime where it has theirs. Tensors lie where the memory
plan of the file puts them, so a plan by which two of them overlap gives wrong numbers here as it
does on a device. Nothing of the source program is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from executorch.exir import schema

from pipeline.backends.delegate_runtime import DelegateError, Timing
from pipeline.devices.bindings import DTYPES
from pipeline.devices.interface import (
    Computation,
    Declared,
    DeclaredTensor,
    DeviceError,
    PackageFiles,
    Runtime,
    Shape,
)
from pipeline.devices.interpreter.execute import run, told
from pipeline.devices.interpreter.load import (
    Data,
    Method,
    instructions_of,
    load,
    read_package,
    shared_memory,
)
from pipeline.devices.interpreter.slots import Memory, RefusalError


class InterpreterRuntime(Runtime):
    """Programs are PackageFiles."""

    type = "interpreter"

    def __init__(self) -> None:
        super().__init__()
        self._read: WeakKeyDictionary[PackageFiles, Data] = WeakKeyDictionary()
        self._random: torch.Tensor | None = None
        self._timings: dict[str, list[Timing]] = {}

    def methods(self, program: PackageFiles) -> list[str]:
        return sorted(plan.name for plan in self._data(program).file.program.execution_plan)

    def declared(self, program: PackageFiles, method: str) -> Declared:
        plan = self._plan(program, method)
        return Declared(
            tuple(_shape(plan.values[index]) for index in plan.inputs),
            tuple(_shape(plan.values[index]) for index in plan.outputs),
        )

    def compile_together(self, computations: Sequence[Computation]) -> list[Computation]:
        """Methods share the memory that the plans of their package have beyond their own. All are
        loaded before any runs, since loading one puts the initial values into it."""
        plans = [self._plan(each.program, each.name) for each in computations]
        shared = shared_memory(plans)
        self._counts["compiled"] += len(computations)
        return [replace(each, compiled=self._loaded(each, shared)) for each in computations]

    def load(self, computation: Computation) -> Method:
        return self._loaded(computation, {})

    def _loaded(self, computation: Computation, shared: Mapping[int, Memory]) -> Method:
        name, files = computation.name, computation.program
        data, plan = self._data(files), self._plan(files, name)
        try:
            return load(plan, data, shared)
        except DelegateError as error:
            reason = f"does not load: {error.what}"
            raise DeviceError(_subject(files, name), reason, error.debug_handle) from error
        except RefusalError as error:
            raise DeviceError(_subject(files, name), f"does not load: {error}") from error

    def call(self, computation: Computation, values: Sequence[Any]) -> Sequence[Any]:
        method, subject = computation.compiled, _subject(computation.program, computation.name)
        try:
            with torch.no_grad(), torch.random.fork_rng((), enabled=self._random is not None):
                if self._random is not None:
                    torch.set_rng_state(self._random)
                outputs = run(method, values)
                if self._random is not None:
                    self._random = torch.get_rng_state()
        except DelegateError as error:
            raise DeviceError(subject, f"fails: {error.what}", error.debug_handle) from error
        except RefusalError as error:
            raise DeviceError(subject, f"fails: {error}") from error
        self._timings[computation.name] = [
            timing for d in method.delegates for timing in d.runtime.timings(d.handle)
        ]
        return outputs

    def timings(self, method: str) -> list[Timing]:
        """Of the last call of a method: the instructions of its delegates that keep time."""
        return list(self._timings.get(method, ()))

    def text(self, computation: Computation) -> str:
        plan = self._plan(computation.program, computation.name)
        lines = (
            f"  {n}: {told(plan, each.instr_args)}" for n, each in enumerate(instructions_of(plan))
        )
        return "\n".join([str(computation), *lines])

    def set_seed(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed).get_state()

    def metrics(self) -> Mapping[str, float]:
        timed = [timing.seconds for timings in self._timings.values() for timing in timings]
        return {**super().metrics(), "seconds in timed delegates, last calls": sum(timed)}

    def prepare_to_exit(self) -> None:
        self._read.clear()

    def _data(self, files: PackageFiles) -> Data:
        if files not in self._read:
            self._read[files] = read_package(files)
        return self._read[files]

    def _plan(self, files: PackageFiles, method: str) -> schema.ExecutionPlan:
        plans = {plan.name: plan for plan in self._data(files).file.program.execution_plan}
        if method not in plans:
            known = ", ".join(sorted(plans)) or "none"
            raise DeviceError(f"{files.name}: ", f"has no method '{method}'; it has {known}")
        return plans[method]


def _subject(files: PackageFiles, method: str) -> str:
    return f"{files.name}: method '{method}' "


def _shape(value: schema.EValue) -> Shape:
    if not isinstance(value.val, schema.Tensor):
        return None
    return DeclaredTensor(tuple(value.val.sizes), DTYPES.get(int(value.val.scalar_type)))
