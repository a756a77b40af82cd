"""The verdict of a feature on a measured package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Judgement:
    """One feature's verdict on whether a package is good enough.

    Attributes:
        record: fields of `report.json`.
        failures: one sentence per problem; empty if the package passes.
        facts: facts about the package that the workspace keeps, for the table that `doit` prints.
    """

    record: Mapping[str, Any]
    failures: Sequence[str]
    facts: Mapping[str, Any]
