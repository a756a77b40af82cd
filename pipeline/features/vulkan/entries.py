"""Vulkan, for GPUs, and WebGPU, which reads the same payload.

Sources: executorch/backends/vulkan and executorch/backends/webgpu.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from pipeline.backends import reasons
from pipeline.backends.entry import (
    Backend,
    Execution,
    Lowering,
    NameKind,
    Preprocessing,
    Quantization,
)
from pipeline.backends.host import explain_missing_delegate, find_delegate_facts
from pipeline.backends.integer_scalars import keeping_integers
from pipeline.backends.options import (
    NAMES,
    Distinct,
    Greatest,
    Least,
    OneOf,
    OperatorName,
    Options,
    edge_operators,
    rule,
)
from pipeline.backends.quantize_options import ByModule, ByOperator, MixedQuantize
from pipeline.backends.vulkan_driver import has_driver, has_loader

if TYPE_CHECKING:
    from executorch.exir.backend.partitioner import Partitioner
    from torchao.quantization.pt2e.quantizer import Quantizer

# The members of executorch's VkStorageType, in lower case.
VulkanStorage = Literal["buffer", "texture_3d", "texture_2d", "default_storage"]


def _check_type(name: str) -> str:
    if not name:
        raise rule("must not be empty, since every name contains it")
    return name


ModuleType = Annotated[
    str, AfterValidator(_check_type), Field(json_schema_extra={"minLength": 1})
]
Extent = Annotated[int, Field(ge=1, le=2**31 - 1)]


# Options of both backends.
ModuleAllowlist = Annotated[
    Distinct[ModuleType] | None,
    Field(
        description="Delegate only operators from modules whose qualified type name contains one "
        "of these strings, such as Linear."
    ),
]
ModuleBlocklist = Annotated[
    Distinct[ModuleType] | None,
    Field(
        description="Don't delegate operators from modules whose qualified type name contains one "
        "of these strings."
    ),
]


class VulkanOptions(Options):
    """Options of `VulkanPartitioner`.

    Upstream accepts any key as a compile option and ignores unknown ones. These are all the options
    that its partitioner (vulkan_partitioner.py), its preprocess function (vulkan_preprocess.py) and
    its runtime (VulkanBackend.cpp, `get_graph_config`) read.
    """

    nn_module_allowlist: ModuleAllowlist = None
    nn_module_blocklist: ModuleBlocklist = None
    force_fp16: bool = False
    """Compute in float16 and store weights as float16."""
    skip_bool_tensors: bool = False
    """Don't delegate operators on bool tensors, since some GPUs lack the int8 buffers that store
    them."""
    downcast_64_bit: bool = True
    """Store 64-bit numbers as 32-bit numbers, which every GPU supports."""
    texture_limits: tuple[Extent, Extent, Extent] | None = Field(None, strict=False)
    """The maximum width, height and depth of a 3D texture; by default, 16384, 16384 and 2048."""
    small_texture_limits: bool = False
    """Limit textures to 2048 in each dimension, a size that every GPU supports. This option can't
    be combined with texture_limits."""
    buffer_limit: int = Field(128 * 1024 * 1024, ge=1)
    """The maximum size of a buffer, in elements. The installed partitioner accepts this option but
    ignores it."""
    require_dynamic_shapes: bool = False
    """Delegate only operators whose kernels support dynamic sizes, and make the runtime expect such
    sizes."""
    storage_type_override: VulkanStorage | None = None
    "The storage type of tensors, unless an operator requires another one."
    memory_layout_override: Annotated[str, OneOf("vulkan_layouts")] | None = None
    "The memory layout of tensors, unless an operator requires another one."
    skip_tag_memory_metadata: bool = False
    """Don't insert transitions between storage types or layouts. This option is for debugging the
    backend."""
    skip_memory_planning: bool = False
    """Give each tensor its own memory. This option is for debugging the backend."""
    warmup_execute_after_compile: bool = False
    """Make the runtime run each graph once when it loads the graph."""
    operator_blocklist: Distinct[OperatorName] | None = None
    """Operators not to delegate, such as aten.add.Tensor."""
    operator_allowlist: Distinct[OperatorName] | None = None
    """Delegate only these operators, such as aten.add.Tensor; patterns that are fused into one
    operator are always delegated."""

    @field_validator("small_texture_limits")
    @classmethod
    def _one_limit(cls, small: bool, info: ValidationInfo) -> bool:
        if small and info.data.get("texture_limits") is not None:
            raise rule("can't be combined with texture_limits")
        return small


class WebGpuOptions(Options):
    """Options of the `VulkanPartitioner` for WebGPU, whose runtime supports few operators."""

    nn_module_allowlist: ModuleAllowlist = None
    nn_module_blocklist: ModuleBlocklist = None
    operators: Distinct[OperatorName] = tuple(NAMES["webgpu_operators"])
    """The operators to delegate, all of which the WebGPU runtime must implement; by default, the
    operators that ExecuTorch's own tests delegate."""


