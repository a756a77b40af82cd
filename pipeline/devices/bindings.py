"""The bindings of ExecuTorch's runtime: opening a package and running its methods.

The extension module `_portable_lib` is imported alone: `executorch.runtime` and `portable_lib`
import exir, which takes seconds. This module does not know what a program should compute.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import cache
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch

from pipeline.devices.delegates import load_delegate_libraries
from pipeline.devices.interface import Declared, DeclaredTensor, Device, PackageFiles
from pipeline.program.operator_libraries import LIBRARIES, register_operators
from pipeline.program.pte import SCALAR_TYPES
from pipeline.store.errors import DeviceError, PipelineError
from pipeline.store.sizes import human_size

# runtime/core/error.h, in words that fit what a package does wrong.
ERRORS = {
    0x01: "internal error",
    0x02: "invalid state, as where external data (.ptd) is missing",
    0x10: "wrong shape, or not supported",
    0x11: "not implemented",
    0x12: "wrong dtype or number of inputs, or an argument that an operator refused",
    0x13: "wrong type",
    0x14: "missing operator",
    0x20: "missing backend, or data that a delegate looks for",
    0x21: "out of memory",
    0x22: "file cannot be read",
    0x23: "corrupt file",
    0x24: "corrupt external data (.ptd)",
    0x25: "out of resources",
    0x30: "delegate of an incompatible version",
    0x31: "delegate out of memory",
    0x32: "invalid delegate handle",
}
_INVALID_ARGUMENT = 0x12
# The bindings cut their errors: one about a long name of a method ends before its code. What
# the runtime logged tells a wrong argument too.
_LONGEST = 127
_WRONG_INPUT = re.compile(r"Input \d+ was expected|length of given input array")

# torch's dtypes by ExecuTorch's numbers. torch's own quantized ones are none that it runs.
DTYPES = {
    number: getattr(torch, name)
    for number, name in enumerate(SCALAR_TYPES.split())
    if not name.startswith(("q", "bits"))
}
_LOG_LINE = re.compile(r"\[(\w+)\.(?:cpp|h|cc):\d+\] (.*)")
_ABOUT_THE_MACHINE = "cpuinfo_utils"  # which reads the processor's names when threads start
# How the runtime prints the tensors and the arguments of a call, on several lines.
_TENSOR_LINE = re.compile(
    r"dtype: \d+ \| dim order:|\s*dim_order\(\d+\): \d+$|arg \d+ with type id \d+$|[\d\s,\]]*$"
)
# A check around another one that failed: `Check failed (check_cat_args(tensors, dim, out)): `.
_OUTER_CHECK = re.compile(r"Check failed \(\w+\(.*\)\)")
# `KernelCall failed at instruction 0:5 in operator aten::mul.out: 0x12`, in chain 0.
_AT_INSTRUCTION = re.compile(r"failed at instruction (?:\d+:)?(\d+)")
_MOST_LINES = 3  # of what the runtime logged, beside the instruction
_LOG_LOCK = threading.RLock()


class Package:
    """A package, opened by the runtime from files, which it maps, or from bytes.

    A method keeps its state, the mutable buffers, from call to call as long as the Package lives;
    each method has memory of its own; another Package of the same file starts anew. After `run` has
    raised, the next call begins again, on whatever state the failed one has left.
    """

    def __init__(self, files: PackageFiles) -> None:
        self.name = files.name
        self._declared: dict[str, Declared] = {}
        library, paths = _library(), [files.pte, *files.ptds]
        with self._errors("", "does not open"):
            if any(isinstance(path, bytes) for path in paths):
                # The bindings keep no copy of these.
                self._bytes = files.contents(), _merge(files.data())
                self._module = library._load_for_executorch_from_buffer(*self._bytes)
            elif len(paths) <= 2:
                self._module = library._load_for_executorch(*map(str, paths))
            else:
                with NamedTemporaryFile(suffix=".ptd") as merged:
                    merged.write(_merge(files.data()) or b"")
                    merged.flush()
                    self._module = library._load_for_executorch(str(files.pte), merged.name)
                    self._module.method_names()  # opens it, and then it needs no name
            self._names: list[str] = sorted(self._module.method_names())
        self._plans = files.plans

    def methods(self) -> list[str]:
        """List the methods, sorted, constant methods among them."""
        return list(self._names)

    def declared(self, method: str) -> Declared:
        """Return what a method takes and gives, without loading it."""
        if method not in self._names:
            known = ", ".join(self._names) or "none"
            raise PipelineError(f"{self.name}: has no method '{method}'; it has {known}")
        if method not in self._declared:
            with self._errors(method, "cannot be read"):
                meta = self._module.method_meta(method)
                inputs = [_tensor(meta.input_tensor_meta, i) for i in range(meta.num_inputs())]
                outputs = [_tensor(meta.output_tensor_meta, i) for i in range(meta.num_outputs())]
                self._declared[method] = Declared(tuple(inputs), tuple(outputs))
        return self._declared[method]

    def load(self, method: str) -> None:
        """Make the method's delegates and operators ready, without running anything.

        The bindings load a method only to execute it. So it is called with one input too many,
        which the runtime refuses with "invalid argument" after loading and before executing.
        A load that fails with that same code is noticed by the first run.
        """
        inputs = [None] * (len(self.declared(method).inputs) + 1)
        try:
            with self._errors(method, "does not load"):
                self._module.run_method(method, inputs)
        except DeviceError as failure:
            cut = failure.code is None and _WRONG_INPUT.search(failure.reason)
            if failure.code != _INVALID_ARGUMENT and not cut:
                raise

    def run(self, method: str, inputs: Sequence[Any]) -> list[Any]:
        """Run a method on flat inputs, tensors of any layout; return copies of its flat outputs.
        Too few inputs would crash the process."""
        arity = len(self.declared(method).inputs)
        if len(inputs) != arity:
            reason = f"takes {arity} inputs, {len(inputs)} given"
            subject = f"{self.name}: method '{method}' "
            raise DeviceError(subject, reason, code=_INVALID_ARGUMENT)
        plan = self._plans.get(method)
        pairs = zip_longest(inputs, plan.input_orders if plan is not None else ())
        with self._errors(method, "fails"):
            return list(self._module.run_method(method, [_lay_out(*pair) for pair in pairs], True))

    @contextmanager
    def _errors(self, method: str, what: str) -> Iterator[None]:
        """Turn the bindings' errors into a DeviceError that ends with the runtime's words."""
        subject = f"{self.name}: " + (f"method '{method}' " if method else "")
        log: list[str] = []
        try:
            with runtime_log(log):
                yield
        except RuntimeError as error:
            whole = str(error) if len(str(error)) < _LONGEST else ""
            found = re.search(r"error:? 0x:?([0-9a-fA-F]+)", whole)
            code = int(found.group(1), 16) if found else None
            words = str(error) if code is None else f"{ERRORS.get(code, 'error')} (0x{code:x})"
            said, instruction = _read_log(log)
            reason = "; ".join([f"{what}: {words}", *said])
            raise DeviceError(subject, reason, code=code, instruction=instruction) from error
        except MemoryError as error:
            raise DeviceError(subject, f"{what}: {self._describe_memory(method)}") from error

    def _describe_memory(self, method: str) -> str:
        """Say why the memory that a method asks for is not to be had."""
        plan = self._plans.get(method)
        planned = human_size(sum(plan.arenas)) if plan is not None else "unknown"
        return (
            f"this machine hasn't the memory that it asks for (planned: {planned}); sizes that are "
            "not fixed are planned for their largest values: give them smaller bounds"
        )


class ExecutorchDevice(Device):
    """Runs packages on ExecuTorch's runtime. A loaded method has a Package of its own, since the
    state of a method is that of its Package."""

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
        delegates = (f"delegate {n}: {each.backend}" for n, each in enumerate(plan.delegates))
        return [*delegates, *(f"kernel {name}" for name in plan.operators)]


def _read_log(log: Sequence[str]) -> tuple[list[str], int | None]:
    """Return the lines of the runtime's log that explain a failure, and the number of the
    instruction at which it was, if any. The line with that comes last, behind any number of others.
    """
    lines = [line.rstrip(" .:") for line in log if not _TENSOR_LINE.match(line)]
    places = [line for line in lines if _AT_INSTRUCTION.search(line)]
    others = [line for line in lines if line not in places]
    inner = [line for line in others if not _OUTER_CHECK.fullmatch(line)] or others
    found = _AT_INSTRUCTION.search(places[0]) if places else None
    return [*inner[:_MOST_LINES], *places[:1]], int(found[1]) if found else None


def _tensor(read: Any, index: int) -> DeclaredTensor | None:
    try:
        info = read(index)
    except IndexError:  # how the bindings say that it is not a tensor
        return None
    return DeclaredTensor(tuple(info.sizes()), DTYPES.get(int(info.dtype())))


def _lay_out(value: Any, order: tuple[int, ...] | None) -> Any:
    """Clone a tensor, with its memory in the order of dimensions that the method was exported with.

    The runtime reads memory so, whatever the tensor's own strides, and the bindings do not take
    tensors of every layout. A method whose inputs are not memory-planned may write to them.
    """
    if not isinstance(value, torch.Tensor):
        return value
    if order is None or value.ndim != len(order):
        order = tuple(range(value.ndim))
    plain = value.detach().permute(order).clone(memory_format=torch.contiguous_format)
    return plain.view(value.shape)


@contextmanager
def runtime_log(lines: list[str]) -> Iterator[None]:
    """Collect the runtime's messages while the block runs, without their source positions.

    They say which operator is missing or which size is wrong, where an error has only a code. What
    it says of the machine, which explains no error, is left out. The bindings send them to
    `sys.stderr`; other output there is written again after the block.
    """
    written = io.StringIO()
    try:
        with _LOG_LOCK, redirect_stderr(written):
            yield
    finally:
        for line in written.getvalue().splitlines():
            message = _LOG_LINE.match(line)
            if message is None:
                print(line, file=sys.stderr)
            elif message.group(1) != _ABOUT_THE_MACHINE:
                lines.append(message.group(2))


@cache
def _library() -> Any:
    """Import the bindings, with the operators that quantized packages need at their boundary."""
    # As portable_lib.py does on import: where the OpenVINO backend looks for its library.
    spec = importlib.util.find_spec("openvino")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for library in sorted(Path(folder, "libs").glob("libopenvino_c.so*"))[:1]:
            os.environ.setdefault("OPENVINO_LIB_PATH", str(library))
    import executorch.kernels.quantized  # noqa: F401
    from executorch.extension.pybindings import _portable_lib

    load_delegate_libraries()
    return _portable_lib


def find_missing_kernels(operators: Iterable[str]) -> list[str]:
    """Return those of a plan's operators, as `llama::update_cache.out`, for which the runtime has
    no kernel, after loading the installed libraries that bring some."""
    library = _library()
    names = {each.replace("::", "."): each for each in operators}

    def is_known(name: str) -> bool:
        return names[name] in library._get_operator_names()

    return [names[name] for name in register_operators(names, is_known)]


def find_unpassable(values: Iterable[tuple[str, Any]]) -> str:
    """Return why the bindings can't call a method, whose inputs are given by name, or "".

    Source: `PyModule.run_method` (extension/pybindings/pybindings.cpp), which knows these types.
    """
    for name, value in values:
        if value is not None and not isinstance(value, (torch.Tensor, int, float, *_SYMBOLIC)):
            kind = "a text" if isinstance(value, str) else f"a {type(value).__name__}"
            return f"input '{name}' is {kind}, which ExecuTorch's bindings for Python can't pass"
    return ""


_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def registered_backends() -> frozenset[str]:
    """Return the ids of the backends that this runtime has."""
    return frozenset(_library()._get_registered_backend_names())


def describe_runtime() -> dict[str, Any]:
    """Return what the runtime of the wheel holds, with the libraries of kernels that come with it,
    as a target has it (`pipeline/config/targets.py`)."""
    from executorch.exir.version import EXECUTORCH_SCHEMA_VERSION

    library = _library()
    importlib.import_module(LIBRARIES["llama"][0])
    release = re.match(r"[\d.]+\d", version("executorch"))
    return {
        "executorch": release[0] if release else None,
        "identifier": "ET12",
        "schema_version": EXECUTORCH_SCHEMA_VERSION,
        "backends": sorted(filter(library._is_available, registered_backends())),
        "operators": sorted(set(library._get_operator_names())),
    }


def _merge(ptds: Sequence[bytes]) -> bytes | None:
    """Merge `.ptd` files: the C++ runtime takes any number of them, its bindings at most one."""
    if len(ptds) < 2:
        return next(iter(ptds), None)
    from executorch.exir._serialize._cord import Cord
    from executorch.exir._serialize.data_serializer import DataEntry, DataPayload
    from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

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
