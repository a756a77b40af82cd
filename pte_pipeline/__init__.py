"""The public interface of pte-pipeline, for dodo files, exporters, plugins and scripts to import.

`import pte_pipeline` imports nothing else: each name is imported with its module on first use. The
objects themselves live in the package `pipeline`. Importing them from here works even where a
folder named `pipeline` hides that package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pte_pipeline.name_conflict import claim_pipeline

if TYPE_CHECKING:
    from executorch.exir.backend.backend_api import validation_disabled as validation_disabled

    from pipeline.compile.preprocess.registry import registered as registered
    from pipeline.features.etrecord.etrecord import load_etrecord as load_etrecord
    from pipeline.features.loading.load_package import LoadedMethod as LoadedMethod
    from pipeline.features.loading.load_package import LoadedPackage as LoadedPackage
    from pipeline.features.loading.load_package import load_package as load_package
    from pipeline.features.to_backend.registration import is_registered as is_registered
    from pipeline.features.to_backend.registration import preprocess_function as preprocess_function
    from pipeline.features.to_backend.registration import register_preprocess as register_preprocess
    from pipeline.features.to_backend.registration import (
        unregister_preprocess as unregister_preprocess,
    )
    from pipeline.features.to_backend.to_backend import to_backend as to_backend
    from pipeline.features.to_backend.to_backend_multiple import (
        to_backend_multiple as to_backend_multiple,
    )
    from pipeline.store.errors import PipelineError as PipelineError
    from pipeline.store.store import Store as Store

__all__ = [
    "LoadedMethod",
    "LoadedPackage",
    "PipelineError",
    "Store",
    "is_registered",
    "load_etrecord",
    "load_package",
    "preprocess_function",
    "register_preprocess",
    "registered",
    "to_backend",
    "to_backend_multiple",
    "unregister_preprocess",
    "validation_disabled",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    claim_pipeline(tell=True)
    return getattr(import_module("pipeline"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
