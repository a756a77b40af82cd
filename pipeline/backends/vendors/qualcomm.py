"""Qualcomm, for Snapdragon's NPUs and GPUs: executorch/backends/qualcomm.

Nothing of it is imported where its SDK is missing: the import starts a download of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from pipeline.backends.entry import Backend, Constructor, Requirement, importable, sdk
from pipeline.backends.options import Distinct, Options
from pipeline.backends.quantize_options import QuantizeConfig, Static
from pipeline.backends.vendors import NO_DYNAMIC, UNTRIED, libraries, require, runs_on

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer


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
    require(QUALCOMM)
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
    require(QUALCOMM)
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
    facts=libraries("QNN_SDK_ROOT"),
    unreproducible=UNTRIED,
    cannot_run=runs_on("Snapdragon devices"),
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
            defaults={"processor": "the same: htp is its kHtpBackend"},
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
    beyond={**NO_DYNAMIC, "processor": "says which function makes the compile specs"},
    looks_into=frozenset(),
)


ENTRIES = (QUALCOMM,)
