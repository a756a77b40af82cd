"""The shapes of what gates add to reports."""

from __future__ import annotations

from typing import Any, Literal

# Python 3.11's own TypedDict does not tell pydantic all that it needs for a schema.
from typing_extensions import NotRequired, TypedDict  # noqa: UP035

GateUnit = Literal["share", "bytes", "times", "dB", "calls", "cycles", "needs", "ms"]


GateExemption = Literal["not run", "no partitioners", "no baseline"]


class GateRecord(TypedDict):
    """A limit that the config sets on a package or on a method, and the figure it limits.

    `method` is None for one of the package. `figure` and `limit` are in `unit`; `figure` is None
    where it is not known; the limit of allow_portable_ops is 0, and its figure the number of calls
    that are not allowed; that of runs_on is 0, and its figure the number of needs that runtimes do
    not meet. `sentence` says what is wrong, or why it was not checked; else it is empty. `place` is
    its line in the config, `file:line`, or empty for one by default. `device` is the device of the
    figure, where the limit is of devices. `left_alone` says why it
    neither holds nor fails: the method was not run, has no partitioners on purpose, or there is no
    baseline yet.
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
