"""The models of a package config: what can stand in it, with which limits and defaults.

They are also what the JSON schema is made from, so descriptions are written for people who edit a
config. `pipeline.config.parser` reads the YAML spelling of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    SerializeAsAny,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pipeline.backends import Backend, Options, PartitionerSpec, QuantizeConfig
from pipeline.backends.options import Distinct, Modules, rule
from pipeline.backends.workspace_files import located, named_files
from pipeline.config.fields import (
    REFERENCE_PATTERN,
    Algorithms,
    Constant,
    Label,
    Library,
    MethodName,
    Name,
    Operator,
    ParameterName,
    Patterns,
    PowerOfTwo,
    Weights,
    check_data,
)
from pipeline.config.validation import Cases, ValidateConfig
from pipeline.config.variables import Secret, replace_secrets
from pipeline.store.errors import join

OMIT = "omit"  # in place of a method's settings: it is no part of the package
FACTORY = "factory"  # the key before a pass that is made by a call


class PassSpec(Options):
    """A pass over the graph, by import path, and the options that it is made with."""

    reference: Annotated[str, Field(pattern=REFERENCE_PATTERN)]
    options: Annotated[dict[str, Any], AfterValidator(check_data)] = Field(default={})
    factory: bool = False
    """Whether it is called with the options, for a pass or a list of passes."""

    @field_serializer("options")
    def _without_secrets(self, options: dict[str, Any]) -> Any:
        return replace_secrets(options, lambda secret: f"{secret} {secret.digest}")

    def reveal(self) -> dict[str, Any]:
        """Return the options with the values of secrets, to make the pass."""
        options: dict[str, Any] = replace_secrets(self.options, attrgetter("value"))
        return options

    def hide(self, text: str) -> str:
        """Return a text without the values of secrets."""
        found: list[Secret] = []
        replace_secrets(self.options, found.append)
        for secret in found:
            text = text.replace(secret.value, str(secret)) if secret.value else text
        return text


class EdgeConfig(Options):
    """Settings by which a method becomes a program in edge dialect: `EdgeCompileConfig`, and passes
    over it before anything is delegated."""

    check_ir_validity: bool = True
    """Check that only core ATen operators and known types are left."""
    skip_dim_order: bool = False
    """Leave operators that know memory formats but not dim orders."""
    preserve_ops: Distinct[Operator] | None = None
    """Operators that are not decomposed, such as aten.linear.default."""
    core_aten_ops_exceptions: Distinct[Operator] | None = None
    """Operators that may be left though they are not core ATen."""
    keep_ranges: bool = False
    """Lower without oneDNN, by which torch narrows the ranges of dynamic sizes that go through
    convolutions. It is the joint call under torch.backends.mkldnn.flags(enabled=False)."""
    passes: tuple[PassSpec, ...] = Field(default=(), strict=False)
    """Passes over the edge program, in this order, as module:name of what passes/ defines, or
    ExecuTorch or an installed distribution offers."""
    passes_after_delegation: tuple[PassSpec, ...] = Field(default=(), strict=False)
    """Passes over what is left when partitioners have taken theirs, before anything is folded:
    `EdgeProgramManager.transform`."""


class MemoryPlan(Options):
    """Settings by which the memory of a method is planned: options of `MemoryPlanningPass`."""

    algorithm: Algorithms = ("greedy",)
    """greedy lets tensors that don't live at the same time share memory, greedy_without_overlap
    only whole places of it; naive gives each its own. Of several in a list the one that takes
    least. An own one is module:name, as passes are."""
    alignment: Annotated[int, Field(ge=1)] = 16
    """The alignment of every tensor, in bytes."""
    allow_lifetime_and_storage_overlap: bool = False
    """Accept plans in which tensors that live together overlap."""
    alloc_graph_input: bool = True
    """Plan memory for inputs; otherwise the caller's is used."""
    alloc_graph_output: bool = True
    """Plan memory for outputs; otherwise the caller's is used."""
    alloc_mutable_buffers: bool = True
    """Plan memory for mutable buffers; otherwise a runtime finds them by their names, which
    emit_mutable_buffer_names stores."""

    @property
    def references(self) -> tuple[str, ...]:
        """The algorithms that are no words, as module:name."""
        return tuple(name for name in self.algorithm if ":" in name)


