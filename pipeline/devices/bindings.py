"""Opens packages and runs their methods on ExecuTorch's runtime, through its Python bindings.

This module doesn't know what a program should compute.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import zip_longest
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch

from pipeline.devices.interface import (
    DeclaredTensor,
    Device,
    FlatSignature,
    PackageFiles,
)
from pipeline.devices.runtime_log import (
    ERRORS,
    error_code,
    explain_failure,
    runtime_log,
)
from pipeline.moments import call_all
from pipeline.program.operator_libraries import register_operators
from pipeline.program.runtime_bindings import import_bindings
from pipeline.program.scalar_types import SCALAR_TYPES
from pipeline.store.errors import DeviceError, PipelineError
from pipeline.store.sizes import human_size

_INVALID_ARGUMENT = 0x12
_WRONG_INPUT = re.compile(r"Input \d+ was expected|length of given input array")

# torch's dtypes by ExecuTorch's numbers, without torch's quantized types, which it can't run.
DTYPES = {
    number: getattr(torch, name)
    for number, name in enumerate(SCALAR_TYPES.split())
    if not name.startswith(("q", "bits"))
}


class Package:
    """A package, opened by the runtime from files, which it maps, or from bytes.

    A method keeps its state, the mutable buffers, from call to call as long as the Package lives.
    Each method has its own memory, and another Package of the same file starts from the initial
    state. After `run` has raised, the next call starts with the state that the failed call left.
    """

    def __init__(self, files: PackageFiles) -> None:
        self.name = files.name
        self._signatures: dict[str, FlatSignature] = {}
        with self._errors("", "does not open"):
            self._module = self._open(files)
            self._names: list[str] = sorted(self._module.method_names())
        self._plans = files.plans

    def _open(self, files: PackageFiles) -> Any:
        library = _library()
        paths = [files.pte, *files.ptds]
        if any(isinstance(path, bytes) for path in paths):
            # Kept here, since the bindings copy neither.
            self._bytes = files.contents(), _merge(files.data())
            return library._load_for_executorch_from_buffer(*self._bytes)
        if len(paths) <= 2:
            return library._load_for_executorch(*map(str, paths))
        with NamedTemporaryFile(suffix=".ptd") as merged_file:
            merged_file.write(_merge(files.data()) or b"")
            merged_file.flush()
            module = library._load_for_executorch(str(files.pte), merged_file.name)
            module.method_names()  # opens the file, whose name isn't needed afterwards
            return module

    def methods(self) -> list[str]:
        """Return the names of the methods, sorted and including constant methods."""
        return list(self._names)

    def signature(self, method: str) -> FlatSignature:
        """Return the declared inputs and outputs of a method, without loading it."""
        if method not in self._names:
            names = ", ".join(self._names) or "none"
            raise PipelineError(
                f"{self.name}: has no method '{method}'; it has {names}"
            )
        if method not in self._signatures:
            with self._errors(method, "cannot be read"):
                meta = self._module.method_meta(method)
                inputs = [
                    _tensor(meta.input_tensor_meta, i) for i in range(meta.num_inputs())
                ]
                outputs = [
                    _tensor(meta.output_tensor_meta, i)
                    for i in range(meta.num_outputs())
                ]
                self._signatures[method] = FlatSignature(tuple(inputs), tuple(outputs))
        return self._signatures[method]

    def load(self, method: str) -> None:
        """Load the method's delegates and operators, without running anything.

        The bindings load a method only in order to execute it. It is therefore called with one
        input too many, which the runtime refuses with "invalid argument" after loading and before
        executing. A load that fails with that same code only shows in the first run.
        """
        inputs = [None] * (len(self.signature(method).inputs) + 1)
        try:
            with self._errors(method, "does not load"):
                self._module.run_method(method, inputs)
        except DeviceError as error:
            is_wrong_input = error.code == _INVALID_ARGUMENT
            if error.code is None:  # the error was truncated
                is_wrong_input = _WRONG_INPUT.search(error.reason) is not None
            if not is_wrong_input:
                raise

    def run(self, method: str, inputs: Sequence[Any]) -> list[Any]:
        """Run a method on flat inputs, tensors of any layout; return copies of its flat outputs."""
        arity = len(self.signature(method).inputs)
        if len(inputs) != arity:  # too few would crash the process
            reason = f"takes {arity} inputs, {len(inputs)} given"
            subject = f"{self.name}: method '{method}' "
            raise DeviceError(subject, reason, code=_INVALID_ARGUMENT)
        plan = self._plans.get(method)
        # The plans of a damaged file are unknown; tensors then keep the order of their dimensions.
        orders = plan.input_orders if plan is not None else ()
        with self._errors(method, "fails"):
            copies = [
                _lay_out(value, order) for value, order in zip_longest(inputs, orders)
            ]
            return list(self._module.run_method(method, copies, True))

    @contextmanager
    def _errors(self, method: str, failure: str) -> Iterator[None]:
        """Turn the bindings' errors into a DeviceError that ends with the runtime's log."""
        subject = f"{self.name}: "
        if method:
            subject += f"method '{method}' "
        log: list[str] = []
        try:
            with runtime_log(log):
                yield
        except RuntimeError as error:
            code = error_code(str(error))
            message = (
                str(error)
                if code is None
                else f"{ERRORS.get(code, 'error')} (0x{code:x})"
            )
            explanations, instruction = explain_failure(log)
            reason = "; ".join([f"{failure}: {message}", *explanations])
            raise DeviceError(
                subject, reason, code=code, instruction=instruction
            ) from error
        except MemoryError as error:
            raise DeviceError(
                subject, f"{failure}: {self._describe_memory(method)}"
            ) from error
        except ValueError as error:  # a name in the file isn't valid text
            raise DeviceError(subject, f"{failure}: damaged: {error}") from error

    def _describe_memory(self, method: str) -> str:
        """Describe how much memory a method needs that can't be allocated."""
        plan = self._plans.get(method)
        planned = human_size(sum(plan.arenas)) if plan is not None else "unknown"
        return (
            f"this machine has too little memory for it (planned: {planned}); memory is planned "
            "for the upper bounds of dynamic sizes: lower these bounds"
        )


