"""Quantize actions: a method, its quantizer's options, and the inputs that it observes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.features.quantization.calibration import (
    calibration_digests,
    calibration_remedy,
    lacks_calibration,
)
from pipeline.plan.actions import Action
from pipeline.plan.kinds.kind import Kind, MistakeAndRemedy
from pipeline.plan.kinds.parts import (
    CALIBRATION,
    Key,
    Libraries,
    OptionFiles,
    common_fields,
    file_fields,
    find_libraries,
    hash_option_files,
    operator_fields,
)
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest
from pipeline.store.json_diff import Difference
from pipeline.store.toolchain import host
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.backends import QuantizeConfig
    from pipeline.config.models import MethodConfig, PackageConfig


@dataclass(frozen=True, eq=False, repr=False)  # eq and repr are slow to make
class QuantizeInputs:
    """The inputs of a quantization.

    Attributes:
        sources: only the method's own source.
        written: the config as it was written, with the values of its variables.
        files: the files that the method's options name.
    """

    config: PackageConfig
    method: str
    sources: Mapping[str, MethodSource]
    files: OptionFiles = field(default_factory=dict)
    libraries: Libraries = ()
    written: Any = None

    results: ClassVar[Sequence[Digest]] = ()

    @property
    def source(self) -> MethodSource:
        return self.sources[self.method]

    @property
    def configs(self) -> Mapping[str, MethodConfig]:
        return {self.method: self.config.methods[self.method]}

    @property
    def references(self) -> Sequence[str]:
        return self.config.methods[self.method].references

    @property
    def spec(self) -> QuantizeConfig:
        """The quantizer's options."""
        spec = self.config.methods[self.method].quantize
        assert spec is not None
        return spec

    def renewed(self, workspace: Workspace) -> QuantizeInputs:
        """Return these inputs with the files and libraries that the workspace has now."""
        return replace(
            self,
            files=hash_option_files(self.configs[self.method], workspace),
            libraries=find_libraries(self.libraries, workspace),
        )


def describe_kind() -> Kind:
    """Return the kind of action that quantizes a method."""
    return Kind(
        "quantize",
        key=quantize_key,
        read=lambda fields: QuantizeInputs(**fields),
        describe=describe_quantize,
        blobs=itemgetter("blobs"),
        plan=lambda **fields: quantize_action(QuantizeInputs(**fields)),
        find_mistakes=find_mistakes,
    )


def quantize_action(inputs: QuantizeInputs) -> Action[QuantizeInputs]:
    """Return the action that quantizes a method."""
    config = inputs.config
    method = inputs.method
    key = quantize_key(inputs)
    return Action("quantize", config.model, config.package, method, key, inputs)


def find_mistakes(
    config: MethodConfig, source: MethodSource
) -> Iterator[MistakeAndRemedy]:
    """Yield a mistake if a method has no inputs that its quantization could observe."""
    spec = config.quantize
    if spec is None or CALIBRATION in config.files:
        return
    if lacks_calibration(spec, source):
        yield (
            "static quantization observes calibration inputs, but the model provides none",
            calibration_remedy(spec, source),
        )


def quantize_key(inputs: QuantizeInputs) -> Key:
    """Return the key of a quantization.

    It includes neither the package nor the partitioners, so that all of them share the result.
    """
    from pipeline.backends import QUANTIZERS  # imports pydantic; a no-op run doesn't

    spec = inputs.spec
    source = inputs.source
    calibration = calibration_digests(spec, source, inputs.files.get(CALIBRATION, ()))
    described = {
        "program": source.program,
        # The quantized program contains these names, no matter what reads it later.
        "names": source.names,
        "calibration": calibration,
        "quantize": spec.resolved(),
        **file_fields(inputs.files, quantizer=True),
    }
    if inputs.config.emit.emit_stacktrace:  # the quantized program then contains it
        described["content"] = source.content
    needs = QUANTIZERS[spec.quantizer].host
    key = common_fields("quantize", sorted(needs.distributions))
    key["methods"] = {inputs.method: described}
    key |= operator_fields(inputs.libraries)
    if needs.facts is not None and (facts := needs.facts()):
        key["facts"] = {spec.quantizer: dict(sorted(facts.items()))}
    if spec.depends_on_host:
        key["host"] = host()
    return key


def describe_quantize(difference: Difference, file: str) -> str | None:
    """Describe a difference in a key field specific to quantization, or return None."""
    match difference.path:
        case ("methods", method, "calibration" | "calibration[0]", *_):
            return f"calibration inputs of {method} {difference.change()}"
    return None