class MemoryPlanning(MemoryPlan):
    """Settings by which the memory of a package's methods is planned."""

    share_mutable_buffers: bool = False
    """Methods that change a buffer of the same name change the same memory, such as the cache that
    prefill fills and decode reads. All methods are then compiled together."""


SymShapeEval = Literal["constraint_based", "hint_based"]


class PropagateDevice(Options):
    """Settings by which values go to and from the device of a delegate: `PropagateDeviceConfig`."""

    skip_h2d_for_method_inputs: bool = False
    """Inputs that a delegate reads are on its device already."""
    skip_d2h_for_method_outputs: bool = False
    """Outputs that a delegate makes stay on its device."""


class MethodEmit(Options):
    """Settings by which one method is written, each in place of the package's."""

    memory_planning: MemoryPlan | None = None
    """How its memory is planned, as a whole."""
    sym_shape_eval: SymShapeEval | None = None
    """What memory of dynamic sizes is planned for."""
    propagate_device: PropagateDevice | None = None
    """How values go to and from the device of a delegate."""


class MethodConfig(Options):
    """Settings by which one method is lowered."""

    partitioners: tuple[PartitionerSpec, ...] = Field(strict=False)
    """The delegates that the method is lowered to, tried in this order. An empty list means
    portable operators only, said on purpose."""
    modules: Modules | None = None
    """No partitioner delegates what stands in none of these sub-modules."""
    edge: EdgeConfig = EdgeConfig()
    quantize: SerializeAsAny[QuantizeConfig] | None = None
    """Quantize the method before it is lowered; by default it is not quantized."""
    emit: MethodEmit = MethodEmit()

    @field_validator("quantize")
    @classmethod
    def _is_for_the_same_device(
        cls, quantize: QuantizeConfig | None, info: ValidationInfo
    ) -> QuantizeConfig | None:
        for spec in info.data.get("partitioners", ()):
            if quantize is None or spec.name != quantize.quantizer:
                continue
            for name in quantize.partitioners_own:
                ours, theirs = getattr(quantize, name), getattr(spec.options, name)
                if ours != theirs:
                    what = f"has {name} {ours}, the partitioner {theirs}"
                    raise PydanticCustomError(
                        "mistake", "mistake", {"what": what, "known": "give both the same"}
                    )
        return quantize

    @model_validator(mode="after")
    def _keeps_its_weights_quantized(self) -> Self:
        scheme = getattr(self.quantize, "scheme", None)
        here = any(each.name == "xnnpack" for each in self.partitioners)
        if here and isinstance(scheme, str) and scheme.endswith("_weight_only"):
            raise rule(
                f"must not quantize by `{scheme}`: XNNPACK computes on float weights then, and "
                "stores them so; take int8_dynamic_activation_int4_weight or ..._int8_weight"
            )
        return self

    @property
    def passes(self) -> dict[str, tuple[PassSpec, ...]]:
        """The passes that it names, by their place in it."""
        edge = self.edge
        return {
            "edge.passes": edge.passes,
            "edge.passes_after_delegation": edge.passes_after_delegation,
        }

    @property
    def references(self) -> tuple[str, ...]:
        """The passes and algorithms that it names, as module:name."""
        planning = self.emit.memory_planning
        passes = (spec.reference for several in self.passes.values() for spec in several)
        return (*passes, *(planning.references if planning else ()))

    @property
    def delegates(self) -> bool:
        """Whether a partitioner of ExecuTorch's sees it: a backend can lower by passes alone."""
        return any(spec.backend.lowering.make_passes is None for spec in self.partitioners)

    @model_validator(mode="after")
    def _takes_the_whole_method(self) -> Self:
        """Refuse parts of a method for passes, which go over all of it before any partitioner."""
        for spec in self.partitioners:
            if spec.backend.lowering.make_passes is None:
                continue
            if len(self.partitioners) > 1:
                raise rule(f"must have no partitioner beside {spec.name}, which lowers by passes")
            if self.modules is not None or spec.modules is not None:
                raise rule(f"must not hold `modules`: {spec.name} lowers whole methods by passes")
        return self

    def parts_with_options(self) -> Iterator[tuple[str, str, Options]]:
        """Yield its quantizer and its partitioners: their paths in it, names and options."""
        if self.quantize is not None:
            yield "quantize", self.quantize.quantizer, self.quantize
        for number, spec in enumerate(self.partitioners):
            yield join(join("partitioners", number), spec.name), spec.name, spec.options

    def located(self, root: Path) -> list[PartitionerSpec]:
        """Return its partitioners, with the whole paths of files of the workspace at `root`."""
        return [
            spec.model_copy(update={"options": located(spec.options, root)})
            for spec in self.partitioners
        ]

    @property
    def files(self) -> dict[str, tuple[str, ...]]:
        """The files of the workspace that it names, by the option's place in it."""
        return {
            join(place, option): paths
            for place, _, options in self.parts_with_options()
            for option, paths in named_files(options).items()
        }


