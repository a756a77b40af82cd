"""An action on its way through a cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Future
from typing import Any

from pipeline.features.cluster.forms import RESOURCE, Json
from pipeline.plan.actions import Action
from pipeline.run.executors import WorkerLostError
from pipeline.run.performed import Report
from pipeline.store.visible import one_line


class Shipment:
    """An action that was handed to the cluster.

    Attributes:
        tags: the names of backends whose requirements its worker must meet.
        memory: the bytes that it is expected to take, or 0 if unknown.
        promise: the future that receives its report.
        parcel: the action as JSON, once it is packed.
        future: dask's future.
        since: when it was submitted, on the clock of `time.monotonic`.
        progress: its worker's last progress message; None before the first.
        refused: the workers that refused it, with the reasons.
    """

    def __init__(self, action: Action, tags: frozenset[str], memory: int) -> None:
        self.action = action
        self.tags = tags
        self.memory = memory
        self.promise: Future[Report] = Future()
        self.parcel: str = ""
        self.future: Any = None
        self.since: float = 0.0
        self.progress: Json | None = None
        self.refused: dict[str, list[str]] = {}

    @property
    def resources(self) -> set[str]:
        """The dask resources that its worker must have."""
        return {f"{RESOURCE}{tag}" for tag in self.tags}

    def can_run(self, workers: Iterable[Collection[str]]) -> bool:
        """Return whether any worker has what the action needs, given the resources of each."""
        return any(self.resources <= set(resources) for resources in workers)

    def describe_lack(self, cluster: str) -> str:
        """Describe what the action needs that no worker of the cluster has."""
        lacking = ", ".join(sorted(self.tags))
        message = f"no worker of {cluster} has what it needs: {lacking}"
        return f"{message} (`doit backends` there says what is missing)"

    def lose(self, progress: Json, system: str) -> None:
        """Fail the promise with the loss of the worker that reported this progress."""
        lost = WorkerLostError(
            stage=progress["stage"],
            peak_bytes=progress["peak_bytes"],
            system=system,
            host=one_line(progress["host"]),
        )
        self.promise.set_exception(lost)
