"""Events of a run: one record per action, written to `build/run.json`.

Every run imports this module, even a no-op run, so it imports nothing heavy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from pipeline.moments import find_code
from pipeline.store.files import write_atomically
from pipeline.store.workspace import Workspace

RUN, TIMELINE = "run.json", "timeline.json"
STAGE = "stage"  # the category of trace events that are stages of an action
Outcome = Literal["built", "refit", "hit", "up-to-date", "failed", "not-run", "lost"]
DONE = ("built", "refit", "hit", "up-to-date")  # the outcomes with a current result
INTERRUPTED = "interrupted"  # the reason of a task that did not run
NOT_BUILT = "not built"  # shown for a package without files
# How outcomes are displayed, if not as they are.
WORDS: Mapping[str, str] = {
    "refit": "refitted",
    "hit": "cached",
    "up-to-date": "current",
    "not-run": "not run",
}

NAMES = ("kind", "package", "method", "model")  # that identify an action
# The fields that describe to people how an action ended.
ENDING = (
    "outcome",
    "reason",
    "seconds",
    "peak_bytes",
    "error",
    "code",
    "log",
    "host",
)


def outcome_word(outcome: str) -> str:
    """Return the displayed word for an outcome: built, refitted, cached, current, failed."""
    return WORDS.get(outcome, outcome)


class Event(NamedTuple):
    """One action of a run and its outcome.

    Attributes:
        outcome: "lost" if an input disappeared from the store, so that the action runs again.
        start: seconds of the clock, or 0 for an action that took no time.
        seconds: wall time.
        stages: names with begin and end, in seconds from `start`.
        stage: the last stage begun; if the action failed, the one that failed.
        worker: the process that ran the action; 0 if none did.
        peak_bytes: the worker's peak resident memory.
        log: the path of the log in the workspace.
        host: the machine of a cluster that ran it; "" for this one.
        code: the code of `error`, such as `PTE111`.
    """

    kind: str
    package: str | None
    method: str | None
    model: str
    outcome: Outcome
    reason: str = ""
    start: float = 0.0
    seconds: float = 0.0
    stages: Sequence[tuple[str, float, float]] = ()
    stage: str = ""
    worker: int = 0
    peak_bytes: int = 0
    error: str = ""
    log: str = ""
    host: str = ""

    @property
    def end(self) -> float:
        return self.start + self.seconds

    @property
    def code(self) -> str:
        return find_code(self.error, self.kind)

    @property
    def name(self) -> str:
        """The package or model, with the method if there is one."""
        return "/".join(filter(None, (self.package or self.model, self.method)))

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"


def make_event(of: Any, outcome: Outcome, **facts: Any) -> Event:
    """Return an event for an action or its task."""
    return Event(
        of.kind,
        of.package,
        of.method,
        of.model or "",
        outcome,
        **facts,
    )


def describe_event(event: Event, names: Sequence[str]) -> dict[str, Any]:
    """Return fields of an event as JSON."""
    fields = {name: getattr(event, name) for name in names}
    fields["seconds"] = round(event.seconds, 3)
    return fields


def write_run(
    workspace: Workspace, events: Iterable[Event], remote: Mapping[str, Any]
) -> None:
    """Write `run.json`, with one action per line, and the requests made to the remote tier.

    In a no-op run, nearly all events differ from the one before in their names alone. Encoding
    each of them would take three times as long.

    Raises:
        OSError: the file can't be written.
    """
    lines: list[str] = []
    ending, common = "", None
    encode = cache(json.JSONEncoder().encode)  # names occur again and again
    for event in events:
        facts = event[:1] + event[4:]
        if facts != common:
            common = facts
            ending = json.dumps(describe_event(event, ENDING))[1:]
        kind, package, method, model = map(encode, event[:4])
        lines.append(
            f'{{"kind": {kind}, "package": {package}, "method": {method}, '
            f'"model": {model}, {ending}'
        )
    actions = ",\n".join(lines)
    text = f'{{"actions": [\n{actions}\n], "remote": {json.dumps(remote)}}}\n'
    write_atomically(workspace.build / RUN, text.encode(), workspace.build)
