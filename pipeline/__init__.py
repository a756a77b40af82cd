"""A multi-method batch build system for ExecuTorch packages.

What is public stands in `__all__`, and comes from its module when it is asked for: importing this
package imports nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.backend_api import to_backend, to_backend_multiple, validation_disabled
    from pipeline.loaded import LoadedMethod, LoadedPackage, load_package
    from pipeline.preprocessors import (
        is_registered,
        preprocess_function,
        register_preprocess,
        registered,
        unregister_preprocess,
    )

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
    "LoadedMethod": "pipeline.loaded",
    "LoadedPackage": "pipeline.loaded",
    "is_registered": "pipeline.preprocessors",
    "load_package": "pipeline.loaded",
    "preprocess_function": "pipeline.preprocessors",
    "register_preprocess": "pipeline.preprocessors",
    "registered": "pipeline.preprocessors",
    "to_backend": "pipeline.backend_api",
    "to_backend_multiple": "pipeline.backend_api",
    "unregister_preprocess": "pipeline.preprocessors",
    "validation_disabled": "pipeline.backend_api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
