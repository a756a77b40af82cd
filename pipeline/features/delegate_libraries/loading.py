"""Loads the shared libraries that add delegates to ExecuTorch's runtime in this process.

The environment lists them (`libraries.py`). Each library of the wheel has a registry of backends,
and the runtime reads the registry of whichever was loaded first, so a delegate is registered in all
of them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

from pipeline.backends import BACKENDS
from pipeline.backends.host import package_folders
from pipeline.features.delegate_libraries.libraries import (
    VARIABLE,
    delegate_libraries,
    holds,
)
from pipeline.store.errors import PipelineError

_WITH_REGISTRY = (
    "backends/qualcomm/libqnn_executorch_backend.so",
    "kernels/quantized/libquantized_ops_aot_lib.so",
    "extension/llm/custom_ops/libcustom_ops_aot_lib.so",
)
# The mangled name from runtime/backend/interface.h, in GCC and Clang.
_REGISTER = "_ZN10executorch7runtime16register_backendERKNS0_7BackendE"
_GET = "_ZN10executorch7runtime17get_backend_classEPKc"


class _Backend(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("interface", ctypes.c_void_p))


_registered: list[_Backend] = []  # never freed: registries keep pointers to names


def load_delegate_libraries() -> None:
    """Load the listed libraries, and register their delegates in the runtime.

    The bindings must be imported first: a library is linked against the bindings' symbols only by
    name.

    Raises:
        PipelineError: a library can't be loaded, for instance if it was built for another
            ExecuTorch.
    """
    # DEEPBIND: it must use the registry that it is linked with, not the first one in memory.
    mode = os.RTLD_NOW | getattr(os, "RTLD_DEEPBIND", 0)
    backend_ids = {backend.backend_id for backend in BACKENDS.values()}
    for library in delegate_libraries():
        try:
            ctypes.CDLL(str(library), mode=mode)
        except OSError as error:
            raise PipelineError(
                f"{VARIABLE}: {library.name} can't be loaded: {error}"
            ) from error
        for backend_id in backend_ids:
            if holds(library, backend_id):
                _register_everywhere(backend_id.encode())


def _register_everywhere(name: bytes) -> None:
    """Register a backend of one registry in all registries that this process has loaded."""
    registries = list(_registries())
    interfaces = [_look_up(registry, name) for registry in registries]
    interface = next(filter(None, interfaces), None)
    if interface is None:
        return
    backend = _Backend(name, interface)
    _registered.append(backend)
    for registry in registries:
        if not _look_up(registry, name):
            registry[_REGISTER](ctypes.byref(backend))


def _registries() -> Iterator[ctypes.CDLL]:
    for folder in package_folders("executorch"):
        for name in _WITH_REGISTRY:
            path = os.path.realpath(folder / name)
            try:
                yield ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            except OSError:
                continue  # not loaded, or not in this wheel


def _look_up(registry: ctypes.CDLL, name: bytes) -> int | None:
    # Indexed, not an attribute: an attribute is shared by all code that sets its types.
    look_up = registry[_GET]
    look_up.restype, look_up.argtypes = ctypes.c_void_p, (ctypes.c_char_p,)
    address: int | None = look_up(name)
    return address
