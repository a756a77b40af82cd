"""OpenVINO: lowers to Intel's processors."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "openvino",
    "lower to OpenVINO, for Intel processors",
    entries="pipeline.features.openvino.entries",
    warn_of_quantization="pipeline.features.openvino.saturation:warn_of_saturation",
)
