"""CUDA and Metal, both through AOTInductor: executorch/backends/{aoti,cuda,apple/metal}."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from pipeline.backends.entry import Backend, Constructor, Requirement, importable
from pipeline.backends.options import Options
from pipeline.backends.vendors import require

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


def _cuda_device(value: str) -> str:
    if not re.fullmatch(r"cuda:[0-9]+", value):
        raise PydanticCustomError("rule", "must be cuda: and a number")
    return value


class CudaOptions(Options):
    """Compile specs of `CudaPartitioner`."""

    target_device: Annotated[str, AfterValidator(_cuda_device)] = Field(
        default="cuda:0",
        description="Which GPU the package runs on: cuda: and a number.",
    )
    platform: Literal["linux", "windows"] = Field(
        default="linux", description="What the package runs on."
    )
    triton_kernel_mode: Literal["ON", "OFF"] = Field(
        default="ON", description="Replace operators by ExecuTorch's Triton kernels."
    )
    max_autotune: bool = Field(
        default=True, description="Choose kernels by timing them on the GPU that builds."
    )
    autotune_pointwise: bool | None = Field(
        default=None,
        description="Time the kernels of element-wise operators too; by default as torch does.",
    )
    autotune_at_compile_time: bool | None = Field(
        default=None,
        description="Choose Triton's kernels while compiling, not when they are first called; by "
        "default as torch does.",
    )
    emulate_precision_casts: bool = Field(
        default=True, description="Round as eager mode does where operators are fused."
    )
    low_memory_mode: bool = Field(
        default=False, description="Keep caches and copies of buffers off the GPU that builds."
    )


def _cuda_partitioner(options: CudaOptions) -> Partitioner:
    require(CUDA)
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    told = {
        name: ("ON" if value else "OFF") if isinstance(value, bool) else value
        for name, value in options.resolved().items()
        if value is not None
    }
    return CudaPartitioner([CompileSpec(name, value.encode()) for name, value in told.items()])


def _cuda_torch() -> bool:
    """Whether torch is a CUDA build: its version says so, or the libraries of one are there."""
    try:
        return "+cu" in version("torch") or importable("nvidia")
    except PackageNotFoundError:
        return False


def _gpus() -> Mapping[str, str]:
    """Kernels are compiled for the GPUs of this machine, unless a variable names others."""
    variables = ("CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "TRITON_PTXAS_PATH")
    told = {name: os.environ[name] for name in variables if name in os.environ}
    driver = Path("/proc/driver/nvidia")
    for file in (driver / "version", *sorted(driver.glob("gpus/*/information"))):
        with suppress(OSError):
            first = file.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
            told[str(file.relative_to(driver))] = " ".join(first.split())
    return told


CUDA = Backend(
    name="cuda",
    backend_id="CudaBackend",
    summary="Nvidia GPUs",
    options=CudaOptions,
    distributions=("executorch", "flatbuffers", "torch", "torchao", "triton"),
    make_partitioner=_cuda_partitioner,
    requirements=(
        Requirement(
            "a CUDA build of torch",
            "install torch 2.13.0 from PyTorch's index for CUDA",
            _cuda_torch,
        ),
        Requirement("triton", "pip install triton", lambda: importable("triton")),
        Requirement(
            "an Nvidia GPU",
            "build on a machine that has one",
            lambda: os.path.exists("/dev/nvidia0"),
        ),
    ),
    facts=_gpus,
    unreproducible="kernels are chosen by timing them",
    constructors=(
        Constructor(
            "executorch.backends.cuda.cuda_partitioner:CudaPartitioner",
            left_out={"compile_spec": "made of the options"},
        ),
        Constructor(
            "executorch.backends.cuda.cuda_backend:CudaBackend[spec.key]",
            left_out={"shim_library_path": "a folder of the machine that builds"},
        ),
        Constructor("executorch.exir.passes.propagate_device_pass:[spec.key]"),
    ),
)


class MetalOptions(Options):
    """Compile specs of `MetalPartitioner`."""

    codesign_identity: str | None = Field(
        default=None,
        min_length=1,
        description="What the code in the package is signed with; `-`: signed ad hoc.",
    )


def _metal_partitioner(options: MetalOptions) -> Partitioner:
    require(METAL)
    from executorch.backends.apple.metal.metal_partitioner import MetalPartitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    identity = options.codesign_identity
    return MetalPartitioner(
        [CompileSpec("codesign_identity", identity.encode())] if identity else []
    )


METAL = Backend(
    name="metal",
    backend_id="MetalBackend",
    summary="GPUs of Macs",
    options=MetalOptions,
    make_partitioner=_metal_partitioner,
    requirements=(Requirement("a Mac", "build on macOS", lambda: sys.platform == "darwin"),),
    unreproducible="kernels are chosen by timing them",
    constructors=(
        Constructor(
            "executorch.backends.apple.metal.metal_partitioner:MetalPartitioner",
            left_out={"compile_spec": "made of the options"},
        ),
        Constructor("executorch.backends.apple.metal.metal_backend:MetalBackend[spec.key]"),
    ),
)


ENTRIES = (CUDA, METAL)
