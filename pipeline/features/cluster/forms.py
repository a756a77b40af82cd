"""The forms of what goes to a cluster's worker and comes back, and of what it says meanwhile."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from pipeline.store.digest import Digest
from pipeline.store.forms import Count, FileName
from pipeline.store.pieces import Piece
from pipeline.store.remote_tier import RemoteCounts
from pipeline.store.usage import Usage

TOPIC = "pte-pipeline"  # of what workers say to all builds
RESOURCE = "pte-"  # before the name of a tag, as dask calls it
MEMORY = f"{RESOURCE}memory"  # in bytes


class Parcel(TypedDict):
    """A requested action with what it names, for a worker that has neither its workspace nor its
    plan.

    Attributes:
        request: the action, as `plan.requests` writes it.
        files: digests of files of the workspace, by path.
        results: the actions whose results the action reads.
        blobs: those that it reads in addition to the files, as far as the driver knows them.
        operators: the libraries that may be loaded, and whether `operators/` may.
        crashes: the methods that have ended their worker in this run, as `CrashLog` keeps them.
    """

    request: str
    files: dict[str, Digest]
    results: list[Digest]
    blobs: list[Digest]
    operators: tuple[list[str], bool]
    crashes: dict[str, str]
    always: bool
    fast_lowering: bool
    refit: bool


class _Event(TypedDict):
    outcome: Literal["built", "refit", "hit", "failed", "lost"]
    start: float
    seconds: float
    stages: list[tuple[str, float, float]]
    stage: str
    worker: Count
    peak_bytes: Count
    error: str


class _Result(TypedDict):
    files: dict[FileName, Digest]
    joined: NotRequired[dict[FileName, list[Piece]]]
    facts: NotRequired[dict[str, Any]]


class Done(TypedDict):
    """The report of an action, without its names, which the driver knows."""

    event: _Event
    usage: dict[str, Usage]
    remote: tuple[RemoteCounts, str] | None
    result: _Result | None


class Refused(TypedDict):
    """Why a worker does not take an action: how its key would differ there. `here` is whether only
    facts of the machine do, so that the driver's own can take it."""

    differences: list[str]
    here: bool


class Lost(TypedDict):
    """The end of an action's process, as `WorkerLostError` says it, and at which step of a
    validation."""

    signals: str
    stage: str
    peak_bytes: Count
    system: str
    step: str


class Answer(TypedDict):
    """An answer to a parcel, one of the first four, and what its process printed; `worker` is
    dask's address of who gives it, `host` the name of the machine."""

    done: NotRequired[Done]
    refused: NotRequired[Refused]
    lost: NotRequired[Lost]
    missing: NotRequired[str]
    log: str
    worker: str
    host: str


class ProgressMessage(TypedDict):
    """A worker's word of a parcel under way: that it has it, how far it is, and what its process
    printed since the last word."""

    parcel: str
    worker: str
    host: str
    log: str
    stage: str
    done: Count
    total: Count
    peak_bytes: Count
