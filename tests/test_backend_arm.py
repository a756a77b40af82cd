"""Arm as entries of the catalogue: TOSA, Ethos-U and VGF, lowered through doit; VGF run."""

import pytest
from lowerable import (
    bench_for,
    both,
    check_delegated,
    check_fresh_checkout_hits,
    check_fresh_processes_agree,
    check_joint_bytes,
    check_not_run,
    check_ran,
)

from pipeline.backends import BACKENDS, arm_emulation


def ethos_u(target):
    return both(
        partitioners=[{"ethos-u": {"target": target}}],
        quantize={"quantizer": "ethos-u", "target": target},
    )


TOSA_INT = {"tosa_spec": "TOSA-1.0+INT"}
CONFIGS = {
    "tosa-fp": both(partitioners=[{"tosa": {"tosa_spec": "TOSA-1.0+FP"}}]),
    "tosa-int": both(
        partitioners=[{"tosa": TOSA_INT}], quantize={"quantizer": "tosa", **TOSA_INT}
    ),
    "u55": ethos_u("ethos-u55-128"),
    "u65": ethos_u("ethos-u65-256"),
    "u85": ethos_u("ethos-u85-256"),
    "vgf-fp": both(partitioners=["vgf"]),
    "vgf-int": both(partitioners=["vgf"], quantize={"quantizer": "vgf"})
    | {"validate": {"atol": 0.1, "min_sqnr": 20.0}},
}
