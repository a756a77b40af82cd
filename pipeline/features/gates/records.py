"""The shapes of the records that gates add to reports."""

from __future__ import annotations

from typing import Any, Literal

# Python 3.11's own TypedDict lacks information that pydantic needs for a schema.
from typing_extensions import NotRequired, TypedDict  # noqa: UP035

GateUnit = Literal["share", "bytes", "times", "dB", "calls", "cycles", "needs", "ms"]


GateExemption = Literal["not run", "no partitioners", "no baseline"]


class GateRecord(TypedDict):
    """A limit that the config sets on a package or on a method, and the figure it limits.

    `method` is None for a package's gate. `figure` and `limit` are in `unit`; `figure` is None if
    it is not known. The limit of allow_portable_ops is 0, and its figure is the number of calls
    that are not allowed; the limit of runs_on is 0, and its figure is the number of needs that
    runtimes do not meet. `sentence` says what is wrong, or why the gate was not checked; otherwise
    it is empty. `place` is the gate's line in the config, `file:line`, or empty if it is a default.
    `device` is the device of the figure, if the limit applies to devices. `left_alone` says why the
    gate neither holds nor fails: the method was not run, it has no partitioners on purpose, or
    there is no baseline yet.
    """

    gate: str
    method: str | None
    unit: NotRequired[GateUnit]
    figure: float | None
    limit: float
    ok: bool
    sentence: str
    place: NotRequired[str]
    device: NotRequired[str]
    left_alone: NotRequired[GateExemption]


GATES = list[GateRecord]
BASELINE = dict[str, Any] | None
