"""A multi-method batch build system for ExecuTorch packages.

What is public stands in `__all__`, and comes from its module when it is asked for: importing this
package imports nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.compile.preprocess.registry import (
        is_registered,
        preprocess_function,
        register_preprocess,
        registered,
        unregister_preprocess,
    )
    from pipeline.compile.to_backend import to_backend, to_backend_multiple, validation_disabled
    from pipeline.devices.load_package import LoadedMethod, LoadedPackage, load_package

__all__ = [
    "LoadedMethod",
    "LoadedPackage",
    "is_registered",
    "load_package",
    "preprocess_function",
    "register_preprocess",
    "registered",
    "to_backend",
    "to_backend_multiple",
    "unregister_preprocess",
    "validation_disabled",
]

_HOME = {
    "LoadedMethod": "pipeline.devices.load_package",
    "LoadedPackage": "pipeline.devices.load_package",
    "is_registered": "pipeline.compile.preprocess.registry",
    "load_package": "pipeline.devices.load_package",
    "preprocess_function": "pipeline.compile.preprocess.registry",
    "register_preprocess": "pipeline.compile.preprocess.registry",
    "registered": "pipeline.compile.preprocess.registry",
    "to_backend": "pipeline.compile.to_backend",
    "to_backend_multiple": "pipeline.compile.to_backend",
    "unregister_preprocess": "pipeline.compile.preprocess.registry",
    "validation_disabled": "pipeline.compile.to_backend",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
