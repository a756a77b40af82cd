"""The inputs that a static quantization observes: which they are, and what to do without any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.backends import QuantizeConfig

Digests = Digest | list[Digest] | Mapping[str, Any]


def calibration_digests(
    spec: QuantizeConfig, source: MethodSource, files: Sequence[Digest] = ()
) -> Digests | None:
    """Return the digests of the inputs that a static quantization observes: those of files, else
    the model's own, else its examples. Generated ones follow from the examples."""
    if not spec.calibrates:
        return None
    if spec.generates_calibration:
        return {"generated": source.examples}
    if source.examples_of_export:
        examples = None
    else:
        examples = source.examples
    return list(files) or source.calibration or examples


def lacks_calibration(
    spec: QuantizeConfig, source: MethodSource, files: Sequence[Digest] = ()
) -> bool:
    """Tell whether a static quantization has no inputs to observe.

    The arguments that a method was exported with don't count: they are random numbers as a rule,
    and whoever means them says so.
    """
    return spec.calibrates and calibration_digests(spec, source, files) is None


def calibration_remedy(spec: QuantizeConfig, source: MethodSource) -> str:
    """Return what to do about a static quantization without inputs."""
    remedies = ["name files of inputs (`calibration: [inputs.npz]`)"]
    if source.exported:
        remedies.insert(0, "add calibration_inputs(method) to the exporter")
    if (
        type(spec).model_fields["dynamic"].annotation is bool
    ):  # else it is false for good
        remedies.append("set `dynamic: true`")
    but = ""
    if source.examples:
        but = "; the arguments of the export don't count"
    return (
        f"{', '.join(remedies)}, or, for random inputs, `calibration: generated`{but}"
    )
