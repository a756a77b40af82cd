"""The oracle: a package of the gallery as a user of ExecuTorch's API makes it, without a build
system.

    python examples/joint.py PACKAGE FILE

It runs the exporter and lowers all methods in one call, by the script that ExecuTorch ships for the
example where there is one. It imports nothing of the build system; exporters of transformers'
language models do, whose programs `pipeline.program.hugging_face` exports.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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

HERE = Path(__file__).resolve().parent


def lower(
    model: Any,
    check_validity: bool = True,
    **emission: Any,
) -> ExecutorchProgramManager:
    """Lower all methods of an exporter to XNNPACK."""
    programs = model.export_methods()
    constants = model.constant_methods() if hasattr(model, "constant_methods") else None
    edge = to_edge_transform_and_lower(
        programs,
        partitioner={name: [XnnpackPartitioner()] for name in programs},
        constant_methods=constants,
        compile_config=EdgeCompileConfig(_check_ir_validity=check_validity),
    )
    return edge.to_executorch(ExecutorchBackendConfig(**emission))


def unchecked(model: Any) -> ExecutorchProgramManager:
    planning = MemoryPlanningPass(alloc_graph_input=False)
    return lower(model, check_validity=False, memory_planning_pass=planning)


def share_cache(model: Any) -> ExecutorchProgramManager:
    return lower(model, memory_planning_pass=MemoryPlanningPass(share_mutable_buffers=True))


def as_export_llama(model: Any) -> ExecutorchProgramManager:
    """Lower as `executorch.extension.llm.export.builder.LLMEdgeManager` does for XNNPACK."""
    edge = to_edge_transform_and_lower(
        model.export_methods(),
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


def by_script(script: str) -> Callable[[Any], ExecutorchProgramManager]:
    """Lower by a script of `executorch.examples.models`."""

    def run(model: Any) -> ExecutorchProgramManager:
        module = importlib.import_module(f"executorch.examples.models.{script}")
        return module.lower_to_executorch(*model.exported(), backend="xnnpack")

    return run


# How packages are lowered that are not lowered by `lower` alone.
OWN: dict[str, Callable[[Any], ExecutorchProgramManager]] = {
    "executorch_llama": as_export_llama,
    "gemma4_speech": unchecked,
    "llama": share_cache,
    "silero_vad": by_script("silero_vad.export_silero_vad"),
    "voxtral_tts": by_script("voxtral_tts.export_voxtral_tts"),
    "voxtral_realtime": by_script("voxtral_realtime.export_voxtral_rt"),
}


def main(package: str, file: Path) -> None:
    """Write the `.pte` of a package."""
    # As doit's exporters find what they import: the workspace, and its models.
    sys.path[:0] = [str(HERE.parent), str(HERE / "models")]
    # And with one thread: the last bits of weights that an exporter computes, as from batches for
    # batch norms, depend on the number.
    torch.set_num_threads(1)
    made = OWN.get(package, lower)(importlib.import_module(package))
    file.write_bytes(made.buffer)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
