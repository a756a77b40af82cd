"""Remedies for config keys in a section that doesn't take them."""

from __future__ import annotations

from pipeline.backends import Options
from pipeline.config.edge import EdgeConfig
from pipeline.config.emission import EmitConfig
from pipeline.config.models import MethodConfig, PackageConfig
from pipeline.config.validation import Gates, Latency, ValidateConfig

# A section comes before its subsections.
_SECTIONS: dict[str, type[Options]] = {
    "the package": PackageConfig,
    "methods.<method>": MethodConfig,
    "methods.<method>.edge": EdgeConfig,
    "emit": EmitConfig,
    "validate": ValidateConfig,
    "validate.gates": Gates,
    "validate.latency": Latency,
}
# Keys that no config has: a program is lowered for the sizes with which it was exported.
_SIZES = (
    "of",
    "matrix",
    "dynamic",
    "dynamic_shapes",
    "shapes",
    "sizes",
    "bounds",
    "export",
)
_SIZES_REMEDY = (
    "sizes and their bounds belong in the exporter: it can make a method for each value of "
    "`export: {lengths: [32, 64]}`, and these share their weights"
)


def find_remedy(model: type[Options], key: str) -> str:
    """Return the remedy for a key that a section of a config doesn't have, or "".

    It names the section to which the key belongs, or another way to express it.
    """
    if model is MethodConfig and key in _SIZES:
        return _SIZES_REMEDY
    place = next(
        (name for name, of in _SECTIONS.items() if key in of.model_fields),
        "",
    )
    if place:
        return f"it belongs to {place}"
    return ""
