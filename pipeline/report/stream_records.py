"""The form of each line of `build/events.jsonl`.

`python -m pte_pipeline.report.schema events` prints it as a JSON Schema. A reader should pass over
events and fields that it does not know.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

# Python 3.11's own TypedDict does not tell pydantic all that it needs for a schema.
from typing_extensions import NotRequired, TypedDict  # noqa: UP035

from pipeline.store.forms import Count, Seconds
from pipeline.store.remote_tier import RemoteUse
from pipeline.store.usage import UsageRecord

Kind = Literal["export", "quantize", "compile", "link", "validate"]


class Line(TypedDict):
    """A line: the `run` that wrote it, since two can go on at once, and the `time` in seconds since
    the epoch."""

    run: str
    time: float


class ActionLine(Line):
    """A line about an action, by its names; `package` is null for an export, `method` where an
    action is of a whole package, and its methods with `+` between them where several are compiled
    together."""

    kind: Kind
    package: str | None
    method: str | None
    model: str | None


class RunStarted(Line):
    """The first line of a run: its machine and process, how many actions run at a time, and the
    `executor` of the settings, "" for this machine."""

    event: Literal["run-started"]
    format: Literal[1]
    host: str
    process: Count
    jobs: Count
    executor: str


class ActionQueued(ActionLine):
    """An action is to be performed: `action` is the digest of its key, which two packages may
    share; `reason` says why it is not current."""

    event: Literal["action-queued"]
    action: str
    reason: str


class ActionStarted(ActionLine):
    """An action was handed to the executor, for the first time or again, and what it is expected to
    take."""

    event: Literal["action-started"]
    attempt: Annotated[int, Field(ge=1)]
    expected_seconds: Seconds
    expected_bytes: Count


class ActionProgress(ActionLine):
    """How far an action is, a second after it changed at the latest; `total` is 0 or 1 in a stage
    without steps."""

    event: Literal["action-progress"]
    stage: str
    done: Count
    total: Count


class ActionLost(ActionLine):
    """The worker of an action died; the action is tried again, or ends with this."""

    event: Literal["action-lost"]
    signals: str
    stage: str
    peak_bytes: Count
    system: str
    host: str


class ActionEnded(ActionLine):
    """The outcome of an action. Those that were up to date have no line; `run-ended` counts them.

    `seconds` is wall time, 0 for a hit; `peak_bytes` resident memory; `stage` the one that failed;
    `log` a path in the workspace; `host` the machine of a cluster, "" for that of the run.
    """

    event: Literal["action-ended"]
    outcome: Literal["built", "refit", "hit", "failed", "not-run"]
    reason: str
    seconds: Seconds
    peak_bytes: Count
    stage: str
    error: str
    log: str
    host: str


class RunEnded(Line):
    """The last line of a run, whose reports are written by now; one that was killed has none.

    `outcomes` are numbers of actions, those that were up to date too; `remote` is null without one.
    `idle_seconds` are those in which a worker was free for an action that was ready, all workers
    together: what waits for memory, or for this process.
    """

    event: Literal["run-ended"]
    seconds: Seconds
    interrupted: bool
    idle_seconds: Seconds
    outcomes: dict[str, Count]
    caches: UsageRecord
    remote: NotRequired[RemoteUse | None]


StreamLine = Annotated[
    RunStarted
    | ActionQueued
    | ActionStarted
    | ActionProgress
    | ActionLost
    | ActionEnded
    | RunEnded,
    Field(discriminator="event"),
]
