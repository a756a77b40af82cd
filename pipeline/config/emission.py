"""The models of `emit` in a package config: how a package, or one of its methods, is written."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.backends import Options
from pipeline.backends.options import Distinct, rule
from pipeline.config.edge import Passes
from pipeline.config.features import open_to_features
from pipeline.config.fields import (
    Algorithms,
    Label,
    Name,
    NeedsFeature,
    Operator,
    Patterns,
    PowerOfTwo,
    Weights,
)


class MemoryPlan(Options):
    """Settings for planning the memory of a method: options of `MemoryPlanningPass`."""

    algorithm: Algorithms = ("greedy",)
    """The algorithm that plans memory: greedy lets tensors whose lifetimes don't overlap share
    memory; greedy_without_overlap lets them share only whole blocks, each of which holds one tensor
    at a time; naive gives each tensor its own memory. If you list several algorithms, the one
    that needs the least memory is used. To use your own algorithm, write module:name, as for
    passes.

    Example: greedy_without_overlap
    """
    alignment: Annotated[int, Field(ge=1)] = 16
    """The alignment of every tensor, in bytes.

    Example: 64
    """
    allow_lifetime_and_storage_overlap: bool = False
    """Accept plans in which tensors with overlapping lifetimes overlap in memory.

    Example: true
    """
    alloc_graph_input: bool = True
    """Plan memory for inputs; if false, the caller provides it.

    Example: false
    """
    alloc_graph_output: bool = True
    """Plan memory for outputs; if false, the caller provides it.

    Example: false
    """
    alloc_mutable_buffers: bool = True
    """Plan memory for mutable buffers; if false, the runtime provides the buffers, which it finds
    by the names that emit_mutable_buffer_names stores.

    Example: false
    """

    @property
    def references(self) -> tuple[str, ...]:
        """The user's algorithms, as module:name."""
        return tuple(name for name in self.algorithm if ":" in name)


class MemoryPlanning(MemoryPlan):
    """Settings for planning the memory of a package's methods."""

    share_mutable_buffers: bool = False
    """Let buffers with the same name share memory across methods, such as the cache that prefill
    fills and decode reads. All methods are then compiled together. You must set this key to true or
    false if methods use the same buffers and one of the methods changes them; if false, each method
    has its own copy of the buffers.

    Example: true
    """


SymShapeEval = Literal["constraint_based", "hint_based"]


class PropagateDevice(Options):
    """Settings for moving values to and from the device of a delegate (`PropagateDeviceConfig`)."""

    skip_h2d_for_method_inputs: bool = False
    """Expect the inputs that a delegate reads to be on its device already.

    Example: true
    """
    skip_d2h_for_method_outputs: bool = False
    """Leave the outputs of a delegate on its device.

    Example: true
    """


class MethodEmit(Options):
    """Settings for emitting this method; each replaces the package's setting of the same name."""

    memory_planning: MemoryPlan | None = None
    """Settings for planning this method's memory; they replace the package's `emit.memory_planning`
    as a whole."""
    sym_shape_eval: SymShapeEval | None = None
    """Plan memory for the upper bounds of the method's dynamic sizes (constraint_based), or for the
    sizes of the inputs that the method was exported with (hint_based); by default, the package's
    setting applies.

    Example: hint_based
    """
    propagate_device: PropagateDevice | None = None
    """Keep the method's inputs or outputs on the device of the delegate that reads or writes them;
    by default, the package's settings apply."""


class LayoutConfig(Options):
    "Settings for the layout of the .pte file. Changing them doesn't recompile anything."

    extract_delegate_segments: bool = True
    """Store the payloads of delegates in separate segments, so that the runtime can free them.

    Example: false
    """
    segment_alignment: PowerOfTwo = 128
    """The alignment of every segment, in bytes.

    Example: 4096
    """
    constant_tensor_alignment: PowerOfTwo | None = None
    """The alignment of every constant, in bytes; by default 16, the schema's value.

    Example: 64
    """
    delegate_alignment: PowerOfTwo | None = None
    """The alignment of every payload, in bytes; by default 16, the schema's value.

    Example: 64
    """


