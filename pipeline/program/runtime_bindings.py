"""Import ExecuTorch's runtime, whose extension module has another name in each release.

The module is imported alone, with torch: `executorch.runtime` and `portable_lib` import exir, which
takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pipeline.store.releases import installed_release

_FOLDER = "executorch.extension.pybindings"


def import_bindings() -> Any:
    """Import the extension module of the installed release, and return it."""
    return import_module(f"{_FOLDER}.{installed_release().bindings}")
