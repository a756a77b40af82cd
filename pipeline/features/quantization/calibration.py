"""The inputs that a static quantization observes, and the remedy if there are none."""

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
    """Return the digests of the inputs that a static quantization observes.

    The first of these that exists counts: calibration files, the model's own calibration inputs,
    its examples. Generated inputs follow from the examples.
    """
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
    """Return whether a static quantization has no inputs to observe.

    The arguments that a method was exported with don't count: they are usually random numbers, and
    a config that wants random inputs says so.
    """
    return spec.calibrates and calibration_digests(spec, source, files) is None


def calibration_remedy(spec: QuantizeConfig, source: MethodSource) -> str:
    """Return what to do about a static quantization without inputs."""
    remedies = ["name files of inputs (`calibration: [inputs.npz]`)"]
    if source.exported:
        remedies.insert(0, "add calibration_inputs(method) to the exporter")
    if (
        type(spec).model_fields["dynamic"].annotation is bool
    ):  # otherwise it can't be set
        remedies.append("set `dynamic: true`")
    but = ""
    if source.examples:
        but = "; the arguments of the export don't count"
    return (
        f"{', '.join(remedies)}, or, for random inputs, `calibration: generated`{but}"
    )
