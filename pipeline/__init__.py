"""A multi-method batch build system for ExecuTorch packages.

What is public stands in `__all__`, and comes from its module when it is asked for: importing this
package imports nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.loaded import LoadedMethod, LoadedPackage, load_package

__all__ = [
    "LoadedMethod",
    "LoadedPackage",
    "load_package",
]

_HOME = {
    "LoadedMethod": "pipeline.loaded",
    "LoadedPackage": "pipeline.loaded",
    "load_package": "pipeline.loaded",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pipeline' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)
