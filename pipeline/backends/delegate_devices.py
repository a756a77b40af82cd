"""Finds the devices that the environment names for delegates that this machine can't run.

`PTE_DELEGATE_DEVICES=EthosUBackend=corstone` makes packages with this delegate run on the device
`corstone` (docs/guides/writing-a-device.md). The device itself is only created when a package runs.
All variables that begin with the device's name, such as `CORSTONE_FVP`, are inputs of a run; if one
names a file, the file's content is the input.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from pathlib import Path

from pipeline.store import digest
from pipeline.store.errors import PipelineError

VARIABLE = "PTE_DELEGATE_DEVICES"
_DEVICES = "pte_pipeline.devices"  # as in `pipeline.devices.registry`


def find_device(backend_id: str) -> str:
    """Return the name of the device that the environment names for a delegate, or "".

    Raises:
        PipelineError: the variable isn't a list of pairs.
    """
    text = os.environ.get(VARIABLE, "")
    for pair in filter(None, text.split(",")):
        delegate, separator, device = pair.partition("=")
        if not (delegate and separator and device):
            raise PipelineError(
                f"{VARIABLE}: '{pair}' must be a delegate and a device, such as "
                "EthosUBackend=corstone"
            )
        if delegate == backend_id:
            return device
    return ""


def describe_device(name: str) -> dict[str, str]:
    """Return the inputs of a run on a device: its distribution and its variables."""
    facts = {"device": name}
    for point in entry_points(group=_DEVICES, name=name):
        if point.dist is not None:
            facts["device"] = f"{name} of {point.dist.name} {point.dist.version}"
    prefix = f"{name.upper().replace('-', '_')}_"
    for variable, value in sorted(os.environ.items()):
        if variable.startswith(prefix):
            path = Path(value)
            facts[variable] = digest.hash_file(path) if path.is_file() else value
    return facts
