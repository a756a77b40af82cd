"""Asks QEMU which processors it emulates, and whether its emulation of SME can be trusted."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from pipeline.features.native.target_devices import (
    EMULATED,
    find_planned_devices,
    read_target_devices,
)
from pipeline.store.errors import Problem, did_you_mean

if TYPE_CHECKING:
    from pipeline.plan.plan import Plan

_SECONDS = 10
_VERSION = r"version (\d+)[\d.]*"
# 7.2 computes SME wrongly, 10.0 correctly; versions in between are untested.
_RIGHT_VERSION = 10
_ALL_FEATURES, _NO_SME = "max", "sme=off"
_EXAMPLES = ("cortex-a53", "cortex-a72", "neoverse-n1", "max")


@cache
def _ask(argument: str, more: str = "") -> str:
    """Return the emulator's output, or "" if it isn't installed or doesn't run."""
    from pipeline.features.native.setups import find_emulator  # most runs need none

    emulator = find_emulator()
    if emulator is None:
        return ""
    command = [emulator, argument, *filter(None, [more])]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout


def explain_unknown_cpu(device: str) -> str:
    """Return the most similar processors and some examples for an unknown processor.

    Returns "" if the emulator has the device's processor or can't be asked.
    """
    from pipeline.features.native.setups import EMULATOR

    cpu = device.removeprefix(EMULATED).partition(",")[0]
    known = re.findall(r"^ +(\S+)$", _ask("-cpu", "help"), re.MULTILINE)
    if not known or cpu in known:
        return ""
    nearest = did_you_mean(cpu, known, 0).partition("known:")[0]
    examples = ", ".join(f"{EMULATED}{name}" for name in _EXAMPLES)
    return f"{nearest}known: {examples}, and more that `{EMULATOR} -cpu help` lists"


def find_remarks(plan: Plan) -> Iterator[Problem]:
    """Yield a remark for each package for which the emulator computes SME wrongly.

    These are packages that run on an emulated processor with all features, SME included.
    """
    read = cache(read_target_devices)  # most packages share a target
    for package in plan.configs.packages:
        for device in find_planned_devices(plan, package, read):
            fault = _explain_sme(device)
            if fault:
                remedy = f"use a newer one, or {device},{_NO_SME}"
                yield Problem(package, "validate.devices", fault, remedy)


def _explain_sme(device: str) -> str:
    """Return why the values of a device may be wrong, or "" if there is no known reason."""
    cpu, *switches = device.removeprefix(EMULATED).split(",")
    if not device.startswith(EMULATED) or cpu != _ALL_FEATURES or _NO_SME in switches:
        return ""
    match = re.search(_VERSION, _ask("--version"))
    if match is None or int(match[1]) >= _RIGHT_VERSION:
        return ""
    return (
        f"QEMU {match[0].removeprefix('version ')} emulates SME incorrectly, and int8 methods "
        f"use SME on {device}"
    )
