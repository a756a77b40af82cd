"""Compile specs of Arm's backends, with the options of their passes."""

from __future__ import annotations

from typing import Any

from executorch.backends.arm.common.arm_compile_spec import ArmCompileSpec
from executorch.backends.arm.common.pipeline_config import (
    LeakyReLULoweringConfig,
    QuantizeInfConfig,
    SoftmaxDecompositionConfig,
)

from pipeline.backends.arm.options import PassOptions


def compile_spec(options: Any) -> ArmCompileSpec:
    """Return the compile spec of a partitioner's options or a quantizer's. Where they say nothing
    of passes, it is left as it is, as a plain script leaves it."""
    spec: ArmCompileSpec = options.make_spec()
    if not options.model_dump(include=set(PassOptions.model_fields), exclude_defaults=True):
        return spec
    config = spec._create_default_pipeline_config()
    if options.softmax is not None:
        config.softmax = SoftmaxDecompositionConfig[options.softmax.upper()]
    config.leaky_relu = LeakyReLULoweringConfig[options.leaky_relu.upper()]
    config.quantize_inf = QuantizeInfConfig(options.quantize_neg_inf, options.quantize_pos_inf)
    spec.set_pass_pipeline_config(config)
    return spec
