"""What features say of a package that was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Judgement:
    """Whether a package is good enough, in the eyes of one feature.

    Attributes:
        record: fields of `report.json`.
        failures: a sentence for each thing that is wrong; none where the package passes.
        facts: what the workspace remembers of the package, for the table of `doit`.
    """

    record: Mapping[str, Any]
    failures: Sequence[str]
    facts: Mapping[str, Any]
