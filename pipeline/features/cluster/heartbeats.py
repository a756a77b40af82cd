"""Finds workers that stopped answering, by the heartbeats that dask's scheduler records.

dask itself gives up such a worker after five minutes, without any earlier warning.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.store.settings_reader import open_settings

TIMEOUT = 180.0  # seconds; the setting `worker_timeout` changes it
_NOTICE = 60.0  # seconds of silence after which a warning is logged
_BETWEEN_LOOKS = 2.0  # seconds; a larger gap means that this process itself was stopped


def read_timeout(root: Path) -> float:
    """Return the setting `worker_timeout` of a workspace. Raises PipelineError."""
    timeout: float = open_settings(root).get("worker_timeout", TIMEOUT)
    return timeout


class Heartbeats:
    """The time of each worker's last heartbeat.

    Times are by this machine's clock, since the scheduler's may differ. `timeout` is the silence in
    seconds after which a worker is given up.
    """

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self._notice = min(_NOTICE, timeout / 2)
        self._heard: dict[str, tuple[Any, float]] = {}  # the latest heartbeat, and when
        self._reported: set[str] = set()
        self._noted_at = time.monotonic()

    def note(self, workers: Mapping[str, Any]) -> None:
        """Record the latest heartbeats of all workers, from the scheduler's description."""
        now = time.monotonic()
        was_stopped = now - self._noted_at > max(self._notice, 2 * _BETWEEN_LOOKS)
        self._noted_at = now
        previous, self._heard = self._heard, {}
        for address, worker in workers.items():
            heartbeat = worker["last_seen"]
            same_since = previous.get(address)
            if was_stopped or same_since is None or same_since[0] != heartbeat:
                same_since = heartbeat, now
                self._reported.discard(address)
            self._heard[address] = same_since

    def is_overdue(self) -> bool:
        """Return whether the scheduler hasn't described its workers for longer than the timeout."""
        return time.monotonic() - self._noted_at > self.timeout

    def find_silent(self) -> list[str]:
        """Return the workers that have been silent for longer than the timeout."""
        return [a for a in self._heard if self._silence(a) > self.timeout]

    def find_news(self) -> list[str]:
        """Return the workers that have been silent for a while, each only once."""
        news = []
        for address in self._heard:
            if address not in self._reported and self._silence(address) > self._notice:
                self._reported.add(address)
                news.append(address)
        return news

    def describe(self, address: str) -> str:
        """Describe a worker's silence, and what will happen to its actions."""
        return (
            f"worker {address} has not answered for {self._silence(address):.0f} s; its actions "
            f"move to another worker after {self.timeout:g} s (`worker_timeout`)"
        )

    def _silence(self, address: str) -> float:
        return time.monotonic() - self._heard[address][1]
