"""Compile actions: the methods of a unit are lowered and emitted together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipeline.plan.actions import Action, unit_name
from pipeline.plan.kinds.parts import (
    NOTHING,
    Key,
    Libraries,
    OptionFiles,
    common_fields,
    file_fields,
    find_libraries,
    hash_option_files,
    machine_facts,
    operator_fields,
)
from pipeline.plan.user_code import Code, find_code
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest
from pipeline.store.json_diff import Difference
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:  # a no-op run parses no config, and so doesn't import pydantic
    from pipeline.config.emission import EmitConfig
    from pipeline.config.models import MethodConfig, PackageConfig

# The settings of `emit` on which no object depends.
_NOT_COMPILED = ("layout", "etrecord", "metadata", "metadata_revision")


@dataclass(frozen=True, eq=False, repr=False)  # generating __eq__ and __repr__ is slow
class CompileInputs:
    """The inputs of a compilation.

    Attributes:
        unit: the methods, in the order of the config.
        sources: the sources of these methods, in the order of the model.
        quantizes: the quantize actions of the methods that are quantized.
        passes: the inputs of each pass, by reference.
        files: the files that each method's options name.
        written: the config as it was written, with the values of its variables.
    """

    config: PackageConfig
    unit: Sequence[str]
    sources: Mapping[str, MethodSource]
    quantizes: Mapping[str, Digest] = field(default_factory=dict)
    passes: Mapping[str, Code] = field(default_factory=dict)
    files: Mapping[str, OptionFiles] = field(default_factory=dict)
    libraries: Libraries = ()
    written: Any = None

    @property
    def configs(self) -> Mapping[str, MethodConfig]:
        return {name: self.config.methods[name] for name in self.sources}

    @property
    def emit(self) -> EmitConfig:
        return self.config.emit

    @property
    def references(self) -> Sequence[str]:
        return list(self.config.pass_references(self.unit))

    @property
    def results(self) -> Sequence[Digest]:
        return list(self.quantizes.values())

    @property
    def delegates_beside(self) -> bool:
        """Whether only other methods have partitioners (`PackageConfig.delegates_beside`)."""
        return self.config.delegates_beside(self.unit)

    def renewed(self, workspace: Workspace) -> CompileInputs:
        """Return the same inputs with the workspace's current files, passes and libraries."""
        configs = self.configs
        return replace(
            self,
            passes=find_code("passes", self.passes, workspace),
            files={
                name: hash_option_files(configs[name], workspace) for name in self.unit
            },
            libraries=find_libraries(self.libraries, workspace),
        )


def compile_action(inputs: CompileInputs) -> Action[CompileInputs]:
    """Return the action that compiles the methods of a unit."""
    config = inputs.config
    key = compile_key(inputs)
    return Action(
        "compile",
        config.model,
        config.package,
        unit_name(inputs.unit),
        key,
        inputs,
    )


def compile_key(inputs: CompileInputs) -> Key:
    """Return the key of a compilation.

    It contains the digests of quantize actions, so a lookup needs no quantized program.
    """
    config = inputs.config
    unit = inputs.unit
    emit = config.emit.resolved()
    key: Key = {
        **common_fields("compile", config.distributions(unit)),
        "methods": {name: _method_fields(inputs, name) for name in unit},
        "emit": {
            name: value for name, value in emit.items() if name not in _NOT_COMPILED
        },
    }
    files_of_weights = [*config.emit.external_weights, *config.emit.external_files]
    contents = {name: inputs.sources[name].content for name in unit}
    optional: Key = {
        # A backend that sees all methods gets them in the order of the model.
        "order": list(inputs.sources) if len(unit) > 1 else [],
        "content": contents if config.emit.holds_lines else {},
        "facts": machine_facts(config, unit),
        "delegates_beside": inputs.delegates_beside,
        # A constant goes to the first file with a pattern that matches its name.
        "file_order": files_of_weights if len(files_of_weights) > 1 else [],
        "passes": {name: inputs.passes[name] for name in sorted({*inputs.references})},
        **operator_fields(inputs.libraries),
    }
    return key | {name: value for name, value in optional.items() if value}


def _method_fields(inputs: CompileInputs, method: str) -> Key:
    """Return the fields that determine a method's object, without those that only linking uses."""
    source = inputs.sources[method]
    config = inputs.config
    lowering = config.methods[method].resolved()
    del lowering["allow_none"]
    return {
        "program": source.program,
        "names": source.names if config.names_count(method) else None,
        **lowering,
        "quantize": inputs.quantizes.get(method),
        **file_fields(inputs.files.get(method, NOTHING), quantizer=False),
    }


def describe_compile(difference: Difference, file: str) -> str | None:
    """Describe a difference in a field that only compile keys have; return None for any other."""
    match difference.path:
        case (place,) if place.startswith("file_order"):
            return (
                "the order of files in emit.external_weights or external_files changed"
            )
        case ("delegates_beside",):
            return "whether only other methods have partitioners changed"
    return None
