"""The remote tier of a store: what a store asks of one, and the counts of how that ended.

A feature brings it (`moments.Feature.remote_tier`). A store without one has what its folder has.
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
    """The settings of a remote tier, which go to workers: they can be hashed and pickled."""

    def __hash__(self) -> int: ...

    @property
    def url(self) -> str:
        """The address, for people."""

    @property
    def pushes(self) -> bool:
        """Tell whether results are pushed."""

    @property
    def believes_all(self) -> bool:
        """Tell whether unsigned results are believed."""

    def fingerprint(self) -> str:
        """Return a name that changes with whose results are believed."""

    def open(self) -> RemoteTier:
        """Return the remote tier. It is called once in a process, and asks nothing yet."""


@dataclass
class RemoteCounts:
    """Counts of how questions to the remote ended, one of the first five each, and uploads, as
    `pushed` or `errors`."""

    hits: Count = 0
    misses: Count = 0
    unsigned: Count = 0  # or signed by nobody trusted
    corrupt: Count = 0
    errors: Count = 0
    pushed: Count = 0
    bytes_fetched: Count = 0
    bytes_pushed: Count = 0

    def __add__(self, counts: RemoteCounts) -> RemoteCounts:
        sums = [a + b for a, b in zip(astuple(self), astuple(counts), strict=True)]
        return RemoteCounts(*sums)


class RemoteTier(Protocol):
    """A remote tier, for all threads of one process. No method raises for what the remote does.

    Attributes:
        counts: of this process, or of the action that it performs.
        problem: why it was given up, in a line, or "".
    """

    counts: RemoteCounts
    problem: str

    @property
    def settings(self) -> RemoteTierSettings: ...

    def check(self) -> None:
        """Raise PipelineError for settings that can't work, whatever the remote does."""

    def trusts(self, voucher: str) -> bool:
        """Tell whether results are believed that the key of this name vouched for, or nobody did
        (`entries.ANYONE`)."""

    def fetch_result(
        self,
        action: Digest,
        parse: Callable[[Any, str], _T | None] = lambda record, voucher: record,
    ) -> _T | None:
        """Return what `parse` makes of the record of an action and of who vouched for it; None if
        there is none that may be believed, or `parse` makes nothing of it."""

    def fetch_blob(self, blob: Digest, file: BinaryIO) -> bool:
        """Write a blob to a file, and verify its digest; tell whether all of it came."""

    def has_blob(self, blob: Digest) -> bool:
        """Tell whether a blob is there, whatever its content."""

    def has_result(self, action: Digest) -> bool:
        """Tell whether a result is there, whoever it is from."""

    def forget_misses(self) -> None:
        """Ask again for what was not there: somebody may have pushed it since."""

    def push_result(self, action: Digest, record: Mapping[str, Any]) -> None:
        """Write a record in place of what is there."""

    def push_blob(self, blob: Digest, path: Path) -> None:
        """Write a blob, unless it is there or the file has another content."""

    def sweep(self) -> int:
        """Remove files that nobody can be writing any more; return how many."""

    def outcome(self) -> list[Any]:
        """Return the counts, the problem, and whether it was given up, as JSON."""

    def join(self, counts: Mapping[str, int], problem: str, given_up: bool) -> None:
        """Add the outcome of another process."""

    def describe(self, use: Mapping[str, Any]) -> str:
        """Describe the use of a remote in a run, as `run.json` has it, in a line, without what did
        not happen."""
