"""VGF, for GPUs with Vulkan's ML extensions, compiled by the ML SDK's model converter:
executorch/backends/arm/vgf."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pipeline.backends.entry import Execution
from pipeline.backends.host import TOSA, Host, Requirement, extra, package_folders
from pipeline.backends.options import Distinct
from pipeline.features.arm.backend import arm_backend
from pipeline.features.arm.emulation import missing
from pipeline.features.arm.options import ArmQuantize, OneFlag, TosaSpec
from pipeline.features.arm.tosa import TosaOptions, TosaQuantize
from pipeline.store import digest

_CONVERTER = "MODEL_CONVERTER_PATH"
ConverterFlag = Annotated[
    str,
    OneFlag(
        "dump-mlir emit-debug-info experimental-analysis require-static-shape type-narrowing"
    ),
]


_SPEC = "vgf.compile_spec:VgfCompileSpec"
VgfTosaSpec = Annotated[
    TosaSpec,
    Field(
        description="The TOSA specification to lower to: a version, one or both profiles (FP, "
        "INT), and extensions."
    ),
]
_DEFAULT = "TOSA-1.0+FP+INT+int4+int16"


class VgfOptions(TosaOptions):
    """Options of `VgfPartitioner`, which come from its `VgfCompileSpec`."""

    spec = _SPEC

    tosa_spec: VgfTosaSpec = _DEFAULT
    compiler_flags: Distinct[ConverterFlag] | None = None
    """Additional flags for the model converter, such as --require-static-shape."""


class VgfQuantize(ArmQuantize, TosaOptions):
    """Options of a `VgfQuantizer`."""

    spec = _SPEC
    partitioners_own = TosaQuantize.partitioners_own

    quantizer: Literal["vgf"]
    tosa_spec: VgfTosaSpec = _DEFAULT


def _own_converter() -> str:
    """Return the converter that the user set in the environment, or ""."""
    return os.environ.get(_CONVERTER) or ""


def _executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def converter() -> str:
    """Return the path of the model converter.

    An environment variable may name it; otherwise, it is the wheel's. executorch would find the
    wheel's only through a wrapper script on PATH, whose digest differs.
    """
    if _own_converter():
        return _own_converter()
    folders = package_folders("model_converter")
    return str(folders[0] / "binaries" / "bin" / "model-converter") if folders else ""


@contextmanager
def _calling_the_converter() -> Iterator[None]:
    """Make executorch call `converter()` within the context."""
    before = {_CONVERTER: os.environ[_CONVERTER]} if _CONVERTER in os.environ else {}
    os.environ[_CONVERTER] = converter()
    try:
        yield
    finally:
        del os.environ[_CONVERTER]
        os.environ.update(before)


def _vgf_facts() -> dict[str, str]:
    path = _own_converter()
    return (
        {"model converter": digest.hash_file(Path(path))} if _executable(path) else {}
    )


ENTRIES = (
    arm_backend(
        "vgf",
        "Vgf",
        summary="GPUs and NPUs with Vulkan's ML extensions for tensors and data graphs",
        options=VgfOptions,
        quantize=VgfQuantize,
        around=_calling_the_converter,
        host=Host(
            requirements=(
                extra("vgf", "model_converter", "tosa_serializer"),
                Requirement(
                    f"an executable file where {_CONVERTER} points",
                    "unset it to use the installed one",
                    lambda: not _own_converter() or _executable(_own_converter()),
                ),
            ),
            distributions=(*TOSA, "ai-ml-sdk-model-converter"),
            facts=_vgf_facts,
        ),
        execution=Execution(cannot_run=missing, elsewhere="emulation"),
    ),
)
