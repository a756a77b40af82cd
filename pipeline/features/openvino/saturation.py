"""Warns of sums of int8 products that saturate in OpenVINO's kernels for CPUs without VNNI.

OpenVINO's documentation calls this the saturation (overflow) issue of AVX2 and AVX-512 processors:
pairs of products are added in int16 (`vpmaddubsw`).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

from pipeline.store.toolchain import processor

_WITHOUT_VNNI = ("SSE41", "AVX", "AVX2", "AVX512_CORE")  # limits of oneDNN
_WARNING = (
    "openvino: this CPU has no VNNI instructions{limited}, so sums of int8 products saturate, and "
    "outputs can differ from those of the quantized program; build and validate on a CPU with "
    "VNNI, or use a weight-only mode such as int8wo_sym"
)


def warn_of_saturation(
    facts: Mapping[str, Any], delegation: Mapping[str, Any] | None
) -> str:
    """Return a warning about a method that quantizes what OpenVINO multiplies on this CPU, or "".

    Args:
        facts: facts about the method's quantization.
        delegation: facts about the method's delegation; None if it has no partitioners.
    """
    if delegation is None or "OpenvinoBackend" not in delegation["partitions"]:
        return ""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    is_limited = limit in _WITHOUT_VNNI
    if not facts["activations"] or not (is_limited or lacks_vnni()):
        return ""
    return _WARNING.format(limited=" under ONEDNN_MAX_CPU_ISA" if is_limited else "")


def lacks_vnni() -> bool:
    """Return whether this is an x86 processor without VNNI, whatever limits its use."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return is_x86 and "vnni" not in processor()
