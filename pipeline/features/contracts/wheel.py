"""The runtime in ExecuTorch's wheel, described in the terms of a file in `targets/`."""

from __future__ import annotations

import importlib
import re
from importlib.metadata import version
from typing import Any

from executorch.exir.version import EXECUTORCH_SCHEMA_VERSION

from pipeline.devices.bindings import registered_backends
from pipeline.program.operator_libraries import LIBRARIES
from pipeline.program.runtime_bindings import import_bindings


def describe_wheel() -> dict[str, Any]:
    """Describe the runtime of the wheel, including its kernel libraries."""
    registered_backends()  # loads the bindings' dependencies, and the listed delegates
    library = import_bindings()
    importlib.import_module(LIBRARIES["llama"][0])
    release = re.match(r"[\d.]+\d", version("executorch"))
    return {
        "executorch": release[0] if release else None,
        "identifier": "ET12",
        "schema_version": EXECUTORCH_SCHEMA_VERSION,
        "backends": sorted(filter(library._is_available, registered_backends())),
        "operators": sorted(set(library._get_operator_names())),
    }
