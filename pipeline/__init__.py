"""A multi-method batch build system for ExecuTorch packages.

`pte_pipeline` is its public interface. Each public name is imported from its module on first use:
importing this package imports nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "executorch.exir.backend.backend_api": ("validation_disabled",),
    "pipeline.features.etrecord.etrecord": ("load_etrecord",),
    "pipeline.compile.preprocess.registry": ("registered",),
    "pipeline.features.to_backend.registration": (
        *("is_registered", "preprocess_function"),
        *("register_preprocess", "unregister_preprocess"),
    ),
    "pipeline.features.to_backend.to_backend": ("to_backend",),
    "pipeline.features.to_backend.to_backend_multiple": ("to_backend_multiple",),
    "pipeline.features.loading.load_package": (
        "LoadedMethod",
        "LoadedPackage",
        "load_package",
    ),
    "pipeline.store.errors": ("PipelineError",),
    "pipeline.store.store": ("Store",),
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
