"""The record of a run: its operators, and the values that each one read and wrote.

Values are kept as sketches. A value is identified by its content, so a read finds the operator that
wrote the value even through views and in-place changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from pipeline.features.divergences.sketches import Sketch

Site = TypeVar("Site")


@dataclass(frozen=True)
class Leaf(Generic[Site]):
    """A value that no operator of the run wrote.

    Attributes:
        kind: "parameter", "buffer", "constant", "input", "attribute", or "" if unknown.
        name: its qualified name.
        site: where it was first read.
    """

    kind: str
    name: str
    dtype: torch.dtype
    site: Site | None


@dataclass(frozen=True)
class TraceEvent(Generic[Site]):
    """One call of an operator.

    Attributes:
        reads: the values that it read, by their places in the trace.
        scalars: its other arguments, by name.
        number: the Python number that it returned, as `item()` does.
    """

    place: int
    operator: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    scalars: Mapping[str, Any]
    site: Site
    number: Any = None
    random: bool = False

    @property
    def base(self) -> str:
        """The operator's name without library, overload and in-place suffix."""
        return base_operator(self.operator)


@dataclass
class Trace(Generic[Site]):
    """A recorded run of a program or of a reference.

    Attributes:
        values: the sketch of each value; None for memory that was never written or can't be read.
        origins: for each value whose elements are all equal, the operator that made it; "" for
            others.
        producers: by value, the event that wrote it first.
        leaves: by value, the values that no event wrote.
        outputs: by label, the values and Python objects that the run returned or left in its state.
        returned: the run's flat results.
        autocasts: whether it computes under autocast somewhere.
        changed: the names of Python attributes that the run of a reference changed.
        holders: the reference's modules and other objects with state, by id, with their names.
    """

    events: list[TraceEvent[Site]] = field(default_factory=list)
    values: list[Sketch | None] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    producers: dict[int, TraceEvent[Site]] = field(default_factory=dict)
    leaves: dict[int, Leaf[Site]] = field(default_factory=dict)
    outputs: dict[str, int | Any] = field(default_factory=dict)
    returned: list[Any] = field(default_factory=list)
    autocasts: bool = False
    changed: list[str] = field(default_factory=list)
    holders: Mapping[int, tuple[str, Any]] = field(default_factory=dict)


def base_operator(name: str) -> str:
    """Return the base name of an operator, such as `add` for `aten.add_.Tensor`."""
    parts = name.split(".")
    base = parts[1] if len(parts) > 1 else name
    if base.startswith("__"):
        return base
    return base.removesuffix("_")


class TracedValue(int):
    """The place of a value in a trace, as distinct from a Python number."""


def is_value(output: Any) -> bool:
    """Return whether an output of a trace is a tensor's value."""
    return isinstance(output, TracedValue)
