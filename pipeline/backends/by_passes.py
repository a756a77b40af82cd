"""Backends that ExecuTorch lowers to by graph passes, not a partitioner: Cortex-M and Cadence.

Their operators are kernels that the device's runtime links, not a delegate: nothing is partitioned
or preprocessed, and a program must have been quantized their way before. This package lowers
through partitioners, so it says at plan time that it can't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipeline.backends.entry import Backend, Constructor
from pipeline.backends.options import Options
from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner


class CortexMOptions(Options):
    """Fields of `CortexMTargetConfig`."""

    cpu: Literal["M0", "M0PLUS", "M3", "M4", "M7", "M23", "M33", "M35P", "M55", "M85"] = Field(
        default="M55", description="The core that the package runs on."
    )
    isa: Literal["SCALAR", "DSP", "MVE"] | None = Field(
        default=None, description="The instructions it has, where its options are not the usual."
    )


class CadenceOptions(Options):
    """No options."""


def _no_partitioner(options: Any) -> Partitioner:
    raise PipelineError("lowered by passes; there is no partitioner")


ENTRIES = (
    Backend(
        name="cortex_m",
        backend_id="CortexMBackend",
        summary="Cortex-M cores, by CMSIS-NN kernels",
        options=CortexMOptions,
        make_partitioner=_no_partitioner,
        unsupported="is not supported: ExecuTorch lowers to it by graph passes "
        "(CortexMPassManager), and this package by partitioners; for Arm microcontrollers with an "
        "Ethos-U use that, else `partitioners: []`",
        constructors=(
            Constructor("executorch.backends.cortex_m.target_config:CortexMTargetConfig"),
        ),
    ),
    Backend(
        name="cadence",
        backend_id="CadenceBackend",
        summary="Xtensa DSPs",
        options=CadenceOptions,
        make_partitioner=_no_partitioner,
        unsupported="is not supported: ExecuTorch lowers to it by graph passes "
        "(executorch.backends.cadence.aot.compiler, which needs Python 3.12), and this package by "
        "partitioners; use `partitioners: []`",
    ),
)
