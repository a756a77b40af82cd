"""What a run did: one entry per action, written to `build/run.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pipeline.store.files import write_atomically
from pipeline.store.workspace import Workspace

Result = Literal["built", "hit", "up-to-date", "failed", "not-run"]


class Outcome(NamedTuple):
    """`seconds` of wall time and `peak_bytes` of resident memory are those of the worker."""

    kind: str
    package: str | None
    method: str | None
    outcome: Result
    reason: str
    seconds: float = 0.0
    peak_bytes: int = 0
    model: str = ""
    error: str = ""
    log: str = ""


def write_run(workspace: Workspace, outcomes: Sequence[Outcome], remote: Mapping[str, Any]) -> None:
    """An action a line: indented JSON leaves the C encoder, which a no-op run would feel."""
    lines = ",\n".join(json.dumps(outcome._asdict()) for outcome in outcomes)
    told = f'{{"actions": [\n{lines}\n], "remote": {json.dumps(remote)}}}\n'
    write_atomically(workspace.build / "run.json", told.encode())
