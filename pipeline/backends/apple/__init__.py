"""MPS and MLX, for Apple's GPUs: executorch/backends/apple/mps and executorch/backends/mlx."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.backends.apple.mlx_files import installed, provide, reproducible
from pipeline.backends.entry import Backend, Execution, Lowering, Preprocessing, Why
from pipeline.backends.host import Host, Requirement, on_a_mac
from pipeline.backends.options import Options
from pipeline.backends.reasons import NOT_OF_THIS_TYPE

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram


class MPSOptions(Options):
    """Compile specs of `MPSPartitioner`."""

    use_fp16: bool = True
    """Compute in float16."""


class MLXOptions(Options):
    """`MLXPartitioner` reads no options."""


def _mps_partitioner(options: MPSOptions) -> Partitioner:
    from executorch.backends.apple.mps.partition import MPSPartitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    return MPSPartitioner(
        compile_specs=[] if options.use_fp16 else [CompileSpec("use_fp16", bytes([False]))]
    )


def _mlx_partitioner(options: MLXOptions) -> Partitioner:
    provide()
    from executorch.backends.mlx.partitioner import MLXPartitioner

    return MLXPartitioner()


@contextmanager
def _mps_reasons(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
    """Name the operators for which the partitioner has no visitor."""
    found: Why = {}
    yield found
    visitors = partitioner.supported_ops.node_visitors  # type: ignore[attr-defined]
    for node in program.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "__name__", "") not in visitors:
            found[node] = NOT_OF_THIS_TYPE


@contextmanager
def _mlx_reasons(partitioner: Partitioner, program: ExportedProgram) -> Iterator[Why]:
    """Read what the partitioner's builder keeps of each node, since it goes over the program
    first."""
    found: Why = {}
    yield found
    support = getattr(partitioner, "supported_ops", None)
    for node, info in support._builder.node_info.items() if support is not None else ():
        if not info.supported:
            found[node] = info.unsupported_reason or NOT_OF_THIS_TYPE


ENTRIES = (
    Backend(
        name="mps",
        backend_id="MPSBackend",
        summary="Apple's GPUs; deprecated, use coreml",
        options=MPSOptions,
        lowering=Lowering(_mps_partitioner, reasons=_mps_reasons, control_flow=frozenset()),
        preprocessing=Preprocessing(
            details="executorch.backends.apple.mps.mps_preprocess:MPSBackend"
        ),
        execution=Execution(
            cannot_run=lambda: "the runtime in ExecuTorch's wheels has no MPS delegate"
        ),
    ),
    Backend(
        name="mlx",
        backend_id="MLXBackend",
        summary="Apple silicon's GPUs, through MLX",
        options=MLXOptions,
        lowering=Lowering(_mlx_partitioner, reasons=_mlx_reasons, control_flow=frozenset()),
        preprocessing=Preprocessing(around=reproducible),
        host=Host(
            requirements=(
                Requirement(
                    "executorch/data/bin/flatc, which ExecuTorch's wheels hold",
                    "pip install --force-reinstall --no-deps executorch",
                    installed,
                ),
            )
        ),
        execution=Execution(cannot_run=on_a_mac("MLX")),
    ),
)