class LayoutConfig(Options):
    """The layout of the file; no method is compiled again for it."""

    extract_delegate_segments: bool = True
    """Keep payloads of delegates in segments of their own, so that a runtime can free them."""
    segment_alignment: PowerOfTwo = 128
    """The alignment of every segment, in bytes."""
    constant_tensor_alignment: PowerOfTwo | None = None
    """The alignment of every constant, in bytes; by default the schema's, 16."""
    delegate_alignment: PowerOfTwo | None = None
    """The alignment of every payload, in bytes; by default the schema's, 16."""


class EmitConfig(Options):
    """Settings by which the package is written: `ExecutorchBackendConfig`."""

    external_weights: Weights = Field(default={})
    """Store weights in .ptd files, those of delegates too where a backend takes tags (XNNPACK's).
    `true` for all, in weights.ptd; a list of modules or patterns of qualified names, such as
    decoder or decoder.*; or such a list by the name of the file."""
    external_constants: bool = False
    """Store the constants of portable operators in a .ptd file."""
    external_files: dict[Name, Patterns] = Field(default={})
    """By the name of a .ptd file: patterns such as decoder.* of the qualified names of constants
    that go there, whatever external_constants says of the others."""
    initialized_buffers: tuple[Label, ...] = Field(default=(), strict=False)
    """Mutable buffers whose names hold one of these have their initial values stored in the
    package; the others begin undefined."""
    passes: tuple[PassSpec, ...] = Field(default=(), strict=False)
    """Passes over the lowered program, before memory is planned."""
    memory_planning: MemoryPlanning = MemoryPlanning()
    remove_view_copy: bool = True
    """Make copies that only change the shape views."""
    do_quant_fusion_and_const_prop: bool = False
    """Fuse quantized operators and fold constants after lowering."""
    run_reinplace_pass: bool = False
    """Let operators write to their input where nothing else reads it."""
    reinplace_extra_ops: Distinct[Operator] | None = None
    """Further operators that may do so, such as aten.relu.default; they switch the pass on."""
    sym_shape_eval: SymShapeEval = "constraint_based"
    """Plan for the upper bounds of dynamic sizes, or for the sizes of the export."""
    propagate_device: PropagateDevice = PropagateDevice()
    enable_non_cpu_memory_planning: bool = True
    """Plan memory of the device for what delegates of another device than the CPU read and make;
    otherwise all of it on the CPU."""
    emit_mutable_buffer_names: bool = False
    """Store the qualified names of mutable buffers."""
    external_mutable_weights: bool = False
    """Store the weights that a method gives gradients of in a .ptd file."""
    ignore_to_out_var_failure: bool = False
    """Leave operators that have no variant with an output of the caller's, which the runtime then
    must know."""
    emit_stacktrace: bool = False
    """Store with each instruction where in Python it came from."""
    etrecord: bool = False
    """Leave etrecord.bin beside the package, by which ExecuTorch's Inspector knows the lines and
    modules of what was profiled on a device. The package stays the same."""
    layout: LayoutConfig = LayoutConfig()

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
        return (*(spec.reference for spec in self.passes), *self.memory_planning.references)

    @property
    def holds_lines(self) -> bool:
        """Return whether lines of the source, which a program's digest leaves out, stand in what is
        made."""
        return self.emit_stacktrace or self.etrecord


