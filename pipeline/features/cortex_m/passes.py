"""ExecuTorch's passes for Cortex-M, as one pass over a method's edge program."""

from __future__ import annotations

import logging

from executorch.backends.cortex_m.library import cmsis_nn
from executorch.backends.cortex_m.passes.cortex_m_pass_manager import CortexMPassManager
from executorch.backends.cortex_m.target_config import CortexM, CortexMTargetConfig
from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult
from torch.export import ExportedProgram

from pipeline.features.cortex_m.entries import CortexMOptions
from pipeline.program.operators import operator_name
from pipeline.store.errors import PipelineError

_log = logging.getLogger(__name__)


class LowerToCortexM(ExportedProgramPassBase):
    """Runs `CortexMPassManager` for the core in these options."""

    def __init__(self, options: CortexMOptions) -> None:
        isa = None if options.isa is None else getattr(cmsis_nn.Backend, options.isa)
        self.target = CortexMTargetConfig(cpu=CortexM[options.cpu], isa=isa)

    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        """Run the passes. Raises PipelineError if a pass fails on the program."""
        names = map(operator_name, exported_program.graph.nodes)
        if not any(name.startswith("quantized_decomposed.") for name in names):
            _log.warning(
                "cortex_m takes quantized operators, but the method has none; set `quantize: "
                "{quantizer: cortex_m}`"
            )
        manager = CortexMPassManager(exported_program, target_config=self.target)
        try:
            lowered = manager.transform()
        except Exception as error:
            # ExecuTorch wraps the error in one that lists the passes.
            reason = error.__cause__ or error
            first = next(iter(str(reason).splitlines()), "")
            raise PipelineError(
                f"cortex_m: ExecuTorch's passes fail on it ({type(reason).__name__}: {first})"
            ) from error
        return ExportedProgramPassResult(lowered, True)
