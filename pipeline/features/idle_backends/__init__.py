"""Idle backends: a config that names one which does nothing for a method is wrong."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "idle_backends",
    "refuse packages of which a partitioner or a quantizer does nothing, and warn of quantization "
    "that no delegate runs",
    refuse_link="pipeline.features.idle_backends.unmet:find_unmet",
    warn_of_emitted="pipeline.features.idle_backends.unused:warn_of_unused_quantization",
)