class VulkanScheme(Options):
    """Options of `get_symmetric_quantization_config`, for a `VulkanQuantizer`.

    Weights are symmetric, with a scale for each output channel.
    """

    dynamic: bool = False
    """Quantize activations dynamically to int8. If false, only weights are quantized."""
    weight_bits: Literal[4, 8] = 8
    """The number of bits per weight."""
    weight_qmin: Least | None = None
    """The minimum quantized weight; by default the minimum for `weight_bits`."""
    weight_qmax: Greatest | None = None
    """The maximum quantized weight; by default the maximum for `weight_bits`."""
    act_qmin: Least | None = None
    """The minimum quantized activation, if `dynamic` is true; by default -128."""
    act_qmax: Greatest | None = None
    """The maximum quantized activation, if `dynamic` is true; by default 127."""


class VulkanQuantize(VulkanScheme, MixedQuantize):
    """A `VulkanQuantizer`, which supports linear layers, with other options for some modules."""

    scheme: ClassVar[type[Options]] = VulkanScheme

    quantizer: Literal["vulkan"]
    modules: ByModule[VulkanScheme] = Field({})
    operators: ByOperator[Literal["linear"], VulkanScheme] = Field({})

    def observes(self, scheme: VulkanScheme) -> bool:
        return False  # static means that only weights are quantized


def _vulkan_partitioner(options: VulkanOptions) -> Partitioner:
    from executorch.backends.vulkan.serialization import vulkan_graph_schema as schema

    # Leave out defaults, since the package holds every option that is passed.
    compile_options = options.model_dump(
        exclude={*_MODULE_LISTS, *_OPERATOR_LISTS}, exclude_defaults=True
    )
    enums = {
        "storage_type_override": schema.VkStorageType,
        "memory_layout_override": schema.VkMemoryLayout,
    }
    for name, enum in enums.items():
        if name in compile_options:
            compile_options[name] = enum[compile_options[name].upper()]
    return _partitioner(
        options,
        compile_options,
        operator_blocklist=_operators(options, "operator_blocklist"),
        operator_allowlist=_operators(options, "operator_allowlist"),
    )


def _webgpu_partitioner(options: WebGpuOptions) -> Partitioner:
    operators = _operators(options, "operators")
    return _partitioner(
        options, {"skip_bool_tensors": True}, operator_allowlist=operators
    )


def _partitioner(
    options: VulkanOptions | WebGpuOptions,
    compile_options: dict[str, Any],
    **operators: Any,
) -> Partitioner:
    from executorch.backends.vulkan.partitioner import vulkan_partitioner

    _keep_pattern_graphs()
    modules = options.model_dump(include=set(_MODULE_LISTS), mode="json")
    return vulkan_partitioner.VulkanPartitioner(compile_options, **modules, **operators)