@open_to_features("emit")
class EmitConfig(Options):
    """Settings for emitting the package (`ExecutorchBackendConfig`)."""

    external_weights: Weights = Field(default={})
    """Store weights in .ptd files, including the weights of delegates if the backend supports this
    (only XNNPACK does). `true` stores all weights in weights.ptd; a list of modules or patterns of
    qualified names, such as decoder or decoder.*, selects the weights to store there; a mapping
    assigns such a list to each file.

    Example: {foundation: [encoder]}
    """
    external_constants: bool = False
    """Store the constants of portable operators in a .ptd file.

    Example: true
    """
    external_files: dict[Name, Patterns] = Field(default={})
    """The constants to store in each .ptd file: a mapping from the file's name to patterns for
    qualified names, such as decoder.*. This key applies whether or not external_constants is set.

    Example: {embeddings: [embed.weight]}
    """
    initialized_buffers: tuple[Label, ...] = Field(default=(), strict=False)
    """Store the initial values of mutable buffers whose names contain one of these strings; the
    initial values of other buffers are undefined.

    Example: [count]
    """
    passes: Passes = ()
    """The passes to run over the lowered program before memory is planned, in this order.

    Example:
    ["executorch.exir.passes.init_mutable_pass:InitializedMutableBufferPass": {patterns: [count]}]
    """
    memory_planning: MemoryPlanning = MemoryPlanning.model_construct()
    remove_view_copy: bool = True
    """Turn copies that only change the shape into views.

    Example: false
    """
    do_quant_fusion_and_const_prop: bool = False
    """Fuse quantized operators and fold constants after lowering.

    Example: true
    """
    run_reinplace_pass: bool = False
    """Let aten.index_put overwrite an input that no later operator reads.

    Example: true
    """
    reinplace_extra_ops: Distinct[Operator] | None = None
    """Additional operators that may overwrite an input, such as aten.relu.default; setting this
    list also enables run_reinplace_pass.

    Example: [aten.mul.Tensor]
    """
    sym_shape_eval: SymShapeEval = "constraint_based"
    """Plan memory for the upper bounds of dynamic sizes (constraint_based), or for the sizes of the
    inputs that the methods were exported with (hint_based).

    Example: hint_based
    """
    propagate_device: PropagateDevice = PropagateDevice()
    enable_non_cpu_memory_planning: bool = True
    """Plan device memory for inputs and outputs of delegates on devices other than the CPU; if
    false, all memory is planned on the CPU.

    Example: false
    """
    emit_mutable_buffer_names: bool = False
    """Store the qualified names of mutable buffers in the package.

    Example: true
    """
    external_mutable_weights: bool = False
    """Store weights in a .ptd file if a method returns gradients for them.

    Example: true
    """
    ignore_to_out_var_failure: bool = False
    """Keep operators without an out variant; the app must then link kernels for them.

    Example: true
    """
    emit_stacktrace: bool = False
    """Store the Python stack trace of each instruction in the package.

    Example: true
    """
    etrecord: Annotated[bool, NeedsFeature("etrecord")] = False
    """Write etrecord.bin next to the package. ExecuTorch's Inspector uses it to add source lines
    and modules to a device's profile. The package doesn't change.

    Example: true
    """
    metadata: bool = False
    """Add the constant method get_metadata, which returns JSON: signatures of the methods, values
    of constant methods, and the versions and sources of the build. Changing this key doesn't
    recompile any method.

    Example: true
    """
    metadata_revision: bool = False
    """Add the workspace's git commit to the metadata. Each new commit then relinks the package,
    without recompiling any method.

    Example: true
    """
    layout: LayoutConfig = LayoutConfig()

    @model_validator(mode="after")
    def _check_metadata(self) -> Self:
        if self.metadata_revision and not self.metadata:
            raise rule(
                "metadata_revision is part of the metadata; set `metadata: true`"
            )
        return self

    @model_validator(mode="after")
    def _check_one_choice(self) -> Self:
        if self.external_weights and (self.external_constants or self.external_files):
            raise rule(
                "external_weights can't be combined with external_constants and external_files, "
                "which apply to portable operators only; name all weights in external_weights"
            )
        return self

    @property
    def references(self) -> tuple[str, ...]:
        """The passes and algorithms that it names for all methods, as module:name."""
        return (
            *(spec.reference for spec in self.passes),
            *self.memory_planning.references,
        )

    @property
    def holds_lines(self) -> bool:
        """Whether the output contains source lines, which a program's digest leaves out."""
        return self.emit_stacktrace or self.etrecord
