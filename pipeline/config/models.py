"""The models of a package config: its keys, their limits and defaults.

The JSON schema is made from them, so descriptions are written for people who edit configs.
`pipeline.config.reader` reads the YAML spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    Field,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pipeline.backends import Backend, Options, PartitionerSpec, QuantizeConfig
from pipeline.backends.options import Distinct, rule
from pipeline.backends.workspace_files import located, named_files
from pipeline.config.edge import EdgeConfig, PassSpec
from pipeline.config.emission import EmitConfig, MemoryPlan, MethodEmit
from pipeline.config.features import open_to_features
from pipeline.config.fields import (
    Constant,
    Label,
    Library,
    MethodName,
    Name,
    NeedsFeature,
    ParameterName,
    SelectedModules,
)
from pipeline.config.units import group_methods
from pipeline.config.validation import Cases, ValidateConfig
from pipeline.store.errors import join

OMIT = "omit"  # in place of a method's settings: leave it out of the package


class MethodConfig(Options):
    """Settings for lowering one method."""

    partitioners: tuple[PartitionerSpec, ...] = Field(strict=False)
    """The partitioners to apply to the method, in this order; each delegates operators that the
    earlier ones left. With an empty list, portable kernels run all operators. A `recipe` replaces
    this key.

    Example: [xnnpack, {vulkan: {force_fp16: true}}]
    """
    modules: SelectedModules = None
    """The sub-modules whose operators the method's partitioners may delegate; by default, all.
    '!head' excludes one.

    Example: [decoder.layers]
    """
    edge: EdgeConfig = EdgeConfig()
    quantize: Annotated[
        SerializeAsAny[QuantizeConfig] | None, NeedsFeature("quantization")
    ] = None
    """The quantization of the method before it is lowered; by default, none.

    Example: {quantizer: xnnpack, per_channel: true}
    """
    emit: MethodEmit = MethodEmit()
    allow_none: bool = False
    """Accept a partitioner that delegates no part of the method, and a quantizer that quantizes no
    part of it. By default, a package with such a method is not linked, since the config asks for
    more.

    Example: true
    """

    @field_validator("quantize")
    @classmethod
    def _is_for_the_same_device(
        cls, quantize: QuantizeConfig | None, info: ValidationInfo
    ) -> QuantizeConfig | None:
        for spec in info.data.get("partitioners", ()):
            if quantize is None or spec.name != quantize.quantizer:
                continue
            for name in quantize.partitioners_own:
                ours = getattr(quantize, name)
                theirs = getattr(spec.options, name)
                if ours != theirs:
                    fault = f"has {name} {ours}, the partitioner {theirs}"
                    raise PydanticCustomError(
                        "mistake",
                        "mistake",
                        {"what": fault, "known": "give both the same"},
                    )
        return quantize

    @model_validator(mode="after")
    def _keeps_its_weights_quantized(self) -> Self:
        scheme = getattr(self.quantize, "scheme", None)
        is_for_xnnpack = any(spec.name == "xnnpack" for spec in self.partitioners)
        if (
            is_for_xnnpack
            and isinstance(scheme, str)
            and scheme.endswith("_weight_only")
        ):
            raise rule(
                f"must not quantize with `{scheme}`: XNNPACK would store and compute with float "
                "weights; use int8_dynamic_activation_int4_weight or ..._int8_weight"
            )
        return self

    @property
    def passes(self) -> dict[str, tuple[PassSpec, ...]]:
        """The passes of the method, by their path in its settings."""
        edge = self.edge
        return {
            "edge.passes": edge.passes,
            "edge.passes_after_delegation": edge.passes_after_delegation,
        }

    @property
    def references(self) -> tuple[str, ...]:
        """The passes and algorithms that it names, as module:name."""
        planning = self.emit.memory_planning
        references: list[str] = []
        for specs in self.passes.values():
            references += [spec.reference for spec in specs]
        if planning:
            references += planning.references
        return tuple(references)

    @property
    def backend_names(self) -> list[str]:
        """The backends that it is lowered to, and its quantizer."""
        names = [spec.name for spec in self.partitioners]
        if self.quantize is None:
            return names
        return [*names, self.quantize.quantizer]

    @property
    def delegates(self) -> bool:
        """Whether an ExecuTorch partitioner runs on it; a backend may lower by passes alone."""
        return any(
            spec.backend.lowering.make_passes is None for spec in self.partitioners
        )

    @model_validator(mode="after")
    def _takes_the_whole_method(self) -> Self:
        """Refuse parts of a method for passes, which run on all of it before partitioning."""
        for spec in self.partitioners:
            if spec.backend.lowering.make_passes is None:
                continue
            if len(self.partitioners) > 1:
                raise rule(
                    f"must have no other partitioner next to {spec.name}, which lowers with passes"
                )
            if self.modules is not None or spec.modules is not None:
                raise rule(
                    f"must not contain `modules`: {spec.name} lowers whole methods by passes"
                )
        return self

    def parts_with_options(self) -> Iterator[tuple[str, str, Options]]:
        """Yield its quantizer and partitioners: their path in its settings, name and options."""
        if self.quantize is not None:
            yield "quantize", self.quantize.quantizer, self.quantize
        for number, spec in enumerate(self.partitioners):
            yield join(join("partitioners", number), spec.name), spec.name, spec.options

    def located(self, root: Path) -> list[PartitionerSpec]:
        """Return its partitioners, with absolute paths for files of the workspace at `root`."""
        return [
            spec.model_copy(update={"options": located(spec.options, root)})
            for spec in self.partitioners
        ]

    @property
    def files(self) -> dict[str, tuple[str, ...]]:
        """The files of the workspace that it names, by the option's path in its settings."""
        return {
            join(place, option): paths
            for place, _, options in self.parts_with_options()
            for option, paths in named_files(options).items()
        }