def _operators(options: Options, option: str) -> list[Any] | None:
    """Return the operators that an option names, in each form that the partitioner sees.

    These are operators of the edge dialect, of ATen (symbolic sizes), and names of custom operators
    (auto_functionalized). Raises PipelineError.
    """
    from executorch.backends.vulkan.op_registry import vulkan_supported_ops

    names = getattr(options, option)
    if names is None:
        return None
    supported = [getattr(operator, "__name__", "") for operator in vulkan_supported_ops]
    suggestions = [name for name in supported if name.count(".") == 2]
    forms: list[Any] = []
    for operator in edge_operators(names, option, suggestions):
        forms += [operator, operator._op, operator._op.name()]
    return forms


def _keep_pattern_graphs() -> None:
    """Export the graphs of the backend's patterns once per process, not twice for each partition.

    Each export takes about 4 s. Upstream intends to keep them, but it puts `lru_cache` around
    functions after it has registered them. This can go when it does so before.
    """
    from executorch.backends.vulkan.patterns import fusable_patterns

    for entry in fusable_patterns.values():
        if entry.get_graphs_fn is not None and not hasattr(
            entry.get_graphs_fn, "cache_info"
        ):
            entry.get_graphs_fn = cache(entry.get_graphs_fn)


def _vulkan_quantizer(config: VulkanQuantize) -> Quantizer:
    from executorch.backends.vulkan.quantizer import vulkan_quantizer

    def make(scheme: VulkanScheme) -> Quantizer:
        values = scheme.model_dump()
        quantization = vulkan_quantizer.get_symmetric_quantization_config(
            is_dynamic=values.pop("dynamic"), **values
        )
        return keeping_integers(
            vulkan_quantizer.VulkanQuantizer().set_global(quantization)
        )

    return config.compose(make)


_VULKAN = "executorch.backends.vulkan."
_PREPROCESSING = Preprocessing(details=f"{_VULKAN}vulkan_preprocess:VulkanBackend")
_MODULE_LISTS: dict[str, NameKind] = dict.fromkeys(
    ("nn_module_allowlist", "nn_module_blocklist"), "module type"
)
_OPERATOR_LISTS: dict[str, NameKind] = dict.fromkeys(
    ("operator_blocklist", "operator_allowlist"), "operator"
)
_REASONS = reasons.reported_by(
    f"{_VULKAN}partitioner.vulkan_partitioner:VulkanSupportedOperators", "log_skip"
)


def _cannot_run() -> str:
    """Return why this machine can't run Vulkan's payloads, or ""."""
    lacking = explain_missing_delegate("VulkanBackend", "Vulkan")
    if lacking:
        return lacking
    if not (has_loader() and has_driver()):
        return "it needs the Vulkan loader (libvulkan.so.1) and a driver, such as mesa's lavapipe"
    return ""


_EXECUTION = Execution(
    cannot_run=_cannot_run,
    facts=partial(find_delegate_facts, "VulkanBackend"),
    elsewhere="library",
)


ENTRIES = (
    Backend(
        name="vulkan",
        backend_id="VulkanBackend",
        summary="GPUs of Android devices and desktops",
        options=VulkanOptions,
        lowering=Lowering(
            _vulkan_partitioner,
            reasons=_REASONS,
            control_flow=frozenset(),
            name_lists=_MODULE_LISTS | _OPERATOR_LISTS,
        ),
        quantization=Quantization(VulkanQuantize, _vulkan_quantizer),
        preprocessing=_PREPROCESSING,
        execution=_EXECUTION,
    ),
    Backend(
        name="webgpu",
        backend_id="VulkanBackend",  # WebGPU's runtime has this name and reads this payload
        summary="GPUs in browsers, for the few operators that WebGPU's runtime supports",
        options=WebGpuOptions,
        lowering=Lowering(
            _webgpu_partitioner,
            reasons=_REASONS,
            control_flow=frozenset(),
            name_lists=_MODULE_LISTS,
        ),
        preprocessing=_PREPROCESSING,
        execution=_EXECUTION,  # Vulkan's runtime reads WebGPU's payload, too
    ),
)
