"""ExecuTorch's passes for Cortex-M, as one pass over a method's edge program."""

from __future__ import annotations

from executorch.backends.cortex_m.library import cmsis_nn
from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager
from executorch.backends.cortex_m.target_config import CortexM, CortexMTargetConfig
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult
from torch._ops import OpOverload
from torch.export import ExportedProgram

from pipeline.store.errors import PipelineError

_QUANTIZED = "quantized_decomposed::"


class LowerToCortexM(ExportedProgramPassBase):
    """Runs `CortexMPassManager` for one core.

    Args:
        cpu: a name in `CortexM`.
        isa: a name in CMSIS-NN's `Backend`; None for the core's usual one.
    """

    def __init__(self, cpu: str, isa: str | None) -> None:
        backend = None if isa is None else getattr(cmsis_nn.Backend, isa)
        self.target = CortexMTargetConfig(cpu=CortexM[cpu], isa=backend)

    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        """Run the passes. Raises PipelineError for a program that is not quantized, or that a pass
        fails on."""
        if not any(_is_quantized(node) for node in exported_program.graph.nodes):
            raise PipelineError(
                "cortex_m takes quantized operators, and the method has none; say "
                "`quantize: {quantizer: cortex_m}`"
            )
        manager = CortexMPassManager(exported_program, target_config=self.target)
        try:
            lowered = manager.transform()
        except Exception as error:
            reason = error.__cause__ or error  # ExecuTorch lists passes around what one raised
            first = next(iter(str(reason).splitlines()), "")
            raise PipelineError(
                f"cortex_m: ExecuTorch's passes fail on it ({type(reason).__name__}: {first})"
            ) from error
        return ExportedProgramPassResult(lowered, True)


def _is_quantized(node: object) -> bool:
    target = getattr(node, "target", None)
    name = target.name() if isinstance(target, EdgeOpOverload | OpOverload) else ""
    return name.startswith(_QUANTIZED)