class ExecutorchDevice(Device):
    """Runs packages on ExecuTorch's runtime.

    Each loaded method has its own Package, since a method's state lives in its Package.
    """

    def load(self, files: PackageFiles, method: str) -> tuple[Package, str]:
        package = Package(files)
        package.load(method)
        return package, method

    def call(self, loaded: tuple[Package, str], values: Sequence[Any]) -> list[Any]:
        package, method = loaded
        return package.run(method, values)

    def describe(self, files: PackageFiles, method: str) -> list[str]:
        plan = files.plans.get(method)
        if plan is None:
            return []
        lines = []
        for number, (backend, _) in enumerate(plan.delegates):
            lines.append(f"delegate {number}: {backend}")
        lines += [f"kernel {name}" for name in plan.operators]
        return lines


def _tensor(read: Any, index: int) -> DeclaredTensor | None:
    try:
        info = read(index)
    except IndexError:  # the bindings raise it for values that aren't tensors
        return None
    return DeclaredTensor(tuple(info.sizes()), DTYPES.get(int(info.dtype())))


def _lay_out(value: Any, order: tuple[int, ...] | None) -> Any:
    """Clone a tensor, with its memory in the dimension order that the method was exported with.

    The runtime reads memory in that order, regardless of the tensor's strides, and the bindings
    reject some layouts. A clone is needed because a method whose inputs are not memory-planned may
    write to them.
    """
    if not isinstance(value, torch.Tensor):
        return value
    if order is None or value.ndim != len(order):
        order = tuple(range(value.ndim))
    plain = value.detach().permute(order).clone(memory_format=torch.contiguous_format)
    return plain.view(value.shape)


@cache
def _library() -> Any:
    """Import the bindings, with the operators at the boundary of quantized packages."""
    _set_openvino_path()
    import executorch.kernels.quantized  # noqa: F401

    library = import_bindings()
    list(call_all("load_delegates"))
    return library


def _set_openvino_path() -> None:
    """Set the library path for the OpenVINO backend, as portable_lib.py does on import."""
    spec = importlib.util.find_spec("openvino")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        libraries = sorted(Path(folder, "libs").glob("libopenvino_c.so*"))
        if libraries:
            os.environ.setdefault("OPENVINO_LIB_PATH", str(libraries[0]))


def find_missing_kernels(operators: Iterable[str]) -> list[str]:
    """Return the operators of a plan, such as `llama::update_cache.out`, that lack a kernel.

    Installed libraries that register such kernels are loaded first.
    """
    library = _library()
    plan_names = {operator.replace("::", "."): operator for operator in operators}

    def is_known(name: str) -> bool:
        return plan_names[name] in library._get_operator_names()

    return [plan_names[name] for name in register_operators(plan_names, is_known)]


def find_unpassable(values: Iterable[tuple[str, Any]]) -> str:
    """Return why the bindings can't call a method, given its inputs by name, or "".

    Source: `PyModule.run_method` (extension/pybindings/pybindings.cpp), which knows these types.
    """
    for name, value in values:
        if isinstance(value, _PASSABLE):
            continue
        kind = "a text" if isinstance(value, str) else f"a {type(value).__name__}"
        return f"input '{name}' is {kind}, which ExecuTorch's bindings for Python can't pass"
    return ""


_PASSABLE = (
    type(None),
    torch.Tensor,
    int,
    float,
    torch.SymInt,
    torch.SymFloat,
    torch.SymBool,
)


def registered_backends() -> frozenset[str]:
    """Return the ids of the backends that this runtime has."""
    return frozenset(_library()._get_registered_backend_names())


def _merge(ptds: Sequence[bytes]) -> bytes | None:
    """Merge `.ptd` files: the C++ runtime takes any number of them, its bindings at most one."""
    if not ptds:
        return None
    if len(ptds) == 1:
        return ptds[0]
    from executorch.exir._serialize._cord import Cord
    from executorch.exir._serialize.data_serializer import DataEntry, DataPayload
    from executorch.extension.flat_tensor.serialize.serialize import (
        FlatTensorSerializer,
    )

    serializer = FlatTensorSerializer()
    buffers: list[bytes] = []
    named: dict[str, DataEntry] = {}
    for ptd in ptds:
        payload = serializer.deserialize(Cord(ptd))
        for key, entry in payload.named_data.items():
            index = len(buffers) + entry.buffer_index
            named[key] = DataEntry(index, entry.alignment, entry.tensor_layout)
        buffers += payload.buffers
    return bytes(serializer.serialize(DataPayload(buffers, named)))
