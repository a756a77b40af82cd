"""Finds libraries with kernels that packages need and ExecuTorch's C++ SDK lacks.

ExecuTorch's kernels for language models, such as `llama::custom_sdpa.out`, are in a library of its
wheel that links against PyTorch, so a runner loads it only for packages that need it. This module
loads no library and doesn't import torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.features.native.setups import Setup

SETTING = "native_kernels"
_OPTION = "--kernels"  # an option of the runner
_IN_SDK = "extension/llm/custom_ops/libcustom_ops_aot_lib.so"
_TORCH = (
    "torch/lib/libtorch_cpu.so",
    "torch/version.py",
)  # next to the SDK in a wheel's folder
_NO_BINDINGS = "_C.*.so"  # an empty library that is built next to a runner
_OF_SDK = ("aten::", "dim_order_ops::", "quantized_decomposed::", "executorch_prim::")
_MACHINES = {"x86_64": 62, "aarch64": 183}  # ELF's `e_machine`, by `uname -m`
_MACHINE = slice(18, 20)


def find_sdk_library(sdk: Path) -> list[Path]:
    """Return an SDK's library for language models and the version file of PyTorch.

    Returns an empty list if the library or PyTorch is missing.
    """
    library = sdk / _IN_SDK
    torch, version = (sdk.parent / path for path in _TORCH)
    return [library, version] if library.is_file() and torch.is_file() else []


def is_for_machine(library: Path, machine: str) -> bool:
    """Return whether a library is for a processor (`uname -m`); False if it can't be read."""
    try:
        with library.open("rb") as file:
            header = file.read(_MACHINE.stop)
    except OSError:
        return False
    return int.from_bytes(header[_MACHINE], "little") == _MACHINES.get(machine)


def make_arguments(setup: Setup, program: Path, operators: Iterable[str]) -> list[str]:
    """Return the arguments that make a runner load the libraries that methods need.

    Args:
        program: the path of the runner.
        operators: the operators that the methods call, such as `aten::add.out`.
    """
    libraries = [path for path in setup.kernels if has_kernels(path, operators)]
    if any(path.match(_IN_SDK) for path in libraries):
        libraries = [*program.parent.glob(_NO_BINDINGS), *libraries]
    return [word for path in libraries for word in (_OPTION, str(path))]


def has_kernels(library: Path, operators: Iterable[str]) -> bool:
    """Return whether a library contains the name of an operator for which the SDK has no kernel."""
    names = [name for name in operators if not name.startswith(_OF_SDK)]
    if not names or not library.is_file() or not library.stat().st_size:
        return False
    with (
        library.open("rb") as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as content,
    ):
        return any(content.find(name.encode() + b"\0") >= 0 for name in names)


def explain_missing(setup: Setup, operators: Sequence[str], problem: str = "") -> str:
    """Return which operators a runner has no kernels for, and how to provide them.

    Args:
        problem: why the runner can't load the library with the kernels, or "".
    """
    fault = f"its runner has no kernel for {', '.join(operators)}"
    if problem:
        return f"{fault}; {problem}"
    if setup.address:
        return f"{fault}; native and qemu:<cpu> load such kernels; boards don't yet"
    if setup.sdk and has_kernels(setup.sdk / _IN_SDK, operators):
        return f"{fault}; unpack PyTorch's wheel to {setup.sdk.parent}, whose kernels need it"
    return f"{fault}; set {SETTING} to a library that registers it"
