"""The interface of a store's remote tier, and the counts of its requests by outcome.

A feature provides it (`moments.Feature.remote_tier`). A store without one has only its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from pipeline.store.digest import Digest
from pipeline.store.forms import Count

_T = TypeVar("_T")


class RemoteTierSettings(Protocol):
    """The settings of a remote tier; hashable and picklable, because they go to workers."""

    def __hash__(self) -> int: ...

    @property
    def url(self) -> str:
        """The address, for display."""

    @property
    def pushes(self) -> bool:
        """Whether results are pushed."""

    @property
    def believes_all(self) -> bool:
        """Whether unsigned results are trusted."""

    def fingerprint(self) -> str:
        """Return a name that changes with whose results are trusted."""

    def open(self) -> RemoteTier:
        """Return the remote tier. Called once per process; sends no request yet."""


@dataclass
class RemoteCounts:
    """Counts of requests to the remote, by outcome.

    Each request counts as one of the first five; each upload counts as `pushed` or `errors`.
    """

    hits: Count = 0
    misses: Count = 0
    unsigned: Count = 0  # or signed with a key that isn't trusted
    corrupt: Count = 0
    errors: Count = 0
    pushed: Count = 0
    bytes_fetched: Count = 0
    bytes_pushed: Count = 0

    def __add__(self, counts: RemoteCounts) -> RemoteCounts:
        sums = [a + b for a, b in zip(astuple(self), astuple(counts), strict=True)]
        return RemoteCounts(*sums)


class RemoteTier(Protocol):
    """A remote tier, shared by all threads of a process.

    No method raises for a failure of the remote.

    Attributes:
        counts: the counts of this process, or of the action that it runs.
        problem: one line on why the remote was given up, or on its first error, or "".
    """

    counts: RemoteCounts
    problem: str

    @property
    def settings(self) -> RemoteTierSettings: ...

    def check(self) -> None:
        """Raise PipelineError if the settings can't work, whatever the remote does."""

    def trusts(self, voucher: str) -> bool:
        """Return whether results with this voucher are trusted.

        A voucher is the name of a key, or `entries.ANYONE` for unsigned results.
        """

    def fetch_result(
        self,
        action: Digest,
        parse: Callable[[Any, str], _T | None] = lambda record, voucher: record,
    ) -> _T | None:
        """Return the result of `parse`, called with an action's record and its voucher.

        Returns None if there is no trusted record, or if `parse` returns None.
        """

    def fetch_blob(self, blob: Digest, file: BinaryIO) -> bool:
        """Write a blob to a file and verify its digest; return whether all of it came."""

    def has_blob(self, blob: Digest) -> bool:
        """Return whether a blob is at the remote, whatever its content."""

    def has_result(self, action: Digest) -> bool:
        """Return whether a result is at the remote, whoever signed it."""

    def forget_misses(self) -> None:
        """Forget what was missing, because somebody may have pushed it since."""

    def push_result(self, action: Digest, record: Mapping[str, Any]) -> None:
        """Write a record, replacing what is there."""

    def push_blob(self, blob: Digest, path: Path) -> None:
        """Write a blob, unless it is already there or the file's content doesn't match it."""

    def sweep(self) -> int:
        """Remove files that nobody can still be writing; return their number."""

    def outcome(self) -> list[Any]:
        """Return the counts, the problem, and whether the remote was given up, as JSON."""

    def join(self, counts: Mapping[str, int], problem: str, given_up: bool) -> None:
        """Add the outcome of another process."""

    def describe(self, use: Mapping[str, Any]) -> str:
        """Describe a run's use of the remote, from `run.json`, in one line without zero counts."""
