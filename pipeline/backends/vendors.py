"""Backends of vendors that this package does not lower to: what each needs and takes, as data.

Options are the parameters of what `constructors.toml` names. Nothing of a vendor's is imported:
Qualcomm's tries to download its SDK. A plugin may bring a backend by the name of a row here, and
takes its place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, TypeVar

from pydantic import Field, create_model
from typing_extensions import TypeAliasType

from pipeline.backends.constructors import constructors, described
from pipeline.backends.entry import Backend, Preprocessing, Quantization
from pipeline.backends.host import Host, Requirement, built, importable, sdk
from pipeline.backends.options import Distinct, Options
from pipeline.backends.quantize_options import QuantizeConfig, Static

PLUGIN = Requirement(
    "a plugin that lowers to it", "write one as docs/writing-a-backend.md says", lambda: False
)
# What a parameter without a plain default can be; one definition of the schema.
VendorValue = TypeAliasType("VendorValue", bool | int | str | Distinct[str] | None)
_Model = TypeVar("_Model", bound=Options)


class _Options(Options, use_attribute_docstrings=False):
    """Options whose fields stand in no source."""


class _Quantize(QuantizeConfig, use_attribute_docstrings=False):
    """Those of a quantizer, likewise."""


def _row(
    name: str,
    backend_id: str,
    summary: str,
    needs: Sequence[Requirement],
    quantizes: bool = False,
    joint: bool = False,
) -> Backend:
    """Return the entry of a backend whose options are the parameters of its constructors."""
    kind = {"quantizer": (Literal[name], ...), "dynamic": (Static, False)}  # type: ignore[valid-type]
    quantize = _model(name, "quantization", _Quantize, **kind)
    return Backend(
        name=name,
        backend_id=backend_id,
        summary=summary,
        options=_model(name, "lowering", _Options),
        quantization=Quantization(options=quantize) if quantizes else None,
        preprocessing=Preprocessing(
            joint=joint, unreproducible="not known: there was nothing to try it with"
        ),
        host=Host(requirements=(*needs, PLUGIN)),
    )


def _model(name: str, stage: str, base: type[_Model], **fields: Any) -> type[_Model]:
    """Return options with a field for each parameter, typed as its default where it has one."""
    for constructor in constructors(f"{name}.{stage}"):
        module, _, path = constructor.target.partition(":")
        function = path.partition("[")[0] or module.rpartition(".")[2]
        for each in described()["callables"].get(constructor.target, ()):
            if each["name"] in constructor.left_out:
                continue
            default = each.get("default")
            otherwise = f", by default {each['code']}" if "code" in each else ""
            said = Field(default, description=f"Of {function}{otherwise}.")
            fields[each["name"]] = (VendorValue if default is None else type(default), said)
    suffix = "Quantize" if stage == "quantization" else "Options"
    title = f"{name.capitalize()}{suffix}"
    return create_model(title, __base__=base, __module__=__name__, **fields)


def _module(name: str, remedy: str) -> Requirement:
    return Requirement(name, remedy, lambda: importable(name))


def _cuda_torch() -> bool:
    """Return whether torch is a CUDA build: its version says so, or libraries of one are there."""
    try:
        return "+cu" in version("torch") or importable("nvidia")
    except PackageNotFoundError:
        return False


_NEUROPILOT = "get MediaTek's NeuroPilot Express SDK from its portal and install its wheels"
ENTRIES = (
    _row(
        "qualcomm",
        "QnnBackend",
        "Snapdragon NPUs and GPUs",
        (
            sdk(
                "Qualcomm's AI Engine Direct SDK (QNN)",
                "QNN_SDK_ROOT",
                "Qualcomm's developer site",
            ),
            _module("cpuinfo", "pip install py-cpuinfo"),
        ),
        quantizes=True,
        joint=True,
    ),
    _row(
        "mediatek",
        "NeuropilotBackend",
        "Dimensity NPUs",
        (_module("mtk_converter", _NEUROPILOT), _module("mtk_neuron", _NEUROPILOT)),
        quantizes=True,
        joint=True,
    ),
    _row(
        "samsung",
        "EnnBackend",
        "Exynos NPUs",
        (
            sdk(
                "Samsung's Exynos AI LiteCore SDK",
                "EXYNOS_AI_LITECORE_ROOT",
                "Samsung's developer site",
            ),
            built(
                "executorch.backends.samsung.python.PyEnnWrapperAdaptor",
                "build executorch from source with the SDK (backends/samsung/build.sh)",
            ),
        ),
        quantizes=True,
    ),
    _row(
        "nxp",
        "NeutronBackend",
        "i.MX RT's Neutron NPU",
        (
            _module(
                "eiq_neutron_sdk",
                "install NXP's eIQ Neutron SDK as ExecuTorch's examples/nxp/setup.sh does",
            ),
        ),
        quantizes=True,
    ),
    _row(
        "cuda",
        "CudaBackend",
        "Nvidia GPUs",
        (
            Requirement(
                "a CUDA build of torch",
                "install torch 2.13.0 from PyTorch's index for CUDA",
                _cuda_torch,
            ),
            _module("triton", "pip install triton"),
            Requirement(
                "an Nvidia GPU",
                "build on a machine that has one",
                lambda: os.path.exists("/dev/nvidia0"),
            ),
        ),
    ),
    _row(
        "metal",
        "MetalBackend",
        "GPUs of Macs",
        (Requirement("a Mac", "build on macOS", lambda: sys.platform == "darwin"),),
    ),
    _row("cadence", "CadenceBackend", "Xtensa DSPs, by graph passes", ()),
)
