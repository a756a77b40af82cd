"""The models of `emit` in a package config: how a package, or one method of it, is written."""

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
    """Settings by which the memory of a method is planned: options of `MemoryPlanningPass`."""

    algorithm: Algorithms = ("greedy",)
    """greedy lets tensors that don't live at the same time share memory, greedy_without_overlap
    only whole places of it; naive gives each its own. Of several in a list the one that takes
    least. An own one is module:name, as passes are.

    Example: greedy_without_overlap
    """
    alignment: Annotated[int, Field(ge=1)] = 16
    """The alignment of every tensor, in bytes.

    Example: 64
    """
    allow_lifetime_and_storage_overlap: bool = False
    """Accept plans in which tensors that live together overlap.

    Example: true
    """
    alloc_graph_input: bool = True
    """Plan memory for inputs; otherwise the caller's is used.

    Example: false
    """
    alloc_graph_output: bool = True
    """Plan memory for outputs; otherwise the caller's is used.

    Example: false
    """
    alloc_mutable_buffers: bool = True
    """Plan memory for mutable buffers; otherwise a runtime finds them by their names, which
    emit_mutable_buffer_names stores.

    Example: false
    """

    @property
    def references(self) -> tuple[str, ...]:
        """The algorithms that are no words, as module:name."""
        return tuple(name for name in self.algorithm if ":" in name)


class MemoryPlanning(MemoryPlan):
    """Settings by which the memory of a package's methods is planned."""

    share_mutable_buffers: bool = False
    """Buffers of one name are one memory in all methods, such as the cache that prefill fills and
    decode reads. All methods are then compiled together. A package whose methods use the same
    buffers must set it: false gives each method a copy.

    Example: true
    """


SymShapeEval = Literal["constraint_based", "hint_based"]


class PropagateDevice(Options):
    """Settings by which values go to and from the device of a delegate: `PropagateDeviceConfig`."""

    skip_h2d_for_method_inputs: bool = False
    """Inputs that a delegate reads are on its device already.

    Example: true
    """
    skip_d2h_for_method_outputs: bool = False
    """Outputs that a delegate makes stay on its device.

    Example: true
    """


class MethodEmit(Options):
    """Settings by which one method is written, each in place of the package's."""

    memory_planning: MemoryPlan | None = None
    """The whole plan of the method's memory; by default the package's."""
    sym_shape_eval: SymShapeEval | None = None
    """Plan for the upper bounds of the method's dynamic sizes, or for the sizes of the export; by
    default as the package says.

    Example: hint_based
    """
    propagate_device: PropagateDevice | None = None
    """Leave the method's inputs or outputs on the device of the delegate that reads or makes them;
    by default as the package says."""


class LayoutConfig(Options):
    """The layout of the file; no method is compiled again for it."""

    extract_delegate_segments: bool = True
    """Keep payloads of delegates in segments of their own, so that a runtime can free them.

    Example: false
    """
    segment_alignment: PowerOfTwo = 128
    """The alignment of every segment, in bytes.

    Example: 4096
    """
    constant_tensor_alignment: PowerOfTwo | None = None
    """The alignment of every constant, in bytes; by default the schema's, 16.

    Example: 64
    """
    delegate_alignment: PowerOfTwo | None = None
    """The alignment of every payload, in bytes; by default the schema's, 16.

    Example: 64
    """


@open_to_features("emit")
class EmitConfig(Options):
    """Settings by which the package is written: `ExecutorchBackendConfig`."""

    external_weights: Weights = Field(default={})
    """Store weights in .ptd files, those of delegates too where a backend takes tags (XNNPACK's).
    `true` for all, in weights.ptd; a list of modules or patterns of qualified names, such as
    decoder or decoder.*; or such a list by the name of the file.

    Example: {foundation: [encoder]}
    """
    external_constants: bool = False
    """Store the constants of portable operators in a .ptd file.

    Example: true
    """
    external_files: dict[Name, Patterns] = Field(default={})
    """By the name of a .ptd file: patterns such as decoder.* of the qualified names of constants
    that go there, whatever external_constants says of the others.

    Example: {embeddings: [embed.weight]}
    """
    initialized_buffers: tuple[Label, ...] = Field(default=(), strict=False)
    """Mutable buffers whose names hold one of these have their initial values stored in the
    package; the others begin undefined.

    Example: [count]
    """
    passes: Passes = ()
    """Passes over the lowered program, before memory is planned.

    Example:
    ["executorch.exir.passes.init_mutable_pass:InitializedMutableBufferPass": {patterns: [count]}]
    """
    memory_planning: MemoryPlanning = MemoryPlanning()
    remove_view_copy: bool = True
    """Make copies that only change the shape views.

    Example: false
    """
    do_quant_fusion_and_const_prop: bool = False
    """Fuse quantized operators and fold constants after lowering.

    Example: true
    """
    run_reinplace_pass: bool = False
    """Let operators write to their input where nothing else reads it.

    Example: true
    """
    reinplace_extra_ops: Distinct[Operator] | None = None
    """Further operators that may do so, such as aten.relu.default; they switch the pass on.

    Example: [aten.mul.Tensor]
    """
    sym_shape_eval: SymShapeEval = "constraint_based"
    """Plan for the upper bounds of dynamic sizes, or for the sizes of the export.

    Example: hint_based
    """
    propagate_device: PropagateDevice = PropagateDevice()
    enable_non_cpu_memory_planning: bool = True
    """Plan memory of the device for what delegates of another device than the CPU read and make;
    otherwise all of it on the CPU.

    Example: false
    """
    emit_mutable_buffer_names: bool = False
    """Store the qualified names of mutable buffers.

    Example: true
    """
    external_mutable_weights: bool = False
    """Store the weights that a method gives gradients of in a .ptd file.

    Example: true
    """
    ignore_to_out_var_failure: bool = False
    """Leave operators that have no variant with an output of the caller's, which the runtime then
    must know.

    Example: true
    """
    emit_stacktrace: bool = False
    """Store with each instruction where in Python it came from.

    Example: true
    """
    etrecord: Annotated[bool, NeedsFeature("etrecord")] = False
    """Leave etrecord.bin beside the package, by which ExecuTorch's Inspector knows the lines and
    modules of what was profiled on a device. The package stays the same.

    Example: true
    """
    metadata: bool = False
    """Add the constant method get_metadata, which returns a JSON text: signatures of the methods,
    values of constant methods, and what the package was built with and from. No method is compiled
    again for it.

    Example: true
    """
    metadata_revision: bool = False
    """Name the commit of the workspace in the metadata. Each commit then links the package again,
    and no method is compiled again.

    Example: true
    """
    layout: LayoutConfig = LayoutConfig()

    @model_validator(mode="after")
    def _check_metadata(self) -> Self:
        if self.metadata_revision and not self.metadata:
            raise rule(
                "metadata_revision needs metadata, in which it stands; say `metadata: true`"
            )
        return self

    @model_validator(mode="after")
    def _check_one_choice(self) -> Self:
        if self.external_weights and (self.external_constants or self.external_files):
            raise rule(
                "external_weights can't stand beside external_constants and external_files, which "
                "are for portable operators alone; name all weights in external_weights"
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
        """Return whether lines of the source, which a program's digest leaves out, stand in what is
        made."""
        return self.emit_stacktrace or self.etrecord
