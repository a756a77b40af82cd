"""MPS and MLX, for Apple's GPUs: executorch/backends/apple/mps and executorch/backends/mlx."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pydantic import Field

from pipeline.backends import reasons
from pipeline.backends.entry import Backend, Constructor, Requirement
from pipeline.backends.options import Options
from pipeline.backends.vendors import on_a_mac

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


class MPSOptions(Options):
    """Compile specs of `MPSPartitioner`."""

    use_fp16: bool = Field(default=True, description="Compute in float16.")


class MLXOptions(Options):
    """`MLXPartitioner` reads no options."""


def _mps_partitioner(options: MPSOptions) -> Partitioner:
    from executorch.backends.apple.mps.partition import MPSPartitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    return MPSPartitioner(
        compile_specs=[] if options.use_fp16 else [CompileSpec("use_fp16", bytes([False]))]
    )


def _mlx_partitioner(options: MLXOptions) -> Partitioner:
    from pipeline.backends.apple import mlx_files

    mlx_files.provide()
    from executorch.backends.mlx.partitioner import MLXPartitioner

    return MLXPartitioner()


def _mlx_reproducible() -> AbstractContextManager[None]:
    from pipeline.backends.apple import mlx_files

    return mlx_files.reproducible()


def _mlx_installed() -> bool:
    from pipeline.backends.apple import mlx_files

    return mlx_files.installed()


ENTRIES: tuple[Backend, ...] = (
    Backend(
        name="mps",
        backend_id="MPSBackend",
        details="executorch.backends.apple.mps.mps_preprocess:MPSBackend",
        summary="Apple's GPUs; deprecated, use coreml",
        options=MPSOptions,
        make_partitioner=_mps_partitioner,
        constructors=(
            Constructor(
                "executorch.backends.apple.mps.partition.mps_partitioner:MPSPartitioner",
                left_out={"compile_specs": "made of the option"},
            ),
            Constructor(
                "executorch.backends.apple.mps.mps_preprocess:MPSBackend.preprocess[spec.key]"
            ),
        ),
        cannot_run=lambda: "the runtime in ExecuTorch's wheels has no MPS delegate",
        reasons=reasons.of_mps,
        looks_into=frozenset(),
    ),
    Backend(
        name="mlx",
        backend_id="MLXBackend",
        summary="Apple silicon's GPUs, through MLX",
        options=MLXOptions,
        make_partitioner=_mlx_partitioner,
        constructors=(
            Constructor(
                "executorch.backends.mlx.partitioner:MLXPartitioner",
                left_out={"compile_specs": "nothing reads them"},
            ),
        ),
        requirements=(
            Requirement(
                "executorch/data/bin/flatc, which ExecuTorch's wheels hold",
                "pip install --force-reinstall --no-deps executorch",
                _mlx_installed,
            ),
        ),
        around_preprocess=_mlx_reproducible,
        cannot_run=on_a_mac("MLX"),
        reasons=reasons.of_mlx,
        looks_into=frozenset(),
    ),
)