class PackageConfig(Options):
    """A package: which model it is made of, and how each method is lowered."""

    package: str
    model: Name
    """The model source: models/<model>.pt2, models/<model>.py or models/<model>/."""
    export: dict[ParameterName, Constant] = Field(default={})
    """Parameters with which export_methods() of models/<model>.py is called."""
    target: Label | None = None
    """A label for people and reports."""
    methods: dict[MethodName, MethodConfig] = Field(min_length=1)
    """Every method of the model, and how it is lowered, or `omit` for one that is left out."""
    omitted: tuple[MethodName, ...] = ()
    operators: Distinct[Library] = ()
    """Libraries of the model's own operators: modules and shared libraries in operators/, or those
    that the workspace's settings list; they are loaded wherever its programs are."""
    constant_methods: dict[MethodName, Constant] = Field(default={})
    """Methods that return a constant, with the constant."""
    emit: EmitConfig = EmitConfig()
    validation: ValidateConfig = Field(default=ValidateConfig(), alias="validate")

    @property
    def units(self) -> list[tuple[str, ...]]:
        """The methods that are compiled together, then each other method alone.

        Together are those of backends that see all methods at once, or all methods where they
        share their mutable buffers.
        """
        joint = tuple(
            name
            for name, method in self.methods.items()
            if self._shares_state
            or any(spec.backend.preprocessing.joint for spec in method.partitioners)
        )
        singles: list[tuple[str, ...]] = [(name,) for name in self.methods if name not in joint]
        return [joint, *singles] if joint else singles

    @property
    def quantized(self) -> list[str]:
        """The methods that are quantized."""
        return [name for name, method in self.methods.items() if method.quantize is not None]

    def backends(self, methods: Iterable[str]) -> Iterator[Backend]:
        """Yield the backends of the partitioners of these methods; one can come twice."""
        for name in methods:
            yield from (spec.backend for spec in self.methods[name].partitioners)

    def distributions(self, methods: Iterable[str]) -> list[str]:
        """Return the distributions whose versions can change what these backends make."""
        return sorted({name for b in self.backends(methods) for name in b.host.distributions})

    def pass_references(self, methods: Iterable[str]) -> Iterator[str]:
        """Yield the passes that lowering and emitting these methods takes."""
        for name in methods:
            yield from self.methods[name].references
        yield from self.emit.references

    def delegates_beside(self, unit: Iterable[str]) -> bool:
        """Return whether only methods outside of a unit have partitioners, and that can matter.

        What a partitioner leaves has no edge settings any more, in the joint call that of all
        methods: their check and their dim orders.
        """
        own = [self.methods[name] for name in unit]
        reads = any(each.edge.skip_dim_order or each.edge.passes_after_delegation for each in own)
        there = any(method.delegates for method in self.methods.values())
        return reads and there and not any(method.delegates for method in own)

    def names_count(self, method: str) -> bool:
        """Return whether something that makes the method's object may read names of values or
        classes: a backend, a pass, or a choice of constants by patterns."""
        emit = self.emit
        by_name = (
            *(emit.external_weights, emit.external_constants, emit.external_files),
            emit.initialized_buffers,
        )
        backends = self.backends([method])
        return (
            any(by_name)
            or any(self.pass_references([method]))
            or any(backend.preprocessing.names_count for backend in backends)
        )

    def select_cases(self, method: str) -> Cases:
        """Return the cases on which a method is validated."""
        quantize = self.methods[method].quantize
        dynamic = quantize is not None and not quantize.calibrates
        return self.validation.select_cases(method, quantize is not None, dynamic)

    @property
    def sequences(self) -> tuple[tuple[str, ...], ...] | None:
        """The orders in which methods run on shared state; None for the usual ones."""
        written = self.validation.sequences
        return () if written is None and not self._shares_state else written

    @property
    def _shares_state(self) -> bool:
        return self.emit.memory_planning.share_mutable_buffers

    def resolved(self) -> dict[str, Any]:
        """Return every value, with methods sorted by name: their order means nothing."""
        values = super().resolved()
        for name in ("methods", "constant_methods", "export"):
            values[name] = dict(sorted(values[name].items()))
        return values
