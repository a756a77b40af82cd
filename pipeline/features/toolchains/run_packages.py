"""Runs packages on the runtime of the Python that executes this file; imports nothing of ours.

It reads a list of packages from its input: their names, `.pte` and `.ptd` files. For each method it
writes a line of JSON: whether it ran on inputs of the declared shapes, and a digest and the values
of its outputs, or what the runtime said.
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
from typing import Any

import torch

_MOST_VALUES = 256  # of an output that are compared
_SEVENTEEN = 17  # values of inputs repeat with it


def import_bindings() -> Any:
    """Import the extension module of ExecuTorch's runtime, which is called otherwise since 1.5."""
    package = "executorch.extension.pybindings"
    try:
        bindings = import_module(f"{package}._C")
    except ImportError:
        bindings = import_module(f"{package}._portable_lib")
    with contextlib.suppress(
        ImportError
    ):  # the operators between quantized methods and callers
        import executorch.kernels.quantized  # noqa: F401
    return bindings


def make_input(meta: Any, dtypes: list[torch.dtype]) -> torch.Tensor:
    """Return a tensor of a declared shape: zeros, which index any table, or small numbers."""
    shape, dtype = tuple(meta.sizes()), dtypes[meta.dtype()]
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype)
    count = 1
    for size in shape:
        count *= size
    values = torch.arange(count, dtype=torch.float32) % _SEVENTEEN / _SEVENTEEN
    return values.reshape(shape).to(dtype)


def run_method(module: Any, method: str) -> dict[str, Any]:
    """Run a method once; return its outputs as digests and values."""
    dtypes = [getattr(torch, name) for name in SCALAR_TYPES]
    meta = module.method_meta(method)
    inputs = [
        make_input(meta.input_tensor_meta(i), dtypes) for i in range(meta.num_inputs())
    ]
    outputs = module.run_method(method, inputs)
    digest = hashlib.sha256()
    values: list[float] = []
    for output in outputs:
        if not isinstance(output, torch.Tensor):
            digest.update(repr(output).encode())
            continue
        flat = output.detach().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        values += flat[:_MOST_VALUES].to(torch.float64).tolist()
    return {"digest": digest.hexdigest(), "values": values}


# ExecuTorch's dtypes in the order of their numbers, as far as packages have them.
SCALAR_TYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *(
        "complex32",
        "complex64",
        "complex128",
        "bool",
        "qint8",
        "quint8",
        "qint32",
        "bfloat16",
    ),
)


@contextlib.contextmanager
def capture_log() -> Iterator[list[str]]:
    """Yield a list that has what the runtime wrote to standard error, once the block has ended."""
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


def run_package(bindings: Any, package: dict[str, Any]) -> None:
    """Load a package and run its methods, each from its initial state."""
    name = package["package"]
    tell(package=name, method=None)
    files = [package["pte"], *package["ptds"]]
    for method in package["methods"]:
        tell(package=name, method=method)
        facts: dict[str, Any] = {}
        with capture_log() as log:
            try:
                facts = run_method(bindings._load_for_executorch(*files), method)
            except Exception as error:
                facts = {
                    "error": str(error).splitlines()[0] if str(error) else repr(error)
                }
        tell(package=name, method=method, log=log[-20:], **facts)


def main() -> None:
    bindings = import_bindings()
    for package in json.load(sys.stdin):
        run_package(bindings, package)


if __name__ == "__main__":
    main()
