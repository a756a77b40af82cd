"""Vulkan, for GPUs, and WebGPU, which reads the same payload: executorch/backends/vulkan and
executorch/backends/webgpu."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from pipeline.backends import reasons
from pipeline.backends.entry import Backend, Constructor
from pipeline.backends.operators import OperatorName, edge_operators
from pipeline.backends.options import Distinct, ModuleName, Options
from pipeline.backends.quantize_options import OF_MODULES, OF_OPERATORS, MixedQuantize

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

# The members of executorch's VkStorageType and VkMemoryLayout, in lower case.
VulkanStorage = Literal["buffer", "texture_3d", "texture_2d", "default_storage"]
VulkanLayout = Literal[
    "tensor_width_packed",
    "tensor_height_packed",
    "tensor_channels_packed",
    "packed_int8_4w4c",
    "packed_int8_4h4w",
    "packed_int8_4w",
    "packed_int8_4c",
    "packed_int8_4c1w",
    "packed_int8_conv2d",
    "default_layout",
]
_ALLOWED_MODULES = (
    "Delegate only what comes from modules whose type's qualified name holds one of these, such as "
    "Linear."
)
_BLOCKED_MODULES = (
    "Leave what comes from modules whose type's qualified name holds one of these to others."
)


def _not_empty(name: str) -> str:
    if not name:
        raise PydanticCustomError("rule", "must not be empty, which would be part of every name")
    return name


ModuleType = Annotated[str, AfterValidator(_not_empty), Field(json_schema_extra={"minLength": 1})]
Extent = Annotated[int, Field(ge=1, le=2**31 - 1)]


class VulkanOptions(Options):
    """Options of `VulkanPartitioner`.

    Of compile options upstream takes any key and ignores what it does not know. These are all that
    its partitioner (vulkan_partitioner.py), its preprocess function (vulkan_preprocess.py) and its
    runtime (VulkanBackend.cpp, `get_graph_config`) read.
    """

    force_fp16: bool = Field(
        default=False, description="Compute in float16 and store weights as float16."
    )
    skip_bool_tensors: bool = Field(
        default=False,
        description="Leave operators on bool tensors to others: some GPUs lack int8 buffers.",
    )
    downcast_64_bit: bool = Field(
        default=True, description="Store 64-bit numbers in 32 bits, which every GPU has."
    )
    texture_limits: tuple[Extent, Extent, Extent] | None = Field(
        default=None,
        strict=False,
        description="The GPU's greatest 3D texture: width, height, depth. By default 16384, "
        "16384, 2048.",
    )
    small_texture_limits: bool = Field(
        default=False,
        description="Keep to textures of 2048 each way, which every GPU has; not beside "
        "texture_limits.",
    )
    buffer_limit: int = Field(
        default=128 * 1024 * 1024,
        ge=1,
        description="The GPU's greatest buffer, in elements. The installed partitioner takes it "
        "and does not look at it yet.",
    )
    require_dynamic_shapes: bool = Field(
        default=False,
        description="Delegate only operators whose kernels follow dynamic sizes, and tell the "
        "runtime to expect them.",
    )
    storage_type_override: VulkanStorage | None = Field(
        default=None, description="Where tensors are kept when nothing else decides it."
    )
    memory_layout_override: VulkanLayout | None = Field(
        default=None, description="How tensors are laid out when nothing else decides it."
    )
    skip_tag_memory_metadata: bool = Field(
        default=False,
        description="Insert no transitions of storage and layout; for debugging the backend.",
    )
    skip_memory_planning: bool = Field(
        default=False, description="Let no two tensors share memory; for debugging the backend."
    )
    warmup_execute_after_compile: bool = Field(
        default=False, description="Have the runtime run each graph once when it is loaded."
    )
    operator_blocklist: Distinct[OperatorName] | None = Field(
        default=None, description="Operators to leave to others, such as aten.add.Tensor."
    )
    operator_allowlist: Distinct[OperatorName] | None = Field(
        default=None,
        description="Delegate only these operators, such as aten.add.Tensor; patterns that are "
        "fused into one operator are delegated in any case.",
    )
    nn_module_allowlist: Distinct[ModuleType] | None = Field(
        default=None, description=_ALLOWED_MODULES
    )
    nn_module_blocklist: Distinct[ModuleType] | None = Field(
        default=None, description=_BLOCKED_MODULES
    )

    @field_validator("small_texture_limits")
    @classmethod
    def _one_limit(cls, small: bool, info: ValidationInfo) -> bool:
        if small and info.data.get("texture_limits") is not None:
            raise PydanticCustomError("rule", "can't stand beside texture_limits")
        return small


class VulkanScheme(Options):
    """Options of `get_symmetric_quantization_config`, for a `VulkanQuantizer`: symmetric weights,
    a scale for each output channel."""

    dynamic: bool = Field(
        default=False,
        description="Quantize activations as they come, to int8. If false, only weights are "
        "quantized.",
    )
    weight_bits: Literal[4, 8] = Field(default=8, description="Bits of a weight: 4 or 8.")
    weight_qmin: int | None = Field(
        default=None,
        ge=-128,
        le=-1,
        description="The least quantized weight; by default the least of these bits.",
    )
    weight_qmax: int | None = Field(
        default=None,
        ge=1,
        le=127,
        description="The greatest quantized weight; by default the greatest of these bits.",
    )
    act_qmin: int | None = Field(
        default=None, ge=-128, le=-1, description="The least quantized activation, if dynamic."
    )
    act_qmax: int | None = Field(
        default=None, ge=1, le=127, description="The greatest quantized activation, if dynamic."
    )


class VulkanQuantize(VulkanScheme, MixedQuantize):
    """A `VulkanQuantizer`, which knows linear layers, with other options for some modules."""

    scheme: ClassVar[type[Options]] = VulkanScheme

    quantizer: Literal["vulkan"]
    modules: dict[ModuleName, VulkanScheme | Literal["none"]] = Field(
        default={}, description=OF_MODULES
    )
    operators: dict[Literal["linear"], VulkanScheme | Literal["none"]] = Field(
        default={}, description=OF_OPERATORS
    )

    def observes(self, scheme: VulkanScheme) -> bool:
        return False  # static means that only weights are quantized


# What WebGPUTester (executorch/backends/webgpu/test/tester.py) lets the partitioner delegate.
WEBGPU_OPERATORS = (
    "aten.add.Tensor",
    "et_vk.rms_norm.default",
    "aten.mul.Tensor",
    "aten.view_copy.default",
    "aten.select_copy.int",
    "aten.sigmoid.default",
    "aten.squeeze_copy.dims",
    "aten.unsqueeze_copy.default",
    "aten.slice_copy.Tensor",
    "aten.permute_copy.default",
    "aten.cat.default",
)


class WebGpuOptions(Options):
    """Options of the `VulkanPartitioner` for WebGPU, whose runtime has few operators."""

    operators: Distinct[OperatorName] = Field(
        default=WEBGPU_OPERATORS,
        description="What the runtime implements, and so what is delegated; by default what "
        "ExecuTorch's own tests delegate.",
    )
    nn_module_allowlist: Distinct[ModuleType] | None = Field(
        default=None, description=_ALLOWED_MODULES
    )
    nn_module_blocklist: Distinct[ModuleType] | None = Field(
        default=None, description=_BLOCKED_MODULES
    )


# Keys of the compile options, as against arguments of the partitioner.
_COMPILE_OPTIONS = (
    "force_fp16",
    "skip_bool_tensors",
    "downcast_64_bit",
    "texture_limits",
    "small_texture_limits",
    "buffer_limit",
    "require_dynamic_shapes",
    "storage_type_override",
    "memory_layout_override",
    "skip_tag_memory_metadata",
    "skip_memory_planning",
    "warmup_execute_after_compile",
)


def _vulkan_partitioner(options: VulkanOptions) -> Partitioner:
    from executorch.backends.vulkan.partitioner import vulkan_partitioner

    _keep_pattern_graphs()
    return vulkan_partitioner.VulkanPartitioner(
        _compile_options(options),
        operator_blocklist=_operators(options.operator_blocklist, "operator_blocklist"),
        operator_allowlist=_operators(options.operator_allowlist, "operator_allowlist"),
        nn_module_blocklist=_list(options.nn_module_blocklist),
        nn_module_allowlist=_list(options.nn_module_allowlist),
    )


def _webgpu_partitioner(options: WebGpuOptions) -> Partitioner:
    from executorch.backends.vulkan.partitioner import vulkan_partitioner

    _keep_pattern_graphs()
    return vulkan_partitioner.VulkanPartitioner(
        {"skip_bool_tensors": True},
        operator_allowlist=_operators(options.operators, "operators"),
        nn_module_blocklist=_list(options.nn_module_blocklist),
        nn_module_allowlist=_list(options.nn_module_allowlist),
    )


def _compile_options(options: VulkanOptions) -> dict[str, Any]:
    """Those that differ from their default, since every one that is given stands in the package."""
    from executorch.backends.vulkan.serialization.vulkan_graph_schema import (
        VkMemoryLayout,
        VkStorageType,
    )

    enums = {"storage_type_override": VkStorageType, "memory_layout_override": VkMemoryLayout}
    given = {
        name: getattr(options, name)
        for name in _COMPILE_OPTIONS
        if getattr(options, name) != VulkanOptions.model_fields[name].default
    }
    return {
        name: enums[name][value.upper()] if name in enums else value
        for name, value in given.items()
    }


def _operators(names: tuple[str, ...] | None, option: str) -> list[Any] | None:
    """The operators of these names in each form in which the partitioner meets them: of the edge
    dialect, of ATen (symbolic sizes), and as the name of a custom operator (auto_functionalized).
    Raises PipelineError."""
    if names is None:
        return None
    return [
        key
        for operator in edge_operators(names, option, _delegated_operators())
        for key in (operator, operator._op, operator._op.name())
    ]


def _delegated_operators() -> Iterator[str]:
    from executorch.backends.vulkan.op_registry import vulkan_supported_ops

    names = (getattr(operator, "__name__", "") for operator in vulkan_supported_ops)
    return (name for name in names if name.count(".") == 2)


def _list(names: Iterable[str] | None) -> list[str] | None:
    return None if names is None else list(names)


def _keep_pattern_graphs() -> None:
    """Exports the graphs of the backend's patterns once in a process, not twice for each partition
    (about 4 s each time). Upstream means to: it puts `lru_cache` around functions after it has
    registered them. This can go when it does so before.
    """
    from executorch.backends.vulkan.patterns import fusable_patterns

    for entry in fusable_patterns.values():
        if entry.get_graphs_fn is not None and not hasattr(entry.get_graphs_fn, "cache_info"):
            entry.get_graphs_fn = cache(entry.get_graphs_fn)


def _vulkan_quantizer(config: VulkanQuantize) -> Quantizer:
    from executorch.backends.vulkan.quantizer import vulkan_quantizer
    from torchao.quantization.pt2e.quantizer import ComposableQuantizer

    def quantizer(scheme: VulkanScheme) -> vulkan_quantizer.VulkanQuantizer:
        quantization = vulkan_quantizer.get_symmetric_quantization_config(
            is_dynamic=scheme.dynamic,
            weight_bits=scheme.weight_bits,
            act_qmin=scheme.act_qmin,
            act_qmax=scheme.act_qmax,
            weight_qmin=scheme.weight_qmin,
            weight_qmax=scheme.weight_qmax,
        )
        return vulkan_quantizer.VulkanQuantizer().set_global(quantization)

    if not config.mixed:
        return quantizer(config)
    return ComposableQuantizer(
        [quantizer(each).set_filter_function(config.takes(each)) for each in config.schemes()]
    )


_PARTITIONER = "executorch.backends.vulkan.partitioner.vulkan_partitioner:VulkanPartitioner"
_PREPROCESS = "executorch.backends.vulkan.vulkan_preprocess:"
_OF_TEXTURE_LIMITS = {f"texture_limits_{axis}": "of `texture_limits`" for axis in "xyz"}
_CONSTRUCTORS = (
    Constructor(_PARTITIONER, left_out={"compile_options": "made of the other options"}),
    Constructor(f"{_PARTITIONER}[self.options]"),
    Constructor(f"{_PREPROCESS}parse_compile_spec[spec.key]", left_out=_OF_TEXTURE_LIMITS),
    Constructor(
        f"{_PREPROCESS}VulkanBackend.preprocess[compile_options]",
        left_out=_OF_TEXTURE_LIMITS,
        defaults={
            "storage_type_override": "what is not overridden is not told",
            "memory_layout_override": "what is not overridden is not told",
        },
    ),
    Constructor(
        "executorch.backends.vulkan.quantizer.vulkan_quantizer:get_symmetric_quantization_config",
        of="quantizer",
        renamed={"dynamic": "is_dynamic"},
        left_out={"act_bits": "8 is all that there is"},
    ),
)


def _not_here(what: str) -> str:
    return f"the runtime in ExecuTorch's wheel has no {what} delegate"


ENTRIES = (
    Backend(
        name="vulkan",
        backend_id="VulkanBackend",
        details="executorch.backends.vulkan.vulkan_preprocess:VulkanBackend",
        summary="GPUs of Android and desktops",
        options=VulkanOptions,
        quantizer=VulkanQuantize,
        make_partitioner=_vulkan_partitioner,
        make_quantizer=_vulkan_quantizer,
        constructors=_CONSTRUCTORS,
        beyond={"warmup_execute_after_compile": "a compile spec for the runtime, in C++"},
        cannot_run=lambda: _not_here("Vulkan"),
        reasons=reasons.of_vulkan,
        looks_into=frozenset(),
    ),
    Backend(
        name="webgpu",
        backend_id="VulkanBackend",  # its runtime registers under this name and reads its payload
        details="executorch.backends.vulkan.vulkan_preprocess:VulkanBackend",
        summary="GPUs in browsers, for the few operators that its runtime has",
        options=WebGpuOptions,
        make_partitioner=_webgpu_partitioner,
        constructors=(
            Constructor(
                _PARTITIONER,
                renamed={"operators": "operator_allowlist"},
                left_out={
                    "compile_options": "as ExecuTorch's own tests have them",
                    "operator_blocklist": "`operators` says what is delegated",
                },
                defaults={"operators": "as ExecuTorch's own tests have it"},
            ),
        ),
        cannot_run=lambda: _not_here("Vulkan or WebGPU"),
        reasons=reasons.of_vulkan,
        looks_into=frozenset(),
    ),
)