@open_to_features("package")
class PackageConfig(Options):
    """A package: its model, and how to lower each method."""

    package: str
    model: Name
    """The model source: models/<model>.pt2, models/<model>.py, models/<model>.yaml or
    models/<model>/.

    Example: seq2seq
    """
    export: dict[ParameterName, Constant] = Field(default={})
    """Arguments for the function export_methods() in models/<model>.py.

    Example: {max_seq_len: 512}
    """
    target: Label | None = None
    """The target device: either the name of a file in targets/ that describes a runtime, in which
    case this runtime must be able to run the package, or a label for people and reports.

    Example: android-arm64
    """
    file: Name | None = None
    """The name of the .pte in build/<package>/, without its suffix; by default the package's name.

    Example: seq2seq-v2
    """
    methods: dict[MethodName, MethodConfig] = Field(min_length=1)
    """The lowering of each method of the model; `omit` leaves a method out of the package."""
    omitted: tuple[MethodName, ...] = ()
    operators: Annotated[Distinct[Library], NeedsFeature("operators")] = ()
    """Libraries of the model's custom operators: modules and shared libraries in operators/, or
    libraries that the workspace's settings list. They are loaded in every process that loads the
    model's programs.

    Example: [team_ops]
    """
    constant_methods: dict[MethodName, Constant] = Field(default={})
    """Methods that return a constant: a mapping from each method's name to its constant.

    Example: {get_max_len: 128}
    """
    emit: EmitConfig = EmitConfig()
    validation: ValidateConfig = Field(
        default=ValidateConfig.model_construct(), alias="validate"
    )

    @property
    def needs_baseline(self) -> bool:
        """Whether a gate of the package or of a method compares with the baseline."""
        methods = self.validation.methods.values()
        gates = [self.validation.gates, *(method.gates for method in methods)]
        return any(gate.needs_baseline for gate in gates)

    @property
    def stem(self) -> str:
        """The name of the package's .pte file, without its suffix."""
        return self.file or self.package

    @property
    def units(self) -> list[tuple[str, ...]]:
        """The methods that are compiled together, then each other method alone.

        Methods are compiled together if a backend sees them at once. If they share mutable buffers,
        all are: each method's buffers are then as large as all of them need.
        """
        if self._shares_state:
            return [tuple(self.methods)]
        return group_methods(
            {name: method.partitioners for name, method in self.methods.items()}
        )

    @property
    def quantized(self) -> list[str]:
        """The methods that are quantized."""
        return [
            name for name, method in self.methods.items() if method.quantize is not None
        ]

    def backends(self, methods: Iterable[str]) -> Iterator[Backend]:
        """Yield the backends of the partitioners of these methods, possibly with duplicates."""
        for name in methods:
            yield from (spec.backend for spec in self.methods[name].partitioners)

    def distributions(self, methods: Iterable[str]) -> list[str]:
        """Return the distributions whose versions can change these backends' output."""
        return sorted(
            {name for b in self.backends(methods) for name in b.host.distributions}
        )

    def pass_references(self, methods: Iterable[str]) -> Iterator[str]:
        """Yield the user's passes and algorithms for lowering and emitting these methods."""
        for name in methods:
            yield from self.methods[name].references
        yield from self.emit.references

    def memory_plans(self) -> Iterator[tuple[str, MemoryPlan]]:
        """Yield the memory planning settings, each with its path in the config."""
        yield "emit.memory_planning", self.emit.memory_planning
        for name, method in self.methods.items():
            if method.emit.memory_planning is not None:
                yield (
                    f"methods.{name}.emit.memory_planning",
                    method.emit.memory_planning,
                )

    def delegates_beside(self, unit: Iterable[str]) -> bool:
        """Return whether only methods outside a unit have partitioners and this affects it.

        In the joint call, edge settings (the validity check and dim orders) no longer apply to any
        method after partitioning if one method has a partitioner.
        """
        unit_methods = [self.methods[name] for name in unit]
        reads = any(
            method.edge.skip_dim_order or method.edge.passes_after_delegation
            for method in unit_methods
        )
        any_delegates = any(method.delegates for method in self.methods.values())
        return (
            reads
            and any_delegates
            and not any(method.delegates for method in unit_methods)
        )

    def names_count(self, method: str) -> bool:
        """Return whether the method's object may depend on names of values or classes.

        Backends, passes, and patterns that select constants can read names.
        """
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
        """The orders in which methods run on shared state; None for the defaults."""
        written = self.validation.sequences
        if written is None and not self._shares_state:
            return ()
        return written

    @property
    def _shares_state(self) -> bool:
        return self.emit.memory_planning.share_mutable_buffers

    def resolved(self) -> dict[str, Any]:
        """Return every value, with methods sorted by name, since their order has no meaning."""
        values = super().resolved()
        for name in ("methods", "constant_methods", "export"):
            values[name] = dict(sorted(values[name].items()))
        return values
