"""The store: blobs by content digest, action results by action digest, under one folder.

Nothing is trusted because of its name: a blob is hashed again when it is read, and an action
result carries a digest of itself. What is bad is dropped and then simply not there, so corruption,
a torn write or a concurrent eviction are misses, never errors. Nothing is ever unpickled.

What is not there is asked of the remote tier, if there is one, and checked in the same way. A
file's mtime is the time of its last use.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from blake3 import blake3

from pipeline.store import digest
from pipeline.store.agreement import fits_action
from pipeline.store.digest import Digest
from pipeline.store.entries import ActionEntry, find_references
from pipeline.store.errors import PipelineError
from pipeline.store.files import (
    clear_place,
    is_plain,
    make_folder,
    publish,
    remove,
    temporary,
    write_atomically,
)

if TYPE_CHECKING:
    from pipeline.store.remote import Remote, RemoteSettings

AT_ONCE = 16  # questions to the remote
LOCK_TIMEOUT = 900.0  # seconds to wait for another process that computes the same
_CORRUPT = "was corrupt and has been dropped"
_README = """\
This folder is the store of pte-pipeline: compiled methods and linked packages, by content.
It can be deleted at any time; what is needed again is built again.
"""
_T = TypeVar("_T")


_FILES = ("README", "costs.json", "usage.json", "index.sqlite3", "index.sqlite3-journal")
_OWN = ("blobs", "actions", "tmp", "locks", "runs", ".gc.lock", *_FILES)


class MissingBlobError(PipelineError):
    """A blob is not in the store, or no longer has the content that its name promises."""


def blob_name(blob: Digest) -> str:
    """Return the place of a blob in a store or a remote."""
    return f"blobs/{blob[:2]}/{blob[2:]}"


def action_name(action: Digest) -> str:
    """Return the place of an action's entry in a store or a remote."""
    return f"actions/{action[:2]}/{action[2:]}.json"


def default_root() -> Path:
    """Return `$XDG_CACHE_HOME/pte-pipeline`, which all checkouts of a user share. Raises
    PipelineError where that is not set and the user has no home."""
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        raise PipelineError("this user has no home folder; set HOME or XDG_CACHE_HOME") from None
    return Path(cache) / "pte-pipeline"


