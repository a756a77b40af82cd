"""The part of a package config that says how it is proved, and what it must keep to."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.backends.options import Options
from pipeline.config_fields import MethodName, Share, Size, Tolerance


class Gates(Options):
    """What a package must keep to; without a limit nothing is checked."""

    min_delegated_nodes: Share | None = Field(
        default=None,
        description="The least share of each method's nodes that delegates run, 0 to 1.",
    )
    min_delegated_ops: Share | None = Field(
        default=None,
        description="The least share of each method's operators that delegates run, 0 to 1.",
    )
    max_size: Size | None = Field(
        default=None,
        description="The greatest size of the package's files, such as 40MB or 512KiB.",
    )


class Limits(Options):
    """How far an output may be from the source program's. All that are given must hold."""

    atol: Tolerance = Field(default=1e-4, description="Absolute tolerance of an output's values.")
    rtol: Tolerance = Field(default=1e-3, description="Relative tolerance of an output's values.")
    max_mean_abs: Tolerance | None = Field(
        default=None, description="The greatest mean of an output's absolute errors."
    )
    max_p999_abs: Tolerance | None = Field(
        default=None,
        description="What 99.9 % of an output's absolute errors may not exceed.",
    )
    max_relative: Tolerance | None = Field(
        default=None,
        description="The greatest sum of an output's absolute errors over that of its values.",
    )
    min_sqnr: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        default=None,
        description="The least ratio of signal to quantization noise of an output, in dB.",
    )
    min_cosine: Annotated[float, Field(ge=-1, le=1)] | None = Field(
        default=None, description="The least cosine of an output with the source program's."
    )
    min_agreement: Share | None = Field(
        default=None,
        description="The least share of rows along an output's last dimension whose greatest value "
        "stands where the source program's does, 0 to 1; for classifiers.",
    )


class MethodLimits(Limits):
    """Those of one method, instead of the package's."""

    atol: Tolerance | None = Field(  # type: ignore[assignment]
        default=None, description=Limits.model_fields["atol"].description
    )
    rtol: Tolerance | None = Field(  # type: ignore[assignment]
        default=None, description=Limits.model_fields["rtol"].description
    )


class ValidateConfig(Limits):
    """How the package is proved against its source programs."""

    inputs: int = Field(
        default=3,
        ge=0,
        le=2**31 - 1,
        description="How many input sets are generated for each method.",
    )
    seed: int = Field(
        default=0, ge=0, le=2**63 - 1, description="What the input sets are generated from."
    )
    steps: int = Field(
        default=4,
        ge=1,
        le=2**31 - 1,
        description="How often a method with state is called in a row.",
    )
    methods: dict[MethodName, MethodLimits] = Field(
        default={}, description="By method: limits that differ from the package's."
    )
    bundle: bool = Field(
        default=False,
        description="Leave <model>.bpte beside the package: a bundled program with the inputs that "
        "were run and what the source gives on them, for ExecuTorch's runtime on a device.",
    )
    bundle_limit: Size = Field(
        default=32 * 2**20,
        description="The greatest size of a method's inputs and outputs in the bundled program.",
    )
    gates: Gates = Gates()

    def of(self, method: str) -> Limits:
        """The limits of a method: its own, and the package's for the others."""
        own = self.methods.get(method, MethodLimits())
        return Limits(
            **{
                name: getattr(self if getattr(own, name) is None else own, name)
                for name in Limits.model_fields
            }
        )
