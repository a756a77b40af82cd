"""An index of a store, which knows its files without reading a million of them.

It is an SQLite file that can be deleted at any time. Builds don't write it: each reader brings it
up to date, by listing the folders whose modification time has changed and reading the new entries.
No folder shows when a file was last used, so the recorded time starts as that of a new file and can
be too early.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.store.digest import Digest, canonical_json, hash_json
from pipeline.store.entries import find_references
from pipeline.store.file_digests import RACY_NS
from pipeline.store.store import Store

if TYPE_CHECKING:
    from sqlite3 import Connection

_READERS, _MANY = 16, 100  # threads, for at least this many files
_SETTLING = 1.5 * RACY_NS / 1e9  # seconds


def subject(key: Mapping[str, Any]) -> Digest:
    """Return the digest of the model and the method names of a key.

    Two keys of a kind are comparable if their subjects are equal.
    """
    named = (key.get(name) for name in ("methods", "programs"))
    return hash_json(
        [key.get("model"), *(sorted(n) if isinstance(n, dict) else [] for n in named)]
    )


class Index:
    """The index of a store, over an open connection."""

    def __init__(self, store: Store, connection: Connection) -> None:
        self._store = store
        self._sql = connection
        # Limits the times of last use: a clock that was once ahead must not protect files for ever.
        self._now = time.time()
        self._touched: dict[
            str, bool
        ] = {}  # by folder, whether all forgotten files are gone

    # Bringing it up to date

    def update(self) -> None:
        """Bring the index up to date with the folders whose modification time has changed."""
        times = dict(self._sql.execute("select name, time from folders"))
        with self._sql:
            self._sql.execute("begin immediate")
            for top in ("blobs", "actions"):
                present = set(_folders(self._store.root / top))
                for name in sorted(present):
                    folder = f"{top}/{name}"
                    with suppress(OSError):
                        self._update_folder(folder, times.get(folder))
                removed = [
                    f
                    for f in times
                    if f.startswith(f"{top}/") and f.split("/")[1] not in present
                ]
                for folder in removed:
                    self._replace(folder, [])
                    self._sql.execute("delete from folders where name = ?", (folder,))

    def _update_folder(self, folder: str, recorded_time: int | None) -> None:
        path = self._store.root / folder
        now = time.time_ns()  # before the folder is read
        stamp = os.stat(path).st_mtime_ns
        if stamp == recorded_time:
            return
        with os.scandir(path) as entries:
            self._replace(folder, entries)
        # The folder may change again within this timestamp.
        settled = stamp if now - stamp > RACY_NS else 0
        self._sql.execute(
            "insert or replace into folders values (?, ?)", (folder, settled)
        )

    def _replace(self, folder: str, entries: Iterable[os.DirEntry[str]]) -> None:
        """Replace a folder's files in the index by its directory entries.

        Known files are not checked again, since the store replaces a file but never writes to it.
        """
        top, _, prefix = folder.partition("/")
        table = top.replace("actions", "results")
        query = f"select digest, inode from {table} where folder = ?"
        removed = dict(self._sql.execute(query, (folder,)).fetchall())
        new = []
        for entry in entries:
            with suppress(ValueError):  # not a name of the store
                digest = bytes.fromhex(prefix + entry.name.removesuffix(".json"))
                if removed.get(digest) == entry.inode():
                    del removed[digest]
                else:
                    new.append((digest, entry))
        for digest in removed:
            self._drop(table, digest)
        if table == "results" and len(new) >= _MANY:
            files = (entry for _, entry in new if entry.is_file(follow_symlinks=False))
            _read_ahead(file.path for file in files)
        for digest, entry in new:
            with suppress(OSError):  # a file may vanish meanwhile
                stat = entry.stat(follow_symlinks=False)
                used = min(stat.st_mtime, self._now)
                row = (digest, folder, stat.st_size, used, stat.st_ino)
                if table == "blobs":
                    self._add_blob(row)
                else:
                    self._add_result(row)

    def _add_blob(self, row: tuple[Any, ...]) -> None:
        named = "exists (select 1 from names where blob = ?1)"
        self._sql.execute(
            f"insert into blobs values (?1, ?2, ?3, ?4, ?5, {named})", row
        )

    def _add_result(self, row: tuple[Any, ...]) -> None:
        digest = Digest(row[0].hex())
        entry = self._store.read_entry(self._store.action_path(digest), digest)
        key = entry.key if entry else {}
        facts = (
            str(key.get("kind")) if entry else "damaged",
            bytes.fromhex(subject(key)),
            entry.seconds if entry else 0.0,
            entry.peak if entry else 0,
        )
        columns = "digest, folder, size, used, inode, kind, about, seconds, peak"
        marks = ", ".join("?" * (len(row) + len(facts)))
        query = f"insert into results ({columns}) values ({marks})"
        number = self._sql.execute(query, (*row, *facts)).lastrowid
        # Blobs in the key are not needed.
        names = find_references(canonical_json(entry.result)) if entry else []
        blobs = list(map(bytes.fromhex, names))
        self._sql.executemany(
            "insert into names values (?, ?)", ((b, number) for b in blobs)
        )
        self._sql.executemany(
            "update blobs set named = 1 where digest = ?", ((b,) for b in blobs)
        )

    def _drop(self, table: str, digest: bytes) -> None:
        if table == "blobs":
            self._sql.execute("delete from blobs where digest = ?", (digest,))
            return
        query = "delete from results where digest = ? returning id"
        for (number,) in self._sql.execute(query, (digest,)).fetchall():
            query = "delete from names where result = ? returning blob"
            blobs = self._sql.execute(query, (number,)).fetchall()
            loose = "not exists (select 1 from names where blob = ?1)"
            query = f"update blobs set named = 0 where digest = ?1 and {loose}"
            self._sql.executemany(query, blobs)

    # Its contents

    def blobs(self) -> tuple[int, int]:
        """Return the number of blobs and their bytes."""
        query = "select count(*), total(size) from blobs"
        number, size = self._sql.execute(query).fetchone()
        return number, int(size)

    def results(self) -> dict[str, tuple[int, int]]:
        """Return the number of results of each kind and their bytes."""
        query = "select kind, count(*), total(size) from results group by kind"
        return {
            kind: (number, int(size)) for kind, number, size in self._sql.execute(query)
        }

    def size(self) -> int:
        """Return the bytes of all files."""
        _, blob_bytes = self.blobs()
        return blob_bytes + sum(size for _, size in self.results().values())

    def find(self, kind: str, about: Digest | None, most: int) -> list[Digest]:
        """Return up to `most` results of a kind (and subject), the most recently used first."""
        where, values = ("and about = ?", [bytes.fromhex(about)]) if about else ("", [])
        query = f"select digest from results where kind = ? {where} order by used desc limit ?"
        return [
            Digest(row[0].hex())
            for row in self._sql.execute(query, [kind, *values, most])
        ]

    # Eviction, which follows the index and checks each file's time of last use

    def oldest(self, before: float) -> tuple[Digest, int] | None:
        """Return the least recently used result and its bytes.

        Returns None if all results were used since `before`.
        """
        return self._oldest("results", "true", before)

    def oldest_loose(self, before: float) -> tuple[Digest, int] | None:
        """Return the least recently used blob that no result names, and its bytes.

        Returns None if every such blob was used since `before`.
        """
        return self._oldest("blobs", "not named", before)

    def _oldest(
        self, table: str, where: str, before: float
    ) -> tuple[Digest, int] | None:
        while True:
            query = f"select digest, folder, size, used from {table} where {where} order by used"
            row = self._sql.execute(f"{query} limit 1").fetchone()
            if row is None or row[3] >= before:
                return None
            digest, used = Digest(row[0].hex()), row[3]
            try:
                latest = min(os.lstat(self._path(table, digest)).st_mtime, self._now)
            except OSError:
                self._drop(table, row[0])
                continue
            if latest <= used:
                return digest, row[2]
            query = f"update {table} set used = ? where digest = ?"
            self._sql.execute(query, (latest, row[0]))

    def _path(self, table: str, digest: Digest) -> Path:
        paths = {"blobs": self._store.blob_path, "results": self._store.action_path}
        return paths[table](digest)

    def used_since(self, time: float) -> int:
        """Return the bytes of the results and unnamed blobs that were used since then."""
        results = "select total(size) from results where used >= ?"
        blobs = "select total(size) from blobs where not named and used >= ?"
        sizes = (
            self._sql.execute(query, (time,)).fetchone()[0]
            for query in (results, blobs)
        )
        return int(sum(sizes))

    @contextmanager
    def removing(self) -> Iterator[None]:
        """Let this process remove files within the context; it must report each to `forget`.

        At the end, the folders are recorded with their new times, without being listed again,
        unless another process added a file to the store meanwhile. That shows in the time of `tmp`,
        since every file is first written there and then moved. A file that another process removes
        meanwhile turns out to be missing when it is needed.
        """
        before = self._settled_time("tmp", patient=True)
        if before:
            self.update()
        with (
            self._sql
        ):  # after an error nothing changed, and the folders' times reveal removals
            yield
            if before and self._touched:
                time.sleep(_SETTLING)
            after = {folder: self._settled_time(folder) for folder in self._touched}
            alone = bool(before) and self._settled_time("tmp") == before
            unchanged = [
                folder
                for folder, is_removed in self._touched.items()
                if alone and is_removed
            ]
            times = [(after[f] if f in unchanged else 0, f) for f in self._touched]
            self._sql.executemany("update folders set time = ? where name = ?", times)

    def _settled_time(self, folder: str, patient: bool = False) -> int:
        """Return a folder's modification time in nanoseconds, or 0 if it isn't reliable yet.

        It isn't reliable while the folder could still change without a new time. With `patient`,
        wait for a while until it is.
        """
        for pause in (0.0, _SETTLING) if patient else (0.0,):
            time.sleep(pause)
            now = time.time_ns()
            with suppress(OSError):
                if (
                    now - (stamp := os.stat(self._store.root / folder).st_mtime_ns)
                    > RACY_NS
                ):
                    return stamp
        return 0

    def forget(self, table: str, digest: Digest, is_removed: bool) -> None:
        """Drop a file from the index within `removing`.

        If the file couldn't be removed from the store, its folder is listed again at the next
        update.
        """
        folder = f"{table.replace('results', 'actions')}/{digest[:2]}"
        self._drop(table, bytes.fromhex(digest))
        self._touched[folder] = is_removed and self._touched.get(folder, True)


def _read_ahead(paths: Iterable[str]) -> None:
    """Read files in parallel ahead of time, so that the disk gets many requests at once."""
    from concurrent.futures import ThreadPoolExecutor  # not needed by a no-op run

    def read(path: str) -> None:
        with suppress(OSError), open(path, "rb") as file:
            file.read()

    with ThreadPoolExecutor(_READERS) as threads:
        list(threads.map(read, paths))


def _folders(top: Path) -> Iterator[str]:
    with suppress(OSError), os.scandir(top) as entries:
        yield from (
            entry.name for entry in entries if entry.is_dir(follow_symlinks=False)
        )
