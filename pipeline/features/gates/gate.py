"""The definition of a gate, and its subject: a package or one of its methods.

Each module of `pipeline/features/gates/kinds/` declares one gate: its field in the config, with the
reference's text and example; its unit; and the function that measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pipeline.features.gates.records import GateUnit

Json = Mapping[str, Any]
# The figure, or None if unknown, and the sentence to report if the gate fails.
Measured = tuple[float | None, str]
NOTHING: Json = MappingProxyType({})
ROUNDING = 1e-12  # of figures: 0.9 - 0.85 is more than 0.05


class GateSubject(NamedTuple):
    """A package, or one of its methods, with everything that gates check.

    These are its figures now and in the baseline, its records, the files of its family (digest and
    bytes by package and name), its contract if known, the calls that delegates left, the runtimes
    of targets by name, and the device of the figure.
    """

    package: str
    method: str | None
    now: Any
    before: Any
    facts: Json
    run: Json
    arenas: Iterable[Json]
    family: Json = NOTHING
    contract: Json | None = None
    left: Sequence[Json] = ()
    targets: Json = NOTHING
    device: str = ""


@dataclass(frozen=True)
class Gate:
    """A kind of gate; its limit is a minimum if its name begins with `min_`, else a maximum.

    Attributes:
        name: the name of its field in the config.
        holds_for: whether it is checked for a package, for each method, or for both.
        values: the type of its field (`pipeline.config.fields`).
        unit: the unit of its figure.
        text: its field's description in the reference.
        example: an example of its value in a config.
        measure: takes a package or a method, and the limit.
        needs_feature: the feature without which there is nothing to measure, or "".
        needs_baseline: whether it compares with the accepted baseline.
        needs_run: whether it is skipped if the method did not run.
        needs_partitioners: whether it is skipped if the method has no partitioners, unless it is
            set for this method itself.
        by_device: whether it has a figure and a limit for each device of `validate.devices`.
        is_timed: whether it is skipped if the budget left no time for timing.
    """

    name: str
    holds_for: tuple[Literal["package", "method"], ...]
    values: Any
    unit: GateUnit
    text: str
    example: str
    measure: Callable[[GateSubject, Any], Measured]
    needs_feature: str = ""
    needs_baseline: bool = False
    needs_run: bool = False
    needs_partitioners: bool = False
    is_timed: bool = False
    by_device: bool = False

    def holds(self, figure: float, limit: float) -> bool:
        beyond = limit - figure if self.name.startswith("min_") else figure - limit
        return beyond <= ROUNDING
