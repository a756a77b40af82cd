"""Vendors' backends that this project can't lower to: their requirements and documentation.

The rows have no options: options would suggest support, and nobody here has lowered to these
backends. Nothing of a vendor's is imported: Qualcomm's package tries to download its SDK. A plugin
may bring a backend, with options, by the name of a row here, and replaces the row.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from pipeline.backends.entry import Backend, Preprocessing
from pipeline.backends.host import Host, Requirement, built, importable, sdk
from pipeline.backends.options import NoOptions
from pipeline.store.releases import installed_release

_DOCS = "https://docs.pytorch.org/executorch/stable/"
_SOURCE = "https://github.com/pytorch/executorch/tree/main/"
PLUGIN = Requirement(
    "a plugin that lowers to it",
    "write a plugin (docs/guides/writing-a-backend.md)",
    lambda: False,  # a plugin's entry would replace the row
)


def _row(
    name: str,
    backend_id: str,
    summary: str,
    needs: Sequence[Requirement],
    documented: str,
    joint: bool = False,
) -> Backend:
    """Return the entry of a backend that this project can't lower to."""
    return Backend(
        name=name,
        backend_id=backend_id,
        summary=summary,
        options=NoOptions,
        preprocessing=Preprocessing(
            # Which backends take all methods at once depends on the release: CUDA's does since 1.5.
            joint=joint or name in installed_release().joint,
            unreproducible="not known: it could not be tried",
        ),
        host=Host(requirements=(*needs, PLUGIN)),
        documented=documented,
    )


def _module(name: str, remedy: str) -> Requirement:
    return Requirement(name, remedy, lambda: importable(name))


def _cuda_torch() -> bool:
    """Return whether torch is a CUDA build, judging by its version or installed CUDA libraries."""
    try:
        # PyPI's CUDA builds don't have `+cu` in their version.
        return "+cu" in version("torch") or importable("nvidia")
    except PackageNotFoundError:
        return False


_QNN = sdk(
    "Qualcomm's AI Engine Direct SDK (QNN)", "QNN_SDK_ROOT", "Qualcomm's developer site"
)
_CPUINFO = _module("cpuinfo", "pip install py-cpuinfo")
_EXPRESS = (
    "get MediaTek's NeuroPilot Express SDK from its portal and install its wheels"
)
_NEUROPILOT = (_module("mtk_converter", _EXPRESS), _module("mtk_neuron", _EXPRESS))
_ENN = sdk(
    "Samsung's Exynos AI LiteCore SDK",
    "EXYNOS_AI_LITECORE_ROOT",
    "Samsung's developer site",
)
_ENN_WRAPPER = built(
    "executorch.backends.samsung.python.PyEnnWrapperAdaptor",
    "build executorch from source with the SDK (backends/samsung/build.sh)",
)
_NEUTRON = _module(
    "eiq_neutron_sdk",
    "install NXP's eIQ Neutron SDK as ExecuTorch's examples/nxp/setup.sh does",
)
_CUDA = Requirement(
    "a CUDA build of torch",
    "install torch 2.13.0 from PyTorch's index for CUDA",
    _cuda_torch,
)
_TRITON = _module("triton", "pip install triton")
_GPU = Requirement(
    "an Nvidia GPU",
    "build on a machine with an Nvidia GPU",
    # Asking torch would import it.
    lambda: os.path.exists("/dev/nvidia0"),
)
_COREAI = _module("coreai_torch", "install Apple's coreai-torch")
_MAC = Requirement("a Mac", "build on macOS", lambda: sys.platform == "darwin")
ENTRIES = (
    _row(
        "qualcomm",
        "QnnBackend",
        "Snapdragon NPUs and GPUs",
        (_QNN, _CPUINFO),
        _DOCS + "backends-qualcomm.html",
        joint=True,
    ),
    _row(
        "mediatek",
        "NeuropilotBackend",
        "Dimensity NPUs",
        _NEUROPILOT,
        _DOCS + "backends-mediatek.html",
        joint=True,
    ),
    _row(
        "samsung",
        "EnnBackend",
        "Exynos NPUs",
        (_ENN, _ENN_WRAPPER),
        _DOCS + "backends-samsung-exynos.html",
    ),
    _row(
        "nxp",
        "NeutronBackend",
        "i.MX RT's Neutron NPU",
        (_NEUTRON,),
        _DOCS + "backends-nxp.html",
    ),
    _row(
        "cuda",
        "CudaBackend",
        "Nvidia GPUs",
        (_CUDA, _TRITON, _GPU),
        _DOCS + "backends/cuda/cuda-overview.html",
    ),
    _row(
        "metal",
        "MetalBackend",
        "GPUs of Macs",
        (_MAC,),
        _SOURCE + "backends/apple/metal",
    ),
    _row(
        "coreai",
        "CoreAIBackend",
        "Apple's Core AI",
        (_COREAI,),
        _SOURCE + "backends/apple/coreai",
    ),
    _row(
        "native",
        "NativeBackend",
        "core ATen operators as they are, for a runtime of `.ptn` files",
        (),
        _SOURCE + "backends/native",
    ),
    _row(
        "cadence",
        "CadenceBackend",
        "Xtensa DSPs, by graph passes",
        (),
        _DOCS + "backends-cadence.html",
    ),
)
