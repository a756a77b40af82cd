"""Backends that ExecuTorch lowers to with graph passes, not a partitioner: Cortex-M and Cadence.

Their operators are kernels that the device's runtime links, not a delegate: nothing is partitioned
or preprocessed, and a program must already be quantized for them. Cortex-M's passes run on a
method's edge program in place of partitioners; Cadence is refused at plan time.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationInfo, field_validator

from pipeline.backends.entry import Backend, Execution, Lowering, Quantization, lazy
from pipeline.backends.host import TOSA, Host, built, extra
from pipeline.backends.options import Options, rule
from pipeline.backends.quantize_options import QuantizeConfig, Static

_CORTEX = "executorch.backends.cortex_m."
# The instruction sets beyond SCALAR, and the cores that have them (cortex_m/target_config.py).
_CORES = {"DSP": ("M4", "M7", "M33", "M35P", "M55", "M85"), "MVE": ("M55", "M85")}
# Operators that upstream's tester keeps whole (cortex_m/test/tester.py), for the passes to match.
_WHOLE = ("linear", "hardsigmoid", "hardsigmoid_", "hardswish", "hardswish_", "silu")


class CortexMOptions(Options):
    """The fields of `CortexMTargetConfig`."""

    cpu: Literal[
        "M0", "M0PLUS", "M3", "M4", "M7", "M23", "M33", "M35P", "M55", "M85"
    ] = "M55"
    """The core that runs the package."""
    isa: Literal["SCALAR", "DSP", "MVE"] | None = None
    """The core's instruction set, if it differs from the default for `cpu`."""

    @field_validator("isa")
    @classmethod
    def _is_the_cpus(cls, isa: str | None, info: ValidationInfo) -> str | None:
        cpu = info.data.get("cpu")
        instruction_sets = [
            "SCALAR",
            *(name for name, cores in _CORES.items() if cpu in cores),
        ]
        if isa is not None and cpu is not None and isa not in instruction_sets:
            raise rule(
                f"must be one of those that {cpu} has: {', '.join(instruction_sets)}"
            )
        return isa


class CortexMQuantize(QuantizeConfig):
    """`CortexMQuantizer`, which takes no options: int8, with convolutions per channel."""

    quantizer: Literal["cortex_m"]
    dynamic: Static = False


ENTRIES = (
    Backend(
        name="cortex_m",
        backend_id="CortexMBackend",
        summary="Cortex-M cores, with CMSIS-NN kernels; quantized operators only",
        options=CortexMOptions,
        lowering=Lowering(
            make_passes=lambda options: [
                lazy("pipeline.features.cortex_m.passes:LowerToCortexM")(options)
            ],
            kernels="cortex_m",
            preserve_ops=tuple(f"aten.{name}.default" for name in _WHOLE),
            edge_operators=("aten.max_pool2d.default",),
        ),
        quantization=Quantization(
            options=CortexMQuantize,
            make_quantizer=lambda config: lazy(
                f"{_CORTEX}quantizer.quantizer:CortexMQuantizer"
            )(),
        ),
        host=Host(
            requirements=(
                extra("tosa", "tosa_serializer"),
                built(
                    f"{_CORTEX}library._cmsis_nn.cmsis_nn",
                    "install an executorch wheel with it, such as the one for Linux x86-64",
                ),
            ),
            distributions=TOSA,
        ),
        execution=Execution(
            cannot_run=lambda: (
                "its kernels run on Cortex-M only; ExecuTorch's wheel has none of them"
            ),
            elsewhere="board",
        ),
    ),
)
