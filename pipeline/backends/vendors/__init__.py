"""What the entries share that need what no package index has: a vendor's SDK, a GPU, a Mac.

Their options are those of the installed executorch, and a config that uses one is told at plan time
what is missing; nothing of them is imported before that. Their parts are built as the installed
sources say; what they lower was never seen here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from pipeline.backends.entry import Backend
from pipeline.store.errors import PipelineError
from pipeline.store.toolchain import version_of

UNTRIED = "not known: there was nothing to try it with"
NO_DYNAMIC = {"dynamic": "always false"}


def runs_on(device: str) -> Callable[[], str]:
    return lambda: f"it runs on {device} only"


def on_a_mac(what: str) -> Callable[[], str]:
    """ExecuTorch's wheels for macOS have these delegates, for this machine or none
    (tools/cmake/preset/pybind.cmake)."""
    return lambda: "" if sys.platform == "darwin" else f"{what} is run by Apple's systems only"


def require(backend: Backend) -> None:
    """Raises PipelineError where something is missing: an import could do worse."""
    missing = [f"{need.what}: {need.remedy}" for need in backend.missing()]
    if missing:
        raise PipelineError(f"{backend.name} needs " + "; ".join(missing))


def libraries(variable: str) -> Callable[[], Mapping[str, str]]:
    """What tells one SDK from another: the libraries in the folder that a variable names, and their
    sizes."""

    def facts() -> Mapping[str, str]:
        folder = Path(os.environ.get(variable) or "/nowhere")
        files = sorted(folder.glob("lib/*/*.so*"))
        return {str(file.relative_to(folder)): str(file.stat().st_size) for file in files}

    return facts


def versions(*modules: str) -> Callable[[], Mapping[str, str]]:
    """The versions of what a vendor hands out under these names."""

    return lambda: {module: version_of(module) for module in modules}
