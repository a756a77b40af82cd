"""Finds Vulkan's loader and drivers on this machine. Runs neither, and doesn't import torch."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_DRIVERS = [
    Path(root, "vulkan/icd.d") for root in ("/etc", "/usr/local/share", "/usr/share")
]


def has_loader() -> bool:
    """Return whether the Vulkan loader is installed."""
    try:
        ctypes.CDLL("libvulkan.so.1")
    except OSError:
        return False
    return True


def has_driver() -> bool:
    """Return whether a driver is installed, or one that the environment names exists."""
    named = paths_of("VK_DRIVER_FILES") or paths_of("VK_ICD_FILENAMES")
    return any(path.exists() for path in named or manifests(*_DRIVERS))


def paths_of(variable: str) -> list[Path]:
    """Return the paths that a variable lists."""
    return [
        Path(path) for path in os.environ.get(variable, "").split(os.pathsep) if path
    ]


def manifests(*folders: Path) -> list[Path]:
    """Return the manifests of drivers or layers in folders, sorted by name within each."""
    paths: list[Path] = []
    for folder in folders:
        paths += sorted(folder.glob("*.json"))
    return paths
