"""What a gate is, and what it measures: a package or one of its methods.

Each module of `pipeline/features/gates/kinds/` declares one gate: its field in the config with the
text and the example of the reference, its unit, and the function that measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pipeline.features.gates.records import GateUnit

Json = Mapping[str, Any]
# The figure, None where it is not known, and what is to be said if the gate fails.
Measured = tuple[float | None, str]
NOTHING: Json = MappingProxyType({})
ROUNDING = 1e-12  # of figures: 0.9 - 0.85 is more than 0.05


class GateSubject(NamedTuple):
    """The package, or one of its methods: its figures now and in the baseline, its records, the
    files of its family (digest and bytes by package and name), its contract, where it is known,
    with the calls that delegates left, what runtimes hold by target, and the device of the
    figure."""

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
    """A kind of gate: the least figure if its name begins with `min_`, otherwise the greatest.

    Attributes:
        name: of its field in the config.
        holds_for: whether it is checked of a package, of each method, or of both.
        values: the type of its field (`pipeline.config.fields`).
        unit: of its figure.
        text: its field's description in the reference.
        example: a value that a config may give it.
        measure: takes a package or a method, and the limit.
        needs_feature: the feature without which there is nothing to measure, or "".
        needs_baseline: compares with what was accepted.
        needs_run: is left alone where the method did not run.
        needs_partitioners: is left alone where the method has none, unless it is set for this
            method itself.
        by_device: has a figure and a limit for each device of `validate.devices`.
        is_timed: is left alone where the budget left no time for timing.
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
