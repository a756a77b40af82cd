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
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
)
from typing_extensions import TypeAliasType

from pipeline.backends.constructors import Constructor, constructors, described
from pipeline.backends.entry import Backend, Preprocessing, Quantization
from pipeline.backends.host import Host, Requirement, built, importable, sdk
from pipeline.backends.options import Distinct, Options, rule
from pipeline.backends.quantize_options import QuantizeConfig, Static

PLUGIN = Requirement(
    "a plugin that lowers to it",
    "write one as docs/guides/writing-a-backend.md says",
    lambda: False,
)


def _refuse_as_one(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Refuse a value with one error, not with one for each type that it could be of."""
    try:
        return validate(value)
    except ValidationError:
        raise rule("must be true, false, a whole number, a text or a list of texts") from None


# What a parameter without a plain default can be; one definition of the schema.
VendorValue = TypeAliasType(
    "VendorValue",
    Annotated[bool | int | str | Distinct[str] | None, WrapValidator(_refuse_as_one)],
)
_Model = TypeVar("_Model", bound=Options)


def _row(
    name: str, backend_id: str, summary: str, needs: Sequence[Requirement], joint: bool = False
) -> Backend:
    """Return the entry of a backend whose options are the parameters of its constructors."""
    kind = {"quantizer": (Literal[name], ...), "dynamic": (Static, False)}  # type: ignore[valid-type]
    quantizes = constructors(f"{name}.quantization")
    quantize = _model(f"{name.capitalize()}Quantize", QuantizeConfig, quantizes, **kind)
    takes = constructors(f"{name}.lowering")
    return Backend(
        name=name,
        backend_id=backend_id,
        summary=summary,
        options=_model(f"{name.capitalize()}Options", Options, takes),
        quantization=Quantization(options=quantize) if quantizes else None,
        preprocessing=Preprocessing(
            joint=joint, unreproducible="not known: there was nothing to try it with"
        ),
        host=Host(requirements=(*needs, PLUGIN)),
    )


def _model(
    name: str, base: type[_Model], takes: Sequence[Constructor], **fields: Any
) -> type[_Model]:
    """Return options with a field for each parameter, typed as its default where it has one."""
    for constructor in takes:
        module, _, path = constructor.target.partition(":")
        function = path.partition("[")[0] or module.rpartition(".")[2]
        for each in described()["callables"].get(constructor.target, ()):
            if each["name"] in constructor.left_out:
                continue
            default = each.get("default")
            otherwise = f", by default {each['code']}" if "code" in each else ""
            said = Field(default, description=f"Of {function}{otherwise}.")
            fields[each["name"]] = (VendorValue if default is None else type(default), said)
    return create_model(name, __base__=base, __module__=__name__, **fields)


def _module(name: str, remedy: str) -> Requirement:
    return Requirement(name, remedy, lambda: importable(name))


def _cuda_torch() -> bool:
    """Return whether torch is a CUDA build: its version says so, or libraries of one are there."""
    try:
        return "+cu" in version("torch") or importable("nvidia")
    except PackageNotFoundError:
        return False


_QNN = sdk("Qualcomm's AI Engine Direct SDK (QNN)", "QNN_SDK_ROOT", "Qualcomm's developer site")
_CPUINFO = _module("cpuinfo", "pip install py-cpuinfo")
_EXPRESS = "get MediaTek's NeuroPilot Express SDK from its portal and install its wheels"
_NEUROPILOT = (_module("mtk_converter", _EXPRESS), _module("mtk_neuron", _EXPRESS))
_ENN = sdk(
    "Samsung's Exynos AI LiteCore SDK", "EXYNOS_AI_LITECORE_ROOT", "Samsung's developer site"
)
_ENN_WRAPPER = built(
    "executorch.backends.samsung.python.PyEnnWrapperAdaptor",
    "build executorch from source with the SDK (backends/samsung/build.sh)",
)
_NEUTRON = _module(
    "eiq_neutron_sdk", "install NXP's eIQ Neutron SDK as ExecuTorch's examples/nxp/setup.sh does"
)
_CUDA = Requirement(
    "a CUDA build of torch", "install torch 2.13.0 from PyTorch's index for CUDA", _cuda_torch
)
_TRITON = _module("triton", "pip install triton")
_GPU = Requirement(
    "an Nvidia GPU", "build on a machine that has one", lambda: os.path.exists("/dev/nvidia0")
)
_MAC = Requirement("a Mac", "build on macOS", lambda: sys.platform == "darwin")
ENTRIES = (
    _row("qualcomm", "QnnBackend", "Snapdragon NPUs and GPUs", (_QNN, _CPUINFO), joint=True),
    _row("mediatek", "NeuropilotBackend", "Dimensity NPUs", _NEUROPILOT, joint=True),
    _row("samsung", "EnnBackend", "Exynos NPUs", (_ENN, _ENN_WRAPPER)),
    _row("nxp", "NeutronBackend", "i.MX RT's Neutron NPU", (_NEUTRON,)),
    _row("cuda", "CudaBackend", "Nvidia GPUs", (_CUDA, _TRITON, _GPU)),
    _row("metal", "MetalBackend", "GPUs of Macs", (_MAC,)),
    _row("cadence", "CadenceBackend", "Xtensa DSPs, by graph passes", ()),
)
