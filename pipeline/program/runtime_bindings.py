"""Imports ExecuTorch's runtime, whose extension module has a different name in each release.

Only the extension module is imported, with torch: `executorch.runtime` and `portable_lib` import
exir, which takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pipeline.store.releases import installed_release

_FOLDER = "executorch.extension.pybindings"


def import_bindings() -> Any:
    """Import and return the extension module of the installed release."""
    return import_module(f"{_FOLDER}.{installed_release().bindings}")
