"""Keys of a config that stand where they can't, and what to do about each."""

from __future__ import annotations

from pipeline.backends import Options
from pipeline.config.edge import EdgeConfig
from pipeline.config.emission import EmitConfig
from pipeline.config.models import MethodConfig, PackageConfig
from pipeline.config.validation import Gates, Latency, ValidateConfig

# A section comes before those in it.
_SECTIONS: dict[str, type[Options]] = {
    "the package": PackageConfig,
    "methods.<method>": MethodConfig,
    "methods.<method>.edge": EdgeConfig,
    "emit": EmitConfig,
    "validate": ValidateConfig,
    "validate.gates": Gates,
    "validate.latency": Latency,
}
# What a config can't say of a method: a program is lowered for the sizes that it was exported for.
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
    """Return what to do about a key that a section of a config does not have, "" where that is not
    known: which section it belongs to, or how else to say it."""
    if model is MethodConfig and key in _SIZES:
        return _SIZES_REMEDY
    place = next(
        (name for name, of in _SECTIONS.items() if key in of.model_fields),
        "",
    )
    if place:
        return f"it belongs to {place}"
    return ""
