"""VGF, for GPUs with Vulkan's ML extensions, through the ML SDK's model converter:
executorch/backends/arm/vgf."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pipeline.backends.arm import (
    FLAG_SCHEMA,
    TOSA_TOOLS,
    ArmQuantize,
    PassOptions,
    TosaSpec,
    backend,
    constructors,
    flag,
)
from pipeline.backends.entry import Requirement, extra
from pipeline.backends.options import Distinct, Options
from pipeline.store import digest

ConverterFlag = Annotated[
    str,
    flag(
        (
            "--input",
            "--output",
            "--tosa-flatbuffer",
            "--tosa-flatbuffer-schema",
            "--help",
            "--version",
        )
    ),
    FLAG_SCHEMA,
]


class _VgfTarget(Options):
    tosa_spec: TosaSpec = Field(
        default="TOSA-1.0+FP+INT+int4+int16",
        description="The TOSA specification that is lowered to: version, one or both profiles (FP, "
        "INT), extensions.",
    )


class VgfOptions(PassOptions, _VgfTarget):
    """Options of `VgfPartitioner`: those of its `VgfCompileSpec`."""

    compiler_flags: Distinct[ConverterFlag] | None = Field(
        default=None,
        description="Further flags of the model converter, such as --require-static-shape.",
    )


class VgfQuantize(ArmQuantize, PassOptions, _VgfTarget):
    """Options of a `VgfQuantizer`."""

    quantizer: Literal["vgf"]
    partitioners_own = ("tosa_spec", *ArmQuantize.partitioners_own)


_CONVERTER = "MODEL_CONVERTER_PATH"


def _own_converter() -> str:
    """The converter that executorch is told to call, or "" where it calls the wheel's."""
    return os.environ.get(_CONVERTER) or ""


def _executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def converter() -> str:
    """The model converter's program. The wheel's own, which executorch would only find on PATH,
    where a script of another digest calls it; a variable names another."""
    if _own_converter():
        return _own_converter()
    spec = find_spec("model_converter")
    folders = spec.submodule_search_locations if spec is not None else None
    found = [Path(each) / "binaries" / "bin" / "model-converter" for each in folders or ()]
    return str(found[0]) if found else ""


@contextmanager
def _calling_the_converter() -> Iterator[None]:
    """Has executorch call `converter()`."""
    before = os.environ.get(_CONVERTER)
    os.environ[_CONVERTER] = converter()
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CONVERTER]
        else:
            os.environ[_CONVERTER] = before


def _no_emulation() -> str:
    from pipeline.backends.arm import emulation as arm_emulation

    return arm_emulation.missing()


def _vgf_facts() -> dict[str, str]:
    path = _own_converter()
    return {"model converter": digest.of_file(Path(path))} if _executable(path) else {}


ENTRIES = (
    backend(
        name="vgf",
        backend_id="VgfBackend",
        details="executorch.backends.arm.vgf.backend:VgfBackend",
        summary="GPUs and NPUs with Vulkan's ML extensions for tensors and data graphs",
        options=VgfOptions,
        quantizer=VgfQuantize,
        distributions=(*TOSA_TOOLS, "ai-ml-sdk-model-converter"),
        requirements=(
            extra("vgf", "model_converter", "tosa_serializer"),
            Requirement(
                f"an executable file where {_CONVERTER} points",
                "unset it to use the installed one",
                lambda: not _own_converter() or _executable(_own_converter()),
            ),
        ),
        facts=_vgf_facts,
        around_preprocess=_calling_the_converter,
        constructors=constructors(
            "vgf.compile_spec:VgfCompileSpec",
            "vgf.partitioner:VgfPartitioner",
            "VgfQuantizer(compile_spec)",
            tools=("compiler_flags",),
            defaults={"tosa_spec": "what it takes where none is given"},
        ),
        cannot_run=_no_emulation,
    ),
)
