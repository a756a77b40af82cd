"""The TOSA backend itself: executorch/backends/arm/tosa."""

from __future__ import annotations

from typing import ClassVar, Literal

from pipeline.backends.entry import Execution
from pipeline.backends.host import TOSA, Host, extra
from pipeline.backends.options import Options
from pipeline.features.arm.backend import arm_backend
from pipeline.features.arm.options import (
    PASS_OPTIONS,
    ArmQuantize,
    LeakyReLU,
    NegativeInfinity,
    PositiveInfinity,
    Softmax,
    TosaSpec,
)


class TosaOptions(Options):
    """Options of `TOSAPartitioner`, which come from its `TosaCompileSpec`."""

    spec: ClassVar[str] = "tosa.compile_spec:TosaCompileSpec"

    tosa_spec: TosaSpec
    """The TOSA specification to lower to: a version, one or both profiles (FP, INT),
    and extensions, such as TOSA-1.0+INT+int16+int4."""
    softmax: Softmax = None
    leaky_relu: LeakyReLU = "decompose"
    quantize_neg_inf: NegativeInfinity = -256.0
    quantize_pos_inf: PositiveInfinity = 255.0


class TosaQuantize(ArmQuantize, TosaOptions):
    """Options of a `TOSAQuantizer`."""

    quantizer: Literal["tosa"]
    partitioners_own = ("tosa_spec", *PASS_OPTIONS)


ENTRIES = (
    arm_backend(
        "tosa",
        "TOSA",
        summary="TOSA itself, as input for other devices' compilers",
        options=TosaOptions,
        quantize=TosaQuantize,
        host=Host(requirements=(extra("tosa", "tosa_serializer"),), distributions=TOSA),
        execution=Execution(
            cannot_run=lambda: (
                "ExecuTorch's runtime has no TOSA backend; TOSA is an input for other compilers"
            ),
            elsewhere="nowhere",
        ),
    ),
)