class BlobWriter:
    """A file that hashes what is written to it; `digest` holds once the block has ended."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hasher = blake3()
        self.size = 0

    def write(self, data: bytes | memoryview) -> int:
        self._hasher.update(data)
        self.size += len(data)
        return self._file.write(data)

    @property
    def digest(self) -> Digest:
        return Digest(self._hasher.hexdigest())


class Store:
    """`cap` is the size in bytes down to which the least recently used is evicted after a run."""

    def __init__(
        self, root: Path, remote: RemoteSettings | None = None, cap: int | None = None
    ) -> None:
        self.root = root
        self.cap = cap
        self._remote = remote
        self._verified: set[Digest] = set()
        _ = self.remote  # made before threads ask for it, who would each make one

    def __reduce__(self) -> Any:  # a worker verifies for itself
        return Store, (self.root, self._remote, self.cap)

    @property
    def remote(self) -> Remote | None:
        """The remote tier, if there is one."""
        return None if self._remote is None else _connect(self._remote)

    @property
    def believes_all(self) -> bool:
        """Tell whether unsigned results of a remote are believed."""
        return self._remote is not None and self._remote.believes_all

    @property
    def own_places(self) -> list[Path]:
        """The folders and files that builds write; whatever else stands in the store's folder is
        somebody else's."""
        return [*(self.root / name for name in _OWN), default_root() / "distributions"]

    def blob_path(self, blob: Digest) -> Path:
        return self.root / blob_name(blob)

    def action_path(self, action: Digest) -> Path:
        return self.root / action_name(action)

    # Blobs

    def has(self, blob: Digest) -> bool:
        """Tell whether a blob is there, whatever its content. It is fetched from the remote if only
        that has it."""
        return is_plain(self.blob_path(blob)) or self._fetch(blob)

    def obtainable(self, blobs: Iterable[Digest]) -> bool:
        """Tell whether all blobs are here with the right content, or at the remote, of which only
        this is asked. Each is hashed once per process; bad ones are dropped."""
        lacking = [blob for blob in blobs if not self._is_good(blob, fetches=False)]
        return all(self._each(self._is_remote, lacking))

    def intact(self, blobs: Iterable[Digest]) -> bool:
        """Tell whether all blobs are here with the right content, after fetching what is not. Each
        is hashed once per process; bad ones are dropped."""
        blobs = list(blobs)
        self.fetch(blobs)
        bad = [blob for blob in blobs if not self._is_good(blob)]
        return not bad

    # Several at once, so that a build waits for a remote's answers once and not for each

    def ask(self, actions: Iterable[Digest]) -> None:
        """Fetch the entries of actions that are not here."""
        self._each(self.get, self._lacking(actions, self.action_path))

    def look(self, blobs: Iterable[Digest]) -> None:
        """Ask the remote whether it has the blobs that are not here."""
        self._each(self._is_remote, self._lacking(blobs, self.blob_path))

    def fetch(self, blobs: Iterable[Digest]) -> None:
        """Fetch the blobs that are not here."""
        self._each(self._fetch, self._lacking(blobs, self.blob_path))

    def _lacking(self, digests: Iterable[Digest], path: Callable[[Digest], Path]) -> list[Digest]:
        if self.remote is None:
            return []
        return [each for each in dict.fromkeys(digests) if not is_plain(path(each))]

    def _each(self, function: Callable[[Digest], _T], digests: Sequence[Digest]) -> list[_T]:
        """Call a function that asks the remote with each digest, some at a time."""
        if len(digests) < 2 or self.remote is None:
            return [function(each) for each in digests]
        from concurrent.futures import ThreadPoolExecutor

        threads = ThreadPoolExecutor(AT_ONCE, "pte-store")
        try:
            return list(threads.map(function, digests))
        finally:
            threads.shutdown(cancel_futures=True)

    def _is_remote(self, blob: Digest) -> bool:
        return self.remote is not None and self.remote.has_blob(blob)

    def _is_good(self, blob: Digest, fetches: bool = True) -> bool:
        with suppress(MissingBlobError):
            self.verified_path(blob, once=True, fetches=fetches)
            return True
        return False

    def put(self, data: bytes | memoryview) -> Digest:
        """Store a blob, unless it is there already."""
        blob = digest.hash_bytes(data)
        path = self.blob_path(blob)
        if is_plain(path) and self._is_good(blob):
            _touch(path)  # until a result refers to it, nothing but its age keeps it
        else:
            with self._writing(path) as file:
                file.write(data)
            self._verified.add(blob)
        return blob

    @contextmanager
    def writer(self) -> Iterator[BlobWriter]:
        """Store a blob that is written in pieces, and whose digest is known only at its end."""
        with self.scratch() as file:
            blob = BlobWriter(file)
            yield blob
            self._publish(file, self.blob_path(blob.digest))
            self._verified.add(blob.digest)

    def put_file(self, path: Path) -> Digest:
        """Store the content of a file, unless it is there already. Raises OSError."""
        blob = digest.hash_file(path)
        if is_plain(self.blob_path(blob)) and self._is_good(blob):
            _touch(self.blob_path(blob))
            return blob
        with open(path, "rb") as source, self.writer() as file:
            while piece := source.read(1 << 22):
                file.write(piece)
        return file.digest

    def read(self, blob: Digest) -> bytes:
        """Return the verified content. Raises MissingBlobError; a bad blob is dropped."""

        def read(path: Path) -> bytes | None:
            data = path.read_bytes()
            return data if digest.hash_bytes(data) == blob else None

        return self._checked(blob, read)

    def verified_path(self, blob: Digest, once: bool = False, fetches: bool = True) -> Path:
        """Return the path of a blob, after hashing its content.

        Args:
            once: do not hash a blob again that this process has hashed before.
            fetches: ask the remote for what is not here.

        Raises:
            MissingBlobError: it is not there; a bad one is dropped.
        """
        path = self.blob_path(blob)
        if not (once and blob in self._verified and is_plain(path)):
            self._checked(blob, lambda path: digest.hash_file(path) == blob or None, fetches)
            self._verified.add(blob)
        return path

    def _checked(self, blob: Digest, read: Callable[[Path], _T | None], fetches: bool = True) -> _T:
        """Return what `read` gives of the local file or, where it gives None, of a fetched one."""
        path = self.blob_path(blob)
        why = "is missing"
        for local in (True, False):
            if not local and not (fetches and self._fetch(blob)):
                break
            if not is_plain(path):
                continue
            try:
                found = read(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                why = f"cannot be read ({error.strerror})"
                continue
            if found is not None:
                return found
            _drop(path)
            why = _CORRUPT
        raise self._missing(blob, why)

    def stream(self, blob: Digest) -> Iterator[bytes]:
        """Yield the content in pieces, verified when the last one has been read.

        Raises MissingBlobError, possibly after most of the content: what was made of it must then
        be thrown away.
        """
        path = self.blob_path(blob)
        try:
            if not self.has(blob):
                raise FileNotFoundError(path)
            yield from digest.verified(digest.read_pieces(path), blob)
        except OSError as error:
            raise self._missing(blob, f"is missing ({error})") from error
        except digest.WrongContentError as error:
            _drop(path)
            raise self._missing(blob, _CORRUPT) from error

    def _missing(self, blob: Digest, why: str) -> MissingBlobError:
        return MissingBlobError(f"store {self.root}: blob {blob} {why}")

    def _fetch(self, blob: Digest) -> bool:
        """Fetch a blob from the remote, which hashes it on its way; tell whether it came."""
        if self.remote is None:
            return False
        with suppress(OSError), self._writing(self.blob_path(blob)) as file:
            if self.remote.fetch_blob(blob, file):
                self._verified.add(blob)
                return True
            raise OSError  # nothing is published
        return False

    def _push(self, blob: Digest) -> None:
        if self.remote is not None and is_plain(self.blob_path(blob)):
            self.remote.push_blob(blob, self.blob_path(blob))

    # Action results

    def get_by_key(self, key: Mapping[str, Any]) -> ActionEntry | None:
        return self.get(digest.hash_json(key))

    def get(self, action: Digest) -> ActionEntry | None:
        """Return the entry of an action, or None if there is none or it is damaged, or came of
        unsigned results that are not believed now."""
        path = self.action_path(action)
        entry = self.read_entry(path, action)
        if entry is not None and entry.unsigned and not self.believes_all:
            entry = None
        if entry is not None:
            _touch(path)
        elif self.remote is not None:
            parse = partial(ActionEntry.from_json, action=action)
            if (entry := self.remote.fetch_result(action, parse)) is not None:
                entry = replace(entry, unsigned=self.believes_all)
                with suppress(OSError):
                    self._write_entry(action, entry)
        return entry

    def read_entry(self, path: Path, action: Digest) -> ActionEntry | None:
        """Read an entry's file, which is removed if it is bad. This does not count as a use."""
        try:
            record = json.loads(path.read_bytes()) if is_plain(path) else None
            entry = ActionEntry.from_json(record, action)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError):
            entry = None
        if entry is None:
            _drop(path)
        return entry

    def put_result(
        self,
        key: Mapping[str, Any],
        result: Mapping[str, Any],
        seconds: float = 0.0,
        stages: Mapping[str, float] | None = None,
        peak: int = 0,
    ) -> Digest:
        """Store what an action gave; the blobs that it names must be there. `peak` are the bytes
        that its process held at the most.

        The remote gets the blobs first, so that no result there is without them.
        """
        action = digest.hash_json(key)
        timed = {name: round(each, 3) for name, each in (stages or {}).items()}
        entry = ActionEntry(key, result, round(seconds, 3), self.believes_all, timed, peak)
        if not fits_action(key, json.loads(digest.canonical_json(result))):
            kind = key.get("kind")
            raise PipelineError(f"a result of kind {kind} has a form that store/results.py lacks")
        self._write_entry(action, entry)
        if self.remote is not None and self.remote.settings.pushes:
            self._each(self._push, list(find_references(digest.canonical_json(result))))
            self.remote.push_result(action, replace(entry, unsigned=False).to_json())
        return action

    def share(self, actions: Iterable[Digest], blobs: Iterable[Digest]) -> None:
        """Push blobs and entries to the remote, as far as they are here and it lacks them: what
        somebody else is to find there."""
        if self.remote is None or not self.remote.settings.pushes:
            return
        self._each(self._push, list(dict.fromkeys(blobs)))
        self._each(self._push_entry, list(dict.fromkeys(actions)))

    def _push_entry(self, action: Digest) -> None:
        entry = self.read_entry(self.action_path(action), action)
        if entry is not None and self.remote is not None and not self.remote.has_result(action):
            self.remote.push_result(action, replace(entry, unsigned=False).to_json())

    # Between processes

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Keep other processes that ask for the same name waiting, so that they then find in the
        store what this one computes.

        Without a lock things are only computed twice, so neither a filesystem that has no locks nor
        a holder that hangs is an error.
        """
        from filelock import FileLock, Timeout

        path = self.root / "locks" / name
        with ExitStack() as held:
            with suppress(OSError, Timeout):
                make_folder(path.parent, self.root)
                clear_place(path)  # `FileLock` would empty the file that a link leads to
                held.enter_context(FileLock(path, timeout=LOCK_TIMEOUT))
                held.callback(_drop, path)  # those who wait for it notice, and make another
            yield

    @contextmanager
    def _writing(self, path: Path) -> Iterator[BinaryIO]:
        with self.scratch() as file:
            yield file
            self._publish(file, path)

    def _write_entry(self, action: Digest, entry: ActionEntry) -> None:
        with self._writing(self.action_path(action)) as file:
            file.write(digest.canonical_json(entry.to_json()))

    def _publish(self, file: BinaryIO, path: Path) -> None:
        make_folder(path.parent, self.root)
        publish(file, path, mode=0o444, durable=True)

    @contextmanager
    def scratch(self) -> Iterator[BinaryIO]:
        """Open a file that is in the store's folder for as long as the context lasts."""
        readme = self.root / "README"
        if not is_plain(readme):
            write_atomically(readme, _README.encode())
        with temporary(self.root / "tmp", self.root) as file:
            yield file


@cache
def _connect(settings: RemoteSettings) -> Remote:
    """Return the process's one remote of these settings, so that it is given up once if it does not
    answer."""
    from pipeline.store.remote import Remote  # which most no-op runs do without

    return Remote(settings)


# Locks that another thread holds, and fsspec's event loop, do not outlive a fork.
os.register_at_fork(after_in_child=_connect.cache_clear)


def _touch(path: Path) -> None:
    with suppress(OSError):
        os.utime(path)


def _drop(path: Path) -> None:
    """Remove what is bad; in a store that cannot be written it stays, and stays a miss."""
    with suppress(OSError):
        remove(path)
