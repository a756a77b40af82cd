"""The oracle: makes a package of the gallery with ExecuTorch's API, without a build system.

    python examples/joint.py PACKAGE FILE

It exports the programs and lowers all methods in one call, with the script that ExecuTorch ships
for the example if there is one. It can't import the build system, so `exports.py` repeats what that
system's sources do for transformers models.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch
from executorch.backends.xnnpack._passes.convert_to_linear import ConvertToLinearPass
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackDynamicallyQuantizedPartitioner,
    XnnpackPartitioner,
)
from executorch.exir import (
    EdgeCompileConfig,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.passes import MemoryPlanningPass
from torch.export import ExportedProgram

HERE = Path(__file__).resolve().parent
WRITTEN_OUT = ("detr", "gemma3", "llama", "qwen3", "segformer", "t5", "vit")  # in `exports.py`
Exported: TypeAlias = tuple[dict[str, ExportedProgram], dict[str, Any]]


def export_package(package: str) -> Exported:
    """Return the programs of a package and its constant methods."""
    if package in WRITTEN_OUT:
        return getattr(importlib.import_module("exports"), package)()
    model = importlib.import_module(package)
    if hasattr(model, "exported"):
        return model.exported()
    return {name: program for name, (program, _) in model.export_methods().items()}, {}


def lower(
    programs: dict[str, ExportedProgram],
    constants: dict[str, Any],
    check_validity: bool = True,
    **emission: Any,
) -> ExecutorchProgramManager:
    """Lower all methods to XNNPACK."""
    edge = to_edge_transform_and_lower(
        programs,
        partitioner={name: [XnnpackPartitioner()] for name in programs},
        constant_methods=constants or None,
        compile_config=EdgeCompileConfig(_check_ir_validity=check_validity),
    )
    return edge.to_executorch(ExecutorchBackendConfig(**emission))


def unchecked(programs: Any, constants: Any) -> ExecutorchProgramManager:
    planning = MemoryPlanningPass(alloc_graph_input=False)
    return lower(programs, constants, check_validity=False, memory_planning_pass=planning)


def share_cache(programs: Any, constants: Any) -> ExecutorchProgramManager:
    planning = MemoryPlanningPass(share_mutable_buffers=True)
    return lower(programs, constants, memory_planning_pass=planning)


def as_export_llama(programs: Any, constants: Any) -> ExecutorchProgramManager:
    """Lower as `executorch.extension.llm.export.builder.LLMEdgeManager` does for XNNPACK."""
    edge = to_edge_transform_and_lower(
        programs,
        partitioner=[XnnpackDynamicallyQuantizedPartitioner(), XnnpackPartitioner()],
        compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
    )
    edge = edge.transform([ConvertToLinearPass()])
    return edge.to_executorch(
        ExecutorchBackendConfig(
            do_quant_fusion_and_const_prop=True,
            memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False),
        )
    )


def by_script(script: str) -> Callable[..., ExecutorchProgramManager]:
    """Lower with a script of `executorch.examples.models`."""

    def run(*exported: Any) -> ExecutorchProgramManager:
        module = importlib.import_module(f"executorch.examples.models.{script}")
        return module.lower_to_executorch(*exported, backend="xnnpack")

    return run


# How to lower the packages for which `lower` alone isn't enough.
OWN: dict[str, Callable[..., ExecutorchProgramManager]] = {
    "executorch_llama": as_export_llama,
    "gemma3": share_cache,
    "gemma4_speech": unchecked,
    "llama": share_cache,
    "qwen3": share_cache,
    "silero_vad": by_script("silero_vad.export_silero_vad"),
    "voxtral_tts": by_script("voxtral_tts.export_voxtral_tts"),
    "voxtral_realtime": by_script("voxtral_realtime.export_voxtral_rt"),
}


def main(package: str, file: Path) -> None:
    """Write the `.pte` of a package."""
    sys.modules["pipeline"] = None  # type: ignore[assignment]
    sys.path[:0] = [str(HERE / "models"), str(HERE)]  # where doit's exporters find imports, too
    # Use one thread, like the exporters: the last bits of weights that an exporter computes, such
    # as batch norm statistics, depend on the number of threads.
    torch.set_num_threads(1)
    made = OWN.get(package, lower)(*export_package(package))
    file.write_bytes(made.buffer)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
