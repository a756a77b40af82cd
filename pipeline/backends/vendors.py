"""Backends that need what no package index has: a vendor's SDK, a GPU, a Mac.

Their options are those of the installed executorch, and a config that uses one is told at plan time
what is missing. Nothing of them is imported before that: importing `executorch.backends.qualcomm`
without its SDK starts a download of it.

The parts are built as the installed sources say; what they lower was never seen here.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from pipeline.backends.entry import Backend, Constructor, Requirement, built, importable, sdk
from pipeline.backends.options import Distinct, Options
from pipeline.backends.quantize_options import QuantizeConfig, Static
from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

_UNTRIED = "not known: there was nothing to try it with"
_NAMES_THE_ENTRY = {"quantizer": "names the entry"}
_NO_DYNAMIC = {**_NAMES_THE_ENTRY, "dynamic": "always false"}


def _runs_on(device: str) -> Callable[[], str]:
    return lambda: f"it runs on {device} only"


def _require(backend: Backend) -> None:
    """Raises PipelineError where something is missing: an import could do worse."""
    missing = [f"{need.what}: {need.remedy}" for need in backend.missing()]
    if missing:
        raise PipelineError(f"{backend.name} needs " + "; ".join(missing))


def _libraries(variable: str) -> Callable[[], Mapping[str, str]]:
    """What tells one SDK from another: the libraries in the folder that a variable names, and their
    sizes."""

    def facts() -> Mapping[str, str]:
        folder = Path(os.environ.get(variable) or "/nowhere")
        files = sorted(folder.glob("lib/*/*.so*"))
        return {str(file.relative_to(folder)): str(file.stat().st_size) for file in files}

    return facts


def _versions(*modules: str) -> Callable[[], Mapping[str, str]]:
    """The versions of what a vendor hands out under these names."""

    def facts() -> Mapping[str, str]:
        told = {}
        for module in modules:
            try:
                told[module] = version(module)
            except PackageNotFoundError:
                told[module] = "not installed"
        return told

    return facts


# Qualcomm: executorch/backends/qualcomm

# The members of executorch's QcomChipset but for UNKNOWN_SM.
# fmt: off
QualcommChipset = Literal[
    "SA8295", "SA8797", "SM8350", "SM8450", "SM8475", "SM8550", "SM8650", "SM8750", "SM8850",
    "SSG2115P", "SSG2125P", "SXR1230P", "SXR2230P", "SXR2330P", "QCS9100", "SAR2230P", "SA8255",
    "SW6100", "QCM6490", "SM8845",
]
# fmt: on
# Of QnnExecuTorchHtpPerformanceMode, without `kHtp`.
QualcommPerformance = Literal[
    "Default",
    "SustainedHighPerformance",
    "Burst",
    "HighPerformance",
    "PowerSaver",
    "LowPowerSaver",
    "HighPowerSaver",
    "LowBalanced",
    "Balanced",
]
# Of QnnExecuTorchGpuPrecision, without `kGpuPrecision`.
QualcommGpuPrecision = Literal["Fp32", "Fp16", "Hybrid", "UserProvided"]
# Of QuantDtype, without `use_`. Those with blocks need a size for every layer, and fp16 no scales.
QualcommDtype = Literal["16a16w", "16a8w", "16a4w", "8a8w", "8a4w"]


def _of_processor(*names: str) -> AfterValidator:
    def check(value: Any, info: ValidationInfo) -> Any:
        processor = info.data.get("processor")
        if processor is not None and processor not in names:
            raise PydanticCustomError(
                "rule",
                "which processor {processor} does not have; {names} does",
                {"processor": processor, "names": " or ".join(names)},
            )
        return value

    return AfterValidator(check)


_HTP, _GPU, _HTP_OR_GPU = _of_processor("htp"), _of_processor("gpu"), _of_processor("htp", "gpu")


class QualcommOptions(Options):
    """Options of `QnnPartitioner` and of the functions that make its compile specs."""

    soc_model: QualcommChipset = Field(description="The chip that the package runs on.")
    processor: Literal["htp", "gpu"] = Field(
        default="htp", description="Which of the chip's processors: its NPU or its GPU."
    )
    use_fp16: Annotated[bool, _HTP] = Field(
        default=False, description="Compute what is not quantized in float16, as premium chips can."
    )
    use_dlbc: Annotated[bool, _HTP] = Field(
        default=False, description="Compress tensors on their way through memory."
    )
    use_multi_contexts: Annotated[bool, _HTP] = Field(
        default=False, description="Let all partitions of the package share one spill buffer."
    )
    use_slc_allocator: Annotated[bool, _HTP] = Field(
        default=False, description="Keep tensors in the system level cache, where a chip has one."
    )
    htp_performance_mode: Annotated[QualcommPerformance, _HTP] = Field(
        default="Burst", description="How the NPU is clocked when the package runs."
    )
    precision: Annotated[QualcommGpuPrecision, _GPU] = Field(
        default="UserProvided", description="What the GPU computes in; by default the tensors'."
    )
    use_memory_optimizations: Annotated[bool, _GPU] = Field(
        default=True, description="Let tensors share memory."
    )
    use_node_optimizations: Annotated[bool, _GPU] = Field(
        default=True, description="Fuse operators."
    )
    use_queue_recording: Annotated[bool, _GPU] = Field(
        default=True, description="Record command queues and replay them."
    )
    use_weight_sharing: Annotated[bool, _HTP_OR_GPU] = Field(
        default=False, description="Store weights that methods share once."
    )
    online_prepare: bool = Field(
        default=False, description="Compile on the device, when the package is loaded."
    )
    shared_buffer: bool = Field(
        default=False, description="Pass inputs and outputs in memory that the application shares."
    )
    profile_level: Literal[0, 2, 3] = Field(
        default=0, description="0: off; 2: each operator; 3: a trace for Qualcomm's tools."
    )
    dump_intermediate_outputs: bool = Field(
        default=False, description="Write out every tensor, to look for errors."
    )
    debug: bool = Field(default=False, description="Log everything.")
    use_mha2sha: bool = Field(
        default=False, description="Split attention into its heads; experimental."
    )
    skip_node_id_set: Distinct[str] | None = Field(
        default=None, description="Nodes that stay outside the delegate."
    )
    skip_node_op_set: Distinct[str] | None = Field(
        default=None,
        description="Operators that stay outside the delegate, such as aten.relu.default.",
    )
    skip_mutable_buffer: bool = Field(
        default=False, description="Leave mutable buffers outside the delegate."
    )


class QualcommQuantize(QuantizeConfig):
    """Options of `QnnQuantizer` and of its `set_default_quant_config`."""

    quantizer: Literal["qualcomm"]
    dynamic: Static = False
    soc_model: QualcommChipset = Field(
        default="SM8750", description="The chip whose constraints are kept."
    )
    processor: Literal["htp", "gpu"] = Field(
        default="htp", description="Which of the chip's processors."
    )
    strict: bool = Field(
        default=True, description="Fail where a constraint of the chip is not met, not just warn."
    )
    quant_dtype: QualcommDtype = Field(
        default="8a8w", description="Bits of activations (a) and of weights (w)."
    )
    is_conv_per_channel: bool = Field(
        default=False, description="Give each channel of a convolution a scale of its own."
    )
    is_linear_per_channel: bool = Field(
        default=False, description="Give each channel of a linear layer a scale of its own."
    )
    is_embedding_per_channel: bool = Field(
        default=False, description="Give each row of an embedding a scale of its own."
    )
    act_symmetric: bool = Field(default=False, description="Quantize activations symmetrically.")


def _qualcomm_partitioner(options: QualcommOptions) -> Partitioner:
    _require(QUALCOMM)
    from executorch.backends.qualcomm.partition.qnn_partitioner import QnnPartitioner
    from executorch.backends.qualcomm.serialization import qc_schema
    from executorch.backends.qualcomm.utils import utils

    if options.processor == "htp":
        mode = f"kHtp{options.htp_performance_mode}"
        backend = utils.generate_htp_compiler_spec(
            use_fp16=options.use_fp16,
            use_dlbc=options.use_dlbc,
            use_multi_contexts=options.use_multi_contexts,
            use_weight_sharing=options.use_weight_sharing,
            use_slc_allocator=options.use_slc_allocator,
            htp_performance_mode=qc_schema.QnnExecuTorchHtpPerformanceMode[mode],
        )
    else:
        precision = f"kGpuPrecision{options.precision}"
        backend = utils.generate_gpu_compiler_spec(
            precision=qc_schema.QnnExecuTorchGpuPrecision[precision],
            use_memory_optimizations=options.use_memory_optimizations,
            use_node_optimizations=options.use_node_optimizations,
            use_queue_recording=options.use_queue_recording,
            use_weight_sharing=options.use_weight_sharing,
        )
    specs = utils.generate_qnn_executorch_compiler_spec(
        soc_model=qc_schema.QcomChipset[options.soc_model],
        backend_options=backend,
        debug=options.debug,
        online_prepare=options.online_prepare,
        dump_intermediate_outputs=options.dump_intermediate_outputs,
        profile_level=options.profile_level,
        shared_buffer=options.shared_buffer,
        use_mha2sha=options.use_mha2sha,
    )
    return QnnPartitioner(
        specs,
        skip_node_id_set=set(options.skip_node_id_set or ()),
        skip_node_op_set=set(options.skip_node_op_set or ()),
        skip_mutable_buffer=options.skip_mutable_buffer,
    )


def _qualcomm_quantizer(config: QualcommQuantize) -> Quantizer:
    _require(QUALCOMM)
    from executorch.backends.qualcomm.quantizer import quantizer
    from executorch.backends.qualcomm.serialization import qc_schema

    kind = f"k{config.processor.capitalize()}Backend"
    made = quantizer.QnnQuantizer(
        backend=qc_schema.QnnExecuTorchBackendType[kind],
        soc_model=qc_schema.QcomChipset[config.soc_model],
        strict=config.strict,
    )
    made.set_default_quant_config(
        quantizer.QuantDtype[f"use_{config.quant_dtype}"],
        is_conv_per_channel=config.is_conv_per_channel,
        is_linear_per_channel=config.is_linear_per_channel,
        is_embedding_per_channel=config.is_embedding_per_channel,
        act_symmetric=config.act_symmetric,
    )
    return made


_QUALCOMM_UTILS = "executorch.backends.qualcomm.utils.utils:generate_"
_QUALCOMM_QUANTIZER = "executorch.backends.qualcomm.quantizer.quantizer:QnnQuantizer"
QUALCOMM = Backend(
    name="qualcomm",
    backend_id="QnnBackend",
    summary="Snapdragon NPUs and GPUs",
    options=QualcommOptions,
    quantizer=QualcommQuantize,
    joint=True,
    make_partitioner=_qualcomm_partitioner,
    make_quantizer=_qualcomm_quantizer,
    requirements=(
        sdk(
            "Qualcomm's AI Engine Direct SDK (QNN)",
            "QNN_SDK_ROOT",
            "Qualcomm's developer site",
        ),
        Requirement("cpuinfo", "pip install py-cpuinfo", lambda: importable("cpuinfo")),
    ),
    facts=_libraries("QNN_SDK_ROOT"),
    unreproducible=_UNTRIED,
    cannot_run=_runs_on("Snapdragon devices"),
    constructors=(
        Constructor(
            "executorch.backends.qualcomm.partition.qnn_partitioner:QnnPartitioner",
            left_out={"compiler_specs": "made of the other options"},
        ),
        Constructor(
            f"{_QUALCOMM_UTILS}qnn_executorch_compiler_spec",
            left_out={
                "backend_options": "made of those of the processor",
                "saver": "records calls of the SDK instead of compiling",
                "is_from_context_binary": "for programs that Qualcomm's tools have compiled",
                "op_package_options": "for operators of one's own, built with the SDK",
            },
        ),
        Constructor(f"{_QUALCOMM_UTILS}htp_compiler_spec"),
        Constructor(f"{_QUALCOMM_UTILS}gpu_compiler_spec"),
        Constructor(
            _QUALCOMM_QUANTIZER,
            of="quantizer",
            renamed={"processor": "backend"},
        ),
        Constructor(
            f"{_QUALCOMM_QUANTIZER}.set_default_quant_config",
            of="quantizer",
            left_out={
                "is_qat": "programs come here trained",
                "act_observer": "a class",
                "eps": "the observer's own",
            },
        ),
    ),
    beyond={**_NO_DYNAMIC, "processor": "says which function makes the compile specs"},
)


# MediaTek: executorch/backends/mediatek


class MediatekOptions(Options):
    """Options of `NeuropilotPartitioner` and of its compile specs."""

    platform: Literal["mt6989", "mt6991", "mt6993"] = Field(
        description="The chip that the package runs on."
    )
    op_types_to_skip: Distinct[str] | None = Field(
        default=None,
        description="Operators that stay outside the delegate, such as aten.relu.default.",
    )
    op_names_to_skip: Distinct[str] | None = Field(
        default=None, description="Nodes that stay outside the delegate."
    )
    import_forever: bool = Field(
        default=False, description="Keep the compiled program in memory as long as it is loaded."
    )
    shared_blob: str | None = Field(
        default=None,
        min_length=1,
        description="A key; methods with the same one store the weights that they share once.",
    )
    compiler_options: Distinct[str] | None = Field(
        default=None,
        description="More options of MediaTek's compiler, each `name` or `name=value`.",
    )


class MediatekQuantize(QuantizeConfig):
    """The setting of `NeuropilotQuantizer`."""

    quantizer: Literal["mediatek"]
    dynamic: Static = False
    precision: Literal["A16W16", "A16W8", "A16W4", "A8W8", "A8W4"] = Field(
        default="A8W8", description="Bits of activations (A) and of weights (W)."
    )


def _mediatek_partitioner(options: MediatekOptions) -> Partitioner:
    _require(MEDIATEK)
    from executorch.backends.mediatek.partitioner import NeuropilotPartitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    told: dict[str, str] = {"platform-config": options.platform}
    for option in options.compiler_options or ():
        name, _, value = option.partition("=")
        told[name] = value
    if options.shared_blob is not None:
        told["ExtractSharedBlobKey"] = options.shared_blob
    specs = [CompileSpec(name, value.encode()) for name, value in told.items()]
    if options.import_forever:
        specs.append(CompileSpec("ImportForever", b"\x01"))
    return NeuropilotPartitioner(
        specs,
        op_types_to_skip=set(options.op_types_to_skip or ()),
        op_names_to_skip=set(options.op_names_to_skip or ()),
    )


def _mediatek_quantizer(config: MediatekQuantize) -> Quantizer:
    _require(MEDIATEK)
    from executorch.backends.mediatek.quantizer import NeuropilotQuantizer, Precision

    made = NeuropilotQuantizer()
    made.setup_precision(Precision[config.precision])
    return made


_NEUROPILOT = "get MediaTek's NeuroPilot Express SDK from its portal and install its wheels"
MEDIATEK = Backend(
    name="mediatek",
    backend_id="NeuropilotBackend",
    summary="Dimensity NPUs",
    options=MediatekOptions,
    quantizer=MediatekQuantize,
    joint=True,
    make_partitioner=_mediatek_partitioner,
    make_quantizer=_mediatek_quantizer,
    requirements=(
        Requirement("mtk_converter", _NEUROPILOT, lambda: importable("mtk_converter")),
        Requirement("mtk_neuron", _NEUROPILOT, lambda: importable("mtk_neuron")),
    ),
    facts=_versions("mtk_converter", "mtk_neuron"),
    unreproducible=_UNTRIED,
    cannot_run=_runs_on("MediaTek devices"),
    constructors=(
        Constructor(
            "executorch.backends.mediatek.partitioner:NeuropilotPartitioner",
            left_out={"compile_spec": "made of the other options"},
        ),
        Constructor(
            "executorch.backends.mediatek.quantizer.quantizer:NeuropilotQuantizer.setup_precision",
            of="quantizer",
        ),
    ),
    beyond={
        **_NO_DYNAMIC,
        "platform": "the compile spec platform-config",
        "import_forever": "the compile spec ImportForever",
        "shared_blob": "the compile spec ExtractSharedBlobKey",
        "compiler_options": "compile specs, which go to the compiler",
    },
)


# Samsung: executorch/backends/samsung


class SamsungOptions(Options):
    """The argument of `gen_samsung_backend_compile_spec`, which `EnnPartitioner` takes."""

    chipset: Literal["E9955", "E9965"] = Field(description="The chip that the package runs on.")


class SamsungQuantize(QuantizeConfig):
    """Options of `EnnQuantizer.setup_quant_params`: 8-bit activations and weights."""

    quantizer: Literal["samsung"]
    dynamic: Static = False
    per_channel: bool = Field(
        default=True, description="Give each output channel of a weight a scale of its own."
    )


def _samsung_partitioner(options: SamsungOptions) -> Partitioner:
    _require(SAMSUNG)
    from executorch.backends.samsung.partition.enn_partitioner import EnnPartitioner
    from executorch.backends.samsung.serialization.compile_options import (
        gen_samsung_backend_compile_spec,
    )

    return EnnPartitioner([gen_samsung_backend_compile_spec(options.chipset)])


def _samsung_quantizer(config: SamsungQuantize) -> Quantizer:
    _require(SAMSUNG)
    from executorch.backends.samsung.quantizer.quantizer import EnnQuantizer, Precision

    made = EnnQuantizer()
    made.setup_quant_params(Precision.A8W8, is_per_channel=config.per_channel)
    return made


SAMSUNG = Backend(
    name="samsung",
    backend_id="EnnBackend",
    summary="Exynos NPUs",
    options=SamsungOptions,
    quantizer=SamsungQuantize,
    make_partitioner=_samsung_partitioner,
    make_quantizer=_samsung_quantizer,
    requirements=(
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
    facts=_libraries("EXYNOS_AI_LITECORE_ROOT"),
    unreproducible=_UNTRIED,
    cannot_run=_runs_on("Exynos devices"),
    constructors=(
        Constructor(
            "executorch.backends.samsung.partition.enn_partitioner:EnnPartitioner",
            left_out={"compile_specs": "made of `chipset`"},
        ),
        Constructor(
            "executorch.backends.samsung.serialization.compile_options:"
            "gen_samsung_backend_compile_spec"
        ),
        Constructor(
            "executorch.backends.samsung.quantizer.quantizer:EnnQuantizer.setup_quant_params",
            of="quantizer",
            renamed={"per_channel": "is_per_channel"},
            left_out={
                "quant_dtype": "A8W8 is all that there is",
                "is_qat": "programs come here trained",
            },
        ),
    ),
    beyond=_NO_DYNAMIC,
)


# NXP: executorch/backends/nxp


class NxpOptions(Options):
    """Options of `NeutronPartitioner` and of `generate_neutron_compile_spec`."""

    target: str = Field(
        min_length=1, description="The chip that the package runs on, such as imxrt700."
    )
    extra_flags: str | None = Field(
        default=None, min_length=1, description="More flags of NXP's converter."
    )
    operators_not_to_delegate: Distinct[str] | None = Field(
        default=None,
        description="Operators that stay outside the delegate: those whose node's name holds one "
        "of these.",
    )
    use_neutron_for_format_conversion: bool = Field(
        default=True, description="Let the NPU transpose inputs and outputs."
    )
    fetch_constants_to_sram: bool = Field(
        default=False, description="Fetch weights from flash piece by piece, where SRAM is short."
    )
    use_profiling: bool = Field(default=False, description="Profile the delegate.")
    allow_no_op_partitions: bool = Field(
        default=False, description="Delegate partitions too that compute nothing."
    )


class NxpQuantize(QuantizeConfig):
    """The argument of `NeutronQuantizer`: int8 activations and weights."""

    quantizer: Literal["nxp"]
    dynamic: Static = False
    target: str = Field(
        default="imxrt700", min_length=1, description="The chip that the package runs on."
    )


def _nxp_partitioner(options: NxpOptions) -> Partitioner:
    _require(NXP)
    from executorch.backends.nxp.backend.custom_delegation_options import CustomDelegationOptions
    from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
    from executorch.backends.nxp.neutron_partitioner import NeutronPartitioner
    from executorch.backends.nxp.nxp_backend import generate_neutron_compile_spec

    without = options.operators_not_to_delegate
    specs = generate_neutron_compile_spec(
        options.target,
        extra_flags=options.extra_flags,
        operators_not_to_delegate=list(without) if without else None,
        use_neutron_for_format_conversion=options.use_neutron_for_format_conversion,
        fetch_constants_to_sram=options.fetch_constants_to_sram,
        use_profiling=options.use_profiling,
    )
    return NeutronPartitioner(
        specs,
        NeutronTargetSpec(options.target),
        custom_delegation_options=CustomDelegationOptions(
            allow_no_op_partitions=options.allow_no_op_partitions
        ),
    )


def _nxp_quantizer(config: NxpQuantize) -> Quantizer:
    _require(NXP)
    from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec
    from executorch.backends.nxp.quantizer.neutron_quantizer import NeutronQuantizer

    return NeutronQuantizer(NeutronTargetSpec(config.target))


NXP = Backend(
    name="nxp",
    backend_id="NeutronBackend",
    summary="i.MX RT's Neutron NPU",
    options=NxpOptions,
    quantizer=NxpQuantize,
    make_partitioner=_nxp_partitioner,
    make_quantizer=_nxp_quantizer,
    edge_operators=("aten.prelu.default",),
    requirements=(
        Requirement(
            "eiq_neutron_sdk",
            "install NXP's eIQ Neutron SDK as ExecuTorch's examples/nxp/setup.sh does",
            lambda: importable("eiq_neutron_sdk"),
        ),
    ),
    facts=_versions("eiq_neutron_sdk"),
    unreproducible=_UNTRIED,
    cannot_run=_runs_on("i.MX RT devices"),
    constructors=(
        Constructor(
            "executorch.backends.nxp.neutron_partitioner:NeutronPartitioner",
            left_out={
                "compile_spec": "made of the other options",
                "neutron_target_spec": "made of `target`",
                "custom_delegation_options": "made of `allow_no_op_partitions`",
                "post_quantization_state_dict": "tensors",
                "preserve_ops": "a list of operators as objects",
                "check_op_support": "a function",
            },
        ),
        Constructor(
            "executorch.backends.nxp.nxp_backend:generate_neutron_compile_spec",
            renamed={"target": "config"},
            left_out={
                "system_config": "is not read",
                "intermediates_dir": "writes files beside the build's",
                "dump_kernel_selection_code": "writes files beside the build's",
            },
        ),
        Constructor(
            "executorch.backends.nxp.backend.custom_delegation_options:CustomDelegationOptions"
        ),
        Constructor(
            "executorch.backends.nxp.quantizer.neutron_quantizer:NeutronQuantizer",
            of="quantizer",
            renamed={"target": "neutron_target_spec"},
            left_out={"is_qat": "programs come here trained"},
        ),
    ),
    beyond=_NO_DYNAMIC,
)


# CUDA and Metal, both through AOTInductor: executorch/backends/{aoti,cuda,apple/metal}


def _cuda_device(value: str) -> str:
    if not re.fullmatch(r"cuda:[0-9]+", value):
        raise PydanticCustomError("rule", "must be cuda: and a number")
    return value


class CudaOptions(Options):
    """Compile specs of `CudaPartitioner`."""

    target_device: Annotated[str, AfterValidator(_cuda_device)] = Field(
        default="cuda:0",
        description="Which GPU the package runs on: cuda: and a number.",
    )
    platform: Literal["linux", "windows"] = Field(
        default="linux", description="What the package runs on."
    )
    triton_kernel_mode: Literal["ON", "OFF"] = Field(
        default="ON", description="Replace operators by ExecuTorch's Triton kernels."
    )
    max_autotune: bool = Field(
        default=True, description="Choose kernels by timing them on the GPU that builds."
    )
    emulate_precision_casts: bool = Field(
        default=True, description="Round as eager mode does where operators are fused."
    )
    low_memory_mode: bool = Field(
        default=False, description="Keep caches and copies of buffers off the GPU that builds."
    )


def _cuda_partitioner(options: CudaOptions) -> Partitioner:
    _require(CUDA)
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    told = {
        name: ("ON" if value else "OFF") if isinstance(value, bool) else value
        for name, value in options.resolved().items()
    }
    return CudaPartitioner([CompileSpec(name, value.encode()) for name, value in told.items()])


def _cuda_torch() -> bool:
    """Whether torch is a CUDA build: its version says so, or the libraries of one are there."""
    try:
        return "+cu" in version("torch") or importable("nvidia")
    except PackageNotFoundError:
        return False


def _gpus() -> Mapping[str, str]:
    """Kernels are compiled for the GPUs of this machine, unless a variable names others."""
    variables = ("CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "TRITON_PTXAS_PATH")
    told = {name: os.environ[name] for name in variables if name in os.environ}
    driver = Path("/proc/driver/nvidia")
    for file in (driver / "version", *sorted(driver.glob("gpus/*/information"))):
        with suppress(OSError):
            first = file.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
            told[str(file.relative_to(driver))] = " ".join(first.split())
    return told


CUDA = Backend(
    name="cuda",
    backend_id="CudaBackend",
    summary="Nvidia GPUs",
    options=CudaOptions,
    distributions=("executorch", "flatbuffers", "torch", "torchao", "triton"),
    make_partitioner=_cuda_partitioner,
    requirements=(
        Requirement(
            "a CUDA build of torch",
            "install torch 2.13.0 from PyTorch's index for CUDA",
            _cuda_torch,
        ),
        Requirement("triton", "pip install triton", lambda: importable("triton")),
        Requirement(
            "an Nvidia GPU",
            "build on a machine that has one",
            lambda: os.path.exists("/dev/nvidia0"),
        ),
    ),
    facts=_gpus,
    unreproducible="kernels are chosen by timing them",
    constructors=(
        Constructor(
            "executorch.backends.cuda.cuda_partitioner:CudaPartitioner",
            left_out={"compile_spec": "made of the options"},
        ),
    ),
    beyond={
        "target_device": "a compile spec",
        "platform": "a compile spec",
        "triton_kernel_mode": "a compile spec",
        "max_autotune": "a compile spec",
        "emulate_precision_casts": "a compile spec",
        "low_memory_mode": "a compile spec",
    },
)


class MetalOptions(Options):
    """Compile specs of `MetalPartitioner`."""

    codesign_identity: str | None = Field(
        default=None,
        min_length=1,
        description="What the code in the package is signed with; `-`: signed ad hoc.",
    )


def _metal_partitioner(options: MetalOptions) -> Partitioner:
    _require(METAL)
    from executorch.backends.apple.metal.metal_partitioner import MetalPartitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    identity = options.codesign_identity
    return MetalPartitioner(
        [CompileSpec("codesign_identity", identity.encode())] if identity else []
    )


METAL = Backend(
    name="metal",
    backend_id="MetalBackend",
    summary="GPUs of Macs",
    options=MetalOptions,
    make_partitioner=_metal_partitioner,
    requirements=(Requirement("a Mac", "build on macOS", lambda: sys.platform == "darwin"),),
    unreproducible="kernels are chosen by timing them",
    constructors=(
        Constructor(
            "executorch.backends.apple.metal.metal_partitioner:MetalPartitioner",
            left_out={"compile_spec": "made of the options"},
        ),
    ),
    beyond={"codesign_identity": "a compile spec"},
)

ENTRIES = (QUALCOMM, MEDIATEK, SAMSUNG, NXP, CUDA, METAL)
