"""TOSA itself: executorch/backends/arm/tosa."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.backends.arm import (
    TOSA_TOOLS,
    ArmQuantize,
    PassOptions,
    TosaSpec,
    backend,
    constructors,
)
from pipeline.backends.entry import extra
from pipeline.backends.options import Options


class _TosaTarget(Options):
    tosa_spec: TosaSpec = Field(
        description="The TOSA specification that is lowered to: version, one or both profiles (FP, "
        "INT), extensions, such as TOSA-1.0+INT+int16+int4."
    )


class TosaOptions(PassOptions, _TosaTarget):
    """Options of `TOSAPartitioner`: those of its `TosaCompileSpec`."""


class TosaQuantize(ArmQuantize, PassOptions, _TosaTarget):
    """Options of a `TOSAQuantizer`."""

    quantizer: Literal["tosa"]
    partitioners_own = ("tosa_spec", *ArmQuantize.partitioners_own)


ENTRIES = (
    backend(
        name="tosa",
        backend_id="TOSABackend",
        details="executorch.backends.arm.tosa.backend:TOSABackend",
        summary="TOSA itself, as compilers for other devices read it",
        options=TosaOptions,
        quantizer=TosaQuantize,
        distributions=TOSA_TOOLS,
        requirements=(extra("tosa", "tosa_serializer"),),
        constructors=constructors(
            "tosa.compile_spec:TosaCompileSpec",
            "tosa.partitioner:TOSAPartitioner",
            "TOSAQuantizer(compile_spec_or_tosa_spec)",
        ),
        cannot_run=lambda: "TOSA is for other compilers, and ExecuTorch's runtime has none",
    ),
)
