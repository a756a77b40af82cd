"""Payloads: checks delegates that this machine can't run, with their backends' checks."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "payloads",
    "check payloads of delegates that this machine can't run",
    check_payloads="pipeline.features.payloads.check:find_payload_faults",
)
