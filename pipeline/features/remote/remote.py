"""The remote tier of the store: the same blobs and action results, wherever fsspec reaches.

    <url>/blobs/ab/cdef...          content, named by its digest
    <url>/actions/ab/cdef....json   {"record": ..., "signature": ..., "signer": ...}

The remote is never trusted. A blob is hashed while it is fetched. A result must belong to its
action and have the form of such results, and a trusted key must have signed it, unless the user
accepts unsigned results.

Nor is the remote relied on. Its faults are counted, and treated as misses; each of its steps has a
time limit; and after a few errors in a row it is abandoned. So a remote can slow a build down, but
it can neither corrupt the build nor make it fail.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pipeline.features.remote.files import RemoteError, RemoteFiles
from pipeline.features.remote.keys import load_keys
from pipeline.features.remote.public_keys import name_public_key
from pipeline.features.remote.use import describe_use
from pipeline.store import digest
from pipeline.store.digest import Digest
from pipeline.store.entries import ANYONE
from pipeline.store.errors import PipelineError
from pipeline.store.places import action_name, blob_name
from pipeline.store.remote_tier import RemoteCounts

RESULT_LIMIT = 1 << 26  # bytes, like the next one
BLOB_LIMIT = 1 << 34
MAX_ERRORS = 3  # in a row
MAX_DENIED = 50  # in a row, while nothing shows that anything can be read
REMEMBERED = 60.0  # seconds for which an answer holds: others may push or delete
_DOMAIN = b"pte-pipeline result\n"
_EMPTY = digest.hash_bytes(b"")
_T = TypeVar("_T")


@cache
def _name_public_keys(trusted_keys: tuple[Path, ...]) -> frozenset[str | None]:
    return frozenset(map(name_public_key, trusted_keys))


@cache
def _name_signer(signing_key: Path) -> str | None:
    """Return the name of the signing key; this imports cryptography."""
    with suppress(PipelineError):
        return next(iter(load_keys(signing_key, ()).trusted))
    return None


@dataclass(frozen=True)
class RemoteSettings:
    """The place of the remote, and the keys that are trusted.

    With keys, results are pushed only with a `signing_key`, and fetched only if that key or one of
    `trusted_keys` signed them. Without keys, all results are fetched if `unsigned`, and none
    otherwise. `options` go to the fsspec filesystem. `timeout` is in seconds, for one step: a
    query, or one piece of a transfer.
    """

    url: str
    writable: bool = True
    signing_key: Path | None = None
    trusted_keys: tuple[Path, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)
    timeout: float = 20.0
    unsigned: bool = False

    @property
    def signed(self) -> bool:
        """Return whether signatures are required."""
        return self.signing_key is not None or bool(self.trusted_keys)

    @property
    def believes_all(self) -> bool:
        """Return whether unsigned results are trusted."""
        return self.unsigned and not self.signed

    @property
    def pushes(self) -> bool:
        """Return whether to push.

        Nothing is pushed with `trusted_keys` but no `signing_key`: unsigned results would replace
        signed ones, and then be ignored.
        """
        return self.writable and (self.signing_key is not None or not self.trusted_keys)

    def fingerprint(self) -> str:
        """Return a name that changes with the set of trusted signers.

        It is made from the paths of keys, none of which is read.
        """
        if self.believes_all:
            return ANYONE
        keys = [*self.trusted_keys, *filter(None, [self.signing_key])]
        return digest.hash_json(sorted(map(str, keys)))[:16]

    def open(self) -> Remote:
        """Return the remote, without sending any request yet."""
        return Remote(self)


class Remote:
    """A remote, shared by all threads of one process.

    `problem` says in one line why it was abandoned or, until then, what its first error was; it is
    empty if nothing went wrong.
    """

    def __init__(self, settings: RemoteSettings) -> None:
        self.settings = settings
        self.problem = ""
        self._given_up = False
        self._denied = False
        self._errors_in_a_row = 0
        self._can_read: bool | None = None  # known once something was denied
        self._denied_in_a_row = 0
        # By name: "there", or the count of the failed fetch, and the time when that was learned.
        self._answers: dict[str, tuple[str, float]] = {}
        self._keys: Any = None
        self._files = RemoteFiles(settings.url, settings.options, settings.timeout)
        self.counts = RemoteCounts()
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise PipelineError for settings that can't work, whatever the remote does."""
        self._files.check()
        self._keys = load_keys(self.settings.signing_key, self.settings.trusted_keys)

    def trusts(self, voucher: str) -> bool:
        """Return whether results vouched for by the key of this name are trusted."""
        settings = self.settings
        if settings.believes_all:
            return True
        if self._keys is not None:  # read before the watched user code began
            return voucher in self._keys.trusted
        if voucher in _name_public_keys(settings.trusted_keys):
            return True
        signing_key = settings.signing_key
        return signing_key is not None and voucher == _name_signer(signing_key)

    # Fetching

    def fetch_result(
        self,
        action: Digest,
        parse: Callable[[Any, str], _T | None] = lambda record, voucher: record,
    ) -> _T | None:
        """Fetch a result, and return what `parse` makes of its record and its signer's key.

        Returns None if there is no result from a trusted signer, or if `parse` returns None for its
        record, which may belong to another action.
        """
        name = action_name(action)
        if self._may_have(name):
            with self._transfer(name):
                content = b"".join(self._read(name, RESULT_LIMIT))
                parsed = parse(*self._read_record(content))
                if parsed is None:
                    raise RemoteError("corrupt")
                return parsed
        return None

    def fetch_blob(self, blob: Digest, file: BinaryIO) -> bool:
        """Write a blob to a file; return whether all of it arrived.

        If not, anything may have been written. Raises only errors of the file.
        """
        if blob == _EMPTY:  # there is no range of bytes to request
            return True
        name = blob_name(blob)
        if self._may_have(name):
            with self._transfer(name):
                try:
                    for piece in digest.verified(self._read(name, BLOB_LIMIT), blob):
                        file.write(piece)
                except digest.WrongContentError:
                    raise RemoteError("corrupt") from None
                return True
        return False

    def has_blob(self, blob: Digest) -> bool:
        """Return whether a blob exists, without fetching or checking its content."""
        return blob == _EMPTY or self._has(blob_name(blob))

    def has_result(self, action: Digest) -> bool:
        """Return whether a result exists, whoever made it."""
        return self._has(action_name(action))

    def _has(self, name: str) -> bool:
        answer = self._answer(name)
        if answer is None and self._usable():
            with self._transfer(name, counts=False):
                if self._files.size(name) is None:
                    raise RemoteError("misses")
                answer = "there"
        return answer == "there"

    def forget_misses(self) -> None:
        """Forget the answers for missing names: somebody may have pushed them since."""
        with self._lock:
            present = {
                n: answer for n, answer in self._answers.items() if answer[0] == "there"
            }
            self._answers = present

    def _may_have(self, name: str) -> bool:
        return self._usable() and self._answer(name) in (None, "there")

    def _answer(self, name: str) -> str | None:
        """Return the remote's answer for a name, unless it is out of date."""
        answer, when = self._answers.get(name, (None, 0.0))
        return answer if time.monotonic() - when < REMEMBERED else None

    def _learn(self, name: str, answer: str) -> None:
        self._answers[name] = answer, time.monotonic()

    def _read(self, name: str, limit: int) -> Iterator[bytes]:
        for piece in self._files.read(name, limit):
            with self._lock:
                self.counts.bytes_fetched += len(piece)
            yield piece

    def _read_record(self, content: bytes) -> tuple[Any, str]:
        """Return a record, and the name of the key that vouches for it."""
        try:
            envelope = json.loads(content)
            record = envelope["record"]
            message = _DOMAIN + digest.canonical_json(record)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RemoteError("corrupt") from None
        if not isinstance(record, dict):
            raise RemoteError("corrupt")
        assert self._keys is not None
        signer, signature = envelope.get("signer"), envelope.get("signature")
        if self.settings.believes_all:
            return record, ANYONE
        if not self._keys.accept(signer, signature, message):
            raise RemoteError("unsigned")
        return record, signer

    # Pushing

    def push_result(self, action: Digest, record: Mapping[str, Any]) -> None:
        """Write a record in place of any existing one, which may be why this one was made."""
        if not self._pushes():
            return
        assert self._keys is not None
        signer, signature = self._keys.sign(_DOMAIN + digest.canonical_json(record))
        envelope = {"record": record, "signature": signature, "signer": signer}
        content = digest.canonical_json(envelope)
        if len(content) <= RESULT_LIMIT:
            name = action_name(action)
            with self._transfer(name, pushing=True):
                self._write(name, [content])

    def push_blob(self, blob: Digest, path: Path) -> None:
        """Write a blob, unless it is there already or the local file has another content."""
        name = blob_name(blob)
        answer = self._answer(name) or "misses"
        if blob == _EMPTY or not self._pushes() or answer == "there":
            return
        # A fault of the local file doesn't concern the remote.
        with (
            suppress(OSError, digest.WrongContentError),
            self._transfer(name, pushing=True),
        ):
            # A file of this name and size probably has this content.
            if answer != "misses" or self._size(name) != path.stat().st_size:
                self._write(name, digest.verified(digest.read_pieces(path), blob))

    def _size(self, name: str) -> int | None:
        """Return the size of a file to be written, or None if asking is forbidden."""
        try:
            return self._files.size(name)
        except RemoteError as error:
            if error.denied:
                return None
            raise

    def _pushes(self) -> bool:
        return self.settings.pushes and not self._denied and self._usable()

    def _write(self, name: str, pieces: Iterable[bytes]) -> None:
        size = self._files.write(name, pieces)
        with self._lock:
            self.counts.pushed += 1
            self.counts.bytes_pushed += size

    def sweep(self) -> int:
        """Remove half-written files that nobody can still be writing; return how many."""
        return self._files.sweep() if self._pushes() else 0

    # Outcome

    def outcome(self) -> list[Any]:
        """Return the counts, the problem, and whether the remote was abandoned, as JSON."""
        return [vars(self.counts), self.problem, self._given_up]

    def join(self, counts: Mapping[str, int], problem: str, given_up: bool) -> None:
        """Add the outcome of another process; if it abandoned the remote, so does this one."""
        self.counts += RemoteCounts(**counts)
        self.problem = self.problem or problem
        self._given_up = self._given_up or given_up

    def describe(self, use: Mapping[str, Any]) -> str:
        """Describe a run's use of the remote in one line, leaving out what didn't happen."""
        return describe_use(use)

    @contextmanager
    def _transfer(
        self, name: str, pushing: bool = False, counts: bool = True
    ) -> Iterator[None]:
        """Count how the block ends: as a hit only if `counts`. A RemoteError is not passed on."""
        try:
            yield
        except RemoteError as error:
            is_absent = not pushing and error.denied and self._may_be_absent()
            with self._lock:
                if is_absent:
                    self._count_miss("misses", name)
                elif pushing or error.count == "errors":
                    self._count_error(error, pushing)
                else:
                    self._denied_in_a_row = 0
                    self._count_miss(error.count, name)
        else:
            with self._lock:
                self.counts.hits += counts and not pushing
                self._errors_in_a_row = 0
                if not pushing:
                    self._can_read = True
                self._learn(name, "there")

    def _may_be_absent(self) -> bool:
        """Return whether a file that may not be read may simply be missing.

        It may if another file can be read, and for a while if that is still unknown.
        """
        if self._can_read is None:
            self._can_read = self._files.probe(self._pushes())
        with self._lock:
            shown = self._files.shown
            if self._can_read:
                right = self._files.right_to_list
                self.problem = self.problem or (
                    f"{shown}: answers 'forbidden' for missing files, which counts as missing; "
                    f"{right} is not granted"
                )
                return True
            self._denied_in_a_row += 1
            self.problem = self.problem or f"{shown}: {self._missing_rights}"
            return self._denied_in_a_row < MAX_DENIED

    @property
    def _missing_rights(self) -> str:
        right = self._files.right_to_list
        return f"every request was forbidden: grant the permission to read, or {right}"

    def _count_miss(self, count: str, name: str) -> None:
        setattr(self.counts, count, getattr(self.counts, count) + 1)
        self._errors_in_a_row = 0
        self._learn(name, count)

    def _count_error(self, error: RemoteError, pushing: bool) -> None:
        self.counts.errors += 1
        if pushing and error.denied:  # the remote can still be read
            self._denied = True
            self.problem = (
                self.problem or f"{self._files.shown}: cannot be written: {error}"
            )
            return
        self._errors_in_a_row += 1
        if self._errors_in_a_row >= MAX_ERRORS and not self._given_up:
            self._given_up = True
            why = f"given up after {MAX_ERRORS} errors in a row: {error}"
            if error.denied:
                why = f"{why}; {self._missing_rights}"
            self.problem = f"{self._files.shown}: {why}"
        else:
            self.problem = self.problem or f"{self._files.shown}: {error}"

    def _usable(self) -> bool:
        if self._keys is None and not self._given_up:
            try:
                self.check()
            except PipelineError as error:
                self.problem = str(error)
                self._given_up = True
        return not self._given_up
