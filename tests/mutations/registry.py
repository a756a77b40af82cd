"""All damages, keyed by name."""

from __future__ import annotations

from random import Random

from . import operators, structure, weights  # noqa: F401  they register theirs
from .parts import DAMAGES as _OF_PARTS
from .parts import Damage, Parts
from .samples import SAMPLES, Files

DAMAGES = (*_OF_PARTS, *structure.OF_FILES)


def damaged(sample: str, damage: str, seed: int) -> tuple[Files, Damage] | None:
    """Return a sample's package with one damage, and a description of the change.

    Return None if the sample contains nothing to damage in this way.
    """
    files = SAMPLES[sample]().files
    random = Random(f"{sample}/{damage}/{seed}")
    if damage in structure.OF_FILES:
        return structure.OF_FILES[damage](files, random)
    parts = Parts.of(files)
    done = _OF_PARTS[damage](parts, random)
    return (parts.files(), done) if done is not None else None
