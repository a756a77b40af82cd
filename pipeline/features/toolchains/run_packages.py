"""Runs packages on the runtime of the Python that executes this file; imports none of our code.

It reads a list of packages from standard input: their names, `.pte` and `.ptd` files. For each
method it writes a line of JSON: either a digest and the values of its outputs on inputs of the
declared shapes, or the error of the runtime.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

_MOST_VALUES = 256  # of an output that are compared
_SEVENTEEN = 17  # the period of the input values
# ExecuTorch's dtypes in the order of their numbers, up to the last one that packages have.
SCALAR_TYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32"),
    "bfloat16",
)


class TorchRuntime:
    """The runtime in ExecuTorch's wheel, whose bindings take torch tensors."""

    def __init__(self) -> None:
        self.torch = import_module("torch")  # the bindings need its libraries
        package = "executorch.extension.pybindings"
        try:
            self.bindings = import_module(f"{package}._C")  # its name since 1.5
        except ImportError:
            self.bindings = import_module(f"{package}._portable_lib")
        with contextlib.suppress(ImportError):
            # Registers the operators between quantized methods and their callers.
            import_module("executorch.kernels.quantized")

    def run(self, files: list[str], method: str) -> list[Any]:
        """Load a package, run a method once, and return its outputs as arrays or numbers."""
        module = self.bindings._load_for_executorch(*files)
        meta = module.method_meta(method)
        inputs = []
        for index in range(meta.num_inputs()):
            tensor = meta.input_tensor_meta(index)
            inputs.append(self._make_input(tuple(tensor.sizes()), tensor.dtype()))
        return [self._to_array(value) for value in module.run_method(method, inputs)]

    def _make_input(self, shape: tuple[int, ...], number: int) -> Any:
        dtype = getattr(self.torch, SCALAR_TYPES[number])
        values = make_values(shape, dtype.is_floating_point)
        return self.torch.from_numpy(values).to(dtype)

    def _to_array(self, value: Any) -> Any:
        if not isinstance(value, self.torch.Tensor):
            return value
        if value.dtype == self.torch.bfloat16:  # numpy lacks it
            value = value.float()
        return value.detach().contiguous().numpy()


class NumpyRuntime:
    """The runtime of `executorch-numpy-runtime`, which needs no torch and reads no `.ptd` files."""

    def __init__(self) -> None:
        self.runtime = import_module("executorch_numpy_runtime").Runtime.get()

    def run(self, files: list[str], method: str) -> list[Any]:
        """Load a package, run a method once, and return its outputs as arrays or numbers."""
        pte, *ptds = files
        if ptds:
            raise ValueError("executorch-numpy-runtime reads no .ptd file")
        loaded = self.runtime.load_program(pte).load_method(method)
        inputs = []
        for tensor in loaded.metadata["inputs"]:
            dtype = SCALAR_TYPES[tensor["scalar_type"]]
            values = make_values(tuple(tensor["shape"]), dtype.startswith("float"))
            inputs.append(values.astype(dtype))
        return list(loaded(inputs))


def open_runtime() -> TorchRuntime | NumpyRuntime:
    """Open the runtime that is installed."""
    if find_spec("executorch_numpy_runtime") is not None:
        return NumpyRuntime()
    return TorchRuntime()


def make_values(shape: tuple[int, ...], is_floating: bool) -> np.ndarray:
    """Return an array of a declared shape: zeros, which index any table, or small numbers."""
    if not is_floating:
        return np.zeros(shape, dtype=np.int64)
    count = int(np.prod(shape))
    values = np.arange(count, dtype=np.float32) % _SEVENTEEN / np.float32(_SEVENTEEN)
    return values.reshape(shape)


def describe(outputs: list[Any]) -> dict[str, Any]:
    """Return the digest and the values of outputs."""
    digest = hashlib.sha256()
    values: list[float] = []
    for output in outputs:
        if isinstance(output, np.ndarray):
            digest.update(output.tobytes())
            values += output.flatten()[:_MOST_VALUES].astype(np.float64).tolist()
        else:
            digest.update(repr(output).encode())
    return {"digest": digest.hexdigest(), "values": values}


@contextlib.contextmanager
def capture_log() -> Iterator[list[str]]:
    """Yield a list that receives what the runtime wrote to standard error, once the block ends."""
    lines: list[str] = []
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            lines += file.read().decode(errors="replace").splitlines()


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def run_package(runtime: TorchRuntime | NumpyRuntime, package: dict[str, Any]) -> None:
    """Load a package and run its methods, each from its initial state."""
    name = package["package"]
    tell(package=name, method=None)
    files = [package["pte"], *package["ptds"]]
    for method in package["methods"]:
        tell(package=name, method=method)
        facts: dict[str, Any] = {}
        with capture_log() as log:
            try:
                facts = describe(runtime.run(files, method))
            except Exception as error:
                facts = {
                    "error": str(error).splitlines()[0] if str(error) else repr(error)
                }
        tell(package=name, method=method, log=log[-20:], **facts)


def main() -> None:
    runtime = open_runtime()
    for package in json.load(sys.stdin):
        run_package(runtime, package)


if __name__ == "__main__":
    main()
