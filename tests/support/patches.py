"""Patches of third-party modules, applied when the processes of a build import them."""

from __future__ import annotations

import os
from pathlib import Path

_SITECUSTOMIZE = """
import importlib.abc, importlib.machinery, os, sys

class Patching(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != os.environ.get("PATCHED_MODULE"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            exec(os.environ["PATCH"], vars(module))
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Patching())
"""
XNNPACK = "executorch.backends.xnnpack"
PARTITIONER = f"{XNNPACK}.partition.xnnpack_partitioner"
PREPROCESS = f"{XNNPACK}.xnnpack_preprocess"


def patched(folder: Path, module: str, patch: str) -> dict[str, str]:
    """Return an environment in which `patch` runs at the end of a module.

    The hook that applies it is written to `folder`.
    """
    (folder / "patches").mkdir()
    (folder / "patches" / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    return {
        "PATCHED_MODULE": module,
        "PATCH": patch,
        "PYTHONPATH": python_path(folder / "patches"),
    }


def python_path(first: Path) -> str:
    """Return this process's PYTHONPATH with another folder in front."""
    return os.pathsep.join(filter(None, [str(first), os.environ.get("PYTHONPATH")]))
