"""Backends of vendors that this package does not lower to: what each needs and takes, as data.

Parameters are those of `constructors.json`, read out of the installed executorch. Nothing of a
vendor's is imported: Qualcomm's tries to download its SDK. A plugin may bring a backend by the name
of a row here, and takes its place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, TypeVar

from pydantic import Field, create_model
from typing_extensions import TypeAliasType

from pipeline.backends.constructors import described
from pipeline.backends.entry import Backend, Constructor, Lowering, Preprocessing, Quantization
from pipeline.backends.host import Host, Requirement, built, importable, sdk
from pipeline.backends.options import Distinct, Options
from pipeline.backends.quantize_options import QuantizeConfig, Static

PLUGIN = Requirement(
    "a plugin that lowers to it", "write one as docs/writing-a-backend.md says", lambda: False
)
# Parameters that a config can't give: compile specs are made of other options.
_NO_OPTIONS = ("compile_spec", "compile_specs", "compiler_specs", "backend_options")
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
    partitioner: Sequence[str],
    quantizer: Sequence[str] = (),
    joint: bool = False,
) -> Backend:
    """Return the entry of a backend whose options are the parameters of these constructors."""
    takes = tuple(map(_constructor, partitioner))
    quantizes = tuple(map(_constructor, quantizer))
    kind = {"quantizer": (Literal[name], ...), "dynamic": (Static, False)}  # type: ignore[valid-type]
    prefix = name.capitalize()
    quantization = Quantization(
        options=_model(f"{prefix}Quantize", _Quantize, quantizes, **kind),
        constructors=quantizes,
        beyond={"dynamic": "always false"},
    )
    return Backend(
        name=name,
        backend_id=backend_id,
        summary=summary,
        options=_model(f"{prefix}Options", _Options, takes),
        lowering=Lowering(constructors=takes),
        quantization=quantization if quantizer else None,
        preprocessing=Preprocessing(
            joint=joint, unreproducible="not known: there was nothing to try it with"
        ),
        host=Host(requirements=(*needs, PLUGIN)),
    )


def _constructor(target: str) -> Constructor:
    target = target if target.startswith("executorch.") else f"executorch.backends.{target}"
    names = [each["name"] for each in _parameters(target)]
    codes = [each["name"] for each in _parameters(target) if "code" in each]
    return Constructor(
        target,
        left_out={each: "made of the other options" for each in _NO_OPTIONS if each in names},
        defaults=dict.fromkeys(codes, "told in the description"),
    )


def _parameters(target: str) -> Sequence[Mapping[str, Any]]:
    return described()["callables"].get(target, ())  # type: ignore[no-any-return]


def _model(
    name: str, base: type[_Model], constructors: Sequence[Constructor], **fields: Any
) -> type[_Model]:
    """Return options with a field for each parameter, typed as its default where it has one."""
    for constructor in constructors:
        module, _, path = constructor.target.partition(":")
        function = path.partition("[")[0] or module.rpartition(".")[2]
        for each in _parameters(constructor.target):
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
        (
            "qualcomm.partition.qnn_partitioner:QnnPartitioner",
            "qualcomm.utils.utils:generate_qnn_executorch_compiler_spec",
            "qualcomm.utils.utils:generate_htp_compiler_spec",
            "qualcomm.utils.utils:generate_gpu_compiler_spec",
        ),
        (
            "qualcomm.quantizer.quantizer:QnnQuantizer",
            "qualcomm.quantizer.quantizer:QnnQuantizer.set_default_quant_config",
        ),
        joint=True,
    ),
    _row(
        "mediatek",
        "NeuropilotBackend",
        "Dimensity NPUs",
        (_module("mtk_converter", _NEUROPILOT), _module("mtk_neuron", _NEUROPILOT)),
        (
            "mediatek.partitioner:NeuropilotPartitioner",
            "mediatek.preprocess:[spec.key]",
        ),
        ("mediatek.quantizer.quantizer:NeuropilotQuantizer.setup_precision",),
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
        (
            "samsung.partition.enn_partitioner:EnnPartitioner",
            "samsung.serialization.compile_options:gen_samsung_backend_compile_spec",
        ),
        ("samsung.quantizer.quantizer:EnnQuantizer.setup_quant_params",),
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
        (
            "nxp.neutron_partitioner:NeutronPartitioner",
            "nxp.nxp_backend:generate_neutron_compile_spec",
            "nxp.backend.custom_delegation_options:CustomDelegationOptions",
        ),
        ("nxp.quantizer.neutron_quantizer:NeutronQuantizer",),
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
        (
            "cuda.cuda_partitioner:CudaPartitioner",
            "cuda.cuda_backend:CudaBackend[spec.key]",
            "executorch.exir.passes.propagate_device_pass:[spec.key]",
        ),
    ),
    _row(
        "metal",
        "MetalBackend",
        "GPUs of Macs",
        (Requirement("a Mac", "build on macOS", lambda: sys.platform == "darwin"),),
        (
            "apple.metal.metal_partitioner:MetalPartitioner",
            "apple.metal.metal_backend:MetalBackend[spec.key]",
        ),
    ),
    _row("cadence", "CadenceBackend", "Xtensa DSPs, by graph passes", (), ()),
)
