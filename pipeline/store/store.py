"""The store: blobs by content digest and action results by action digest, in one folder.

An action result carries a digest of itself and is checked when it is read, like a blob. Nothing is
ever unpickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.store import digest
from pipeline.store.blobs import BlobStore
from pipeline.store.blobs import MissingBlobError as MissingBlobError
from pipeline.store.digest import Digest
from pipeline.store.entries import ANYONE, ActionEntry, find_references, fits_action
from pipeline.store.errors import PipelineError
from pipeline.store.files import clear_place, is_plain, make_folder, open_locked
from pipeline.store.folder import drop, touch
from pipeline.store.places import CORRECTIONS, VOUCHERS, action_name, own_places

if TYPE_CHECKING:
    from pipeline.store.remote_tier import RemoteTierSettings


@lru_cache(maxsize=8)  # a build reads the entries of its last methods again and again
def _parse_entry(content: bytes, action: Digest) -> ActionEntry | None:
    return ActionEntry.from_json(json.loads(content), action)


def _parse_fetched(action: Digest, record: Any, voucher: str) -> ActionEntry | None:
    entry = ActionEntry.from_json(record, action)
    return entry and entry._replace(vouchers=(voucher,))


def _append(folder: Path, name: str, content: str) -> None:
    make_folder(folder, folder)
    with open(folder / name, "a", encoding="ascii") as file:
        file.write(content)


class Store(BlobStore):
    """Blobs, and the results of actions, which refer to blobs.

    If the store exceeds `cap`, a size in bytes, after a run, the least recently used results are
    evicted.
    """

    def __init__(
        self,
        root: Path,
        remote: RemoteTierSettings | None = None,
        cap: int | None = None,
        overflow: Path | None = None,
    ) -> None:
        super().__init__(root, remote, overflow)
        self.cap = cap

    def __reduce__(self) -> Any:  # a worker verifies blobs itself
        return Store, (self.root, self._remote, self.cap, self.overflow)

    @property
    def believes_all(self) -> bool:
        """Whether unsigned results of the remote are trusted."""
        return self._remote is not None and self._remote.believes_all

    @property
    def trust(self) -> str:
        """A suffix for names of files that depend on which remote results are trusted."""
        return "" if self._remote is None else f"-{self._remote.fingerprint()}"

    @property
    def own_places(self) -> list[Path]:
        """The paths that builds write; anything else in the store's folder is not the store's."""
        return own_places(self.root)

    def action_path(self, action: Digest) -> Path:
        return self.find(action_name(action))

    def ask(self, actions: Iterable[Digest]) -> None:
        """Fetch the entries of actions that are missing here."""
        self.each_at_once(self.get, self.lacking(actions, self.action_path))

    def get_by_key(self, key: Mapping[str, Any]) -> ActionEntry | None:
        return self.get(digest.hash_json(key))

    def get(self, action: Digest) -> ActionEntry | None:
        """Return the entry of an action, or None if there is none.

        An entry that is damaged, or derives from remote results that are no longer trusted, counts
        as missing. A missing entry is fetched from the remote, unless it was found to be wrong.
        """
        path = self.action_path(action)
        entry = self.read_entry(path, action)
        if entry is not None and not self.trusts(entry.vouchers):
            entry = None
        if entry is not None:
            touch(path)
        elif self.remote is not None and action not in self._read_lines(CORRECTIONS):
            parse = partial(_parse_fetched, action)
            if (entry := self.remote.fetch_result(action, parse)) is not None:
                try:  # before anything is derived from it
                    self._add_lines(VOUCHERS, entry.vouchers)
                except OSError:
                    return None  # results derived from it would look like our own
                with suppress(OSError):
                    self._write_entry(action, entry.encode())
        return entry

    def trusts(self, vouchers: Iterable[str]) -> bool:
        """Return whether all vouchers of a result are trusted now."""
        remote = self.remote
        return all(
            remote is not None and remote.trusts(voucher) for voucher in vouchers
        )

    def find_vouchers(self) -> tuple[str, ...]:
        """Return the vouchers for results that are made here now.

        These are all the trusted vouchers whose results this store took from a remote, since any
        new result may derive from them; and `ANYONE`, if unsigned results are trusted.
        """
        vouchers = {
            voucher for voucher in self._read_lines(VOUCHERS) if self.trusts([voucher])
        }
        if self.believes_all:
            vouchers.add(ANYONE)
        return tuple(sorted(vouchers))

    @property
    def corrections(self) -> str:
        """The number of results found to contradict their archives, as a string, or "" for none.

        It is part of cache keys, so that values derived from such a result are no longer used.
        """
        corrections = len(self._read_lines(CORRECTIONS))
        return str(corrections) if corrections else ""

    def distrust(self, action: Digest) -> None:
        """Drop an action's result, which contradicts its archive, and never fetch it again."""
        with suppress(OSError):
            self._add_lines(CORRECTIONS, [action])
        drop(self.action_path(action))

    def _read_lines(self, name: str) -> set[str]:
        """Return the lines of a file, from both the store and the overflow."""
        lines: set[str] = set()
        for folder in filter(None, (self.root, self.overflow)):
            with suppress(OSError, ValueError):
                lines.update((folder / name).read_text(encoding="ascii").split())
        return lines

    def _add_lines(self, name: str, lines: Iterable[str]) -> None:
        """Add the lines that a file lacks. Raises OSError if they can't be written."""
        new = sorted(set(lines) - self._read_lines(name))
        if not new:
            return
        content = "".join(f"{line}\n" for line in new)
        try:
            _append(self.root, name, content)
        except OSError as error:
            _append(self._find_overflow(error), name, content)

    def read_entry(self, path: Path, action: Digest) -> ActionEntry | None:
        """Read an entry's file, and delete it if it is damaged. This does not count as a use."""
        try:
            entry = _parse_entry(path.read_bytes(), action) if is_plain(path) else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError):
            entry = None
        if entry is None:
            drop(path)
        return entry

    def has_results(self) -> bool:
        """Return whether any action was run with this store, or a remote could have results."""
        folders = filter(None, (self.root, self.overflow))
        return self.remote is not None or any(
            os.path.isdir(folder / "actions") for folder in folders
        )

    def put_result(
        self,
        key: Mapping[str, Any],
        result: Mapping[str, Any],
        seconds: float = 0.0,
        stages: Mapping[str, float] | None = None,
        peak: int = 0,
        pushes: bool = True,
    ) -> Digest:
        """Store the result of an action; the blobs that it names must already be in the store.

        With `pushes`, the remote gets it too, the blobs first, so that no result there lacks its
        blobs.

        Args:
            seconds: the wall time of the action.
            stages: the seconds of its stages, by name.
            peak: the most memory that the action's process held, in bytes.
        """
        timed = {name: round(duration, 3) for name, duration in (stages or {}).items()}
        entry = ActionEntry(
            key, result, round(seconds, 3), self.find_vouchers(), timed, peak
        )
        texts = entry.encode()
        action = digest.hash_bytes(texts["key"])
        if not fits_action(key, json.loads(texts["result"])):
            kind = key.get("kind")
            raise PipelineError(
                f"a result of kind {kind} has a form that store/results.py does not describe"
            )
        self._write_entry(action, texts)
        if pushes and self.remote is not None and self.remote.settings.pushes:
            self.each_at_once(self.push, find_references(texts["result"]))
            self.remote.push_result(action, entry._replace(vouchers=()).to_json())
        return action

    def share(self, actions: Iterable[Digest], blobs: Iterable[Digest]) -> None:
        """Push local blobs and entries that the remote lacks, so that others find them."""
        if self.remote is None or not self.remote.settings.pushes:
            return
        self.each_at_once(self.push, list(dict.fromkeys(blobs)))
        self.each_at_once(self._push_entry, list(dict.fromkeys(actions)))

    def _push_entry(self, action: Digest) -> None:
        entry = self.read_entry(self.action_path(action), action)
        if (
            entry is not None
            and self.remote is not None
            and self.trusts(entry.vouchers)
            and not self.remote.has_result(action)
        ):
            self.remote.push_result(action, entry._replace(vouchers=()).to_json())

    def _write_entry(self, action: Digest, texts: Mapping[str, bytes]) -> None:
        with self.writing(action_name(action)) as file:
            file.write(digest.join_fields(texts))

    # Between processes

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Make other processes that request the same name wait until the block ends.

        They then find in the store what this process computes. Without the lock, the only harm is
        that work is done twice, so neither a filesystem without locks nor a holder that hangs is an
        error.
        """
        path = self.root / "locks" / name
        with ExitStack() as stack:
            with suppress(OSError):
                make_folder(path.parent, self.root)
                clear_place(path)
                stack.enter_context(open_locked(path, 900))
                # Waiting processes notice that the file is gone, and make another.
                stack.callback(drop, path)
            yield
