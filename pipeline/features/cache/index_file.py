"""The SQLite file of a store's index: opens and updates it, and recreates it if it is damaged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from pipeline.features.cache.index import Index
from pipeline.store.errors import PipelineError
from pipeline.store.files import clear_place, is_plain, remove
from pipeline.store.places import describe_remedy
from pipeline.store.store import Store

if TYPE_CHECKING:
    from sqlite3 import Connection

FILE = "index.sqlite3"
_VERSION = 2
_CACHE = 1 << 16  # KiB of its pages, allocated as they are read
_PATIENCE = 5.0  # seconds to wait for another process that writes it
_SCHEMA = """
create table folders (name text primary key, time integer) without rowid;
create table blobs (digest blob primary key, folder text, size integer, used real, inode integer,
    named integer) without rowid;
create table results (id integer primary key, digest blob unique, folder text, size integer,
    used real, inode integer, kind text, about blob, seconds real, peak integer);
create table names (blob blob, result integer, primary key (blob, result)) without rowid;
create index blobs_by_folder on blobs (folder, digest, inode);
create index blobs_by_size on blobs (size);
create index loose_blobs on blobs (used) where not named;
create index results_by_folder on results (folder, digest, inode);
create index results_by_use on results (used, size);
create index results_by_subject on results (kind, about, used);
create index results_by_kind on results (kind, size);
create index names_by_result on names (result);
"""


@contextmanager
def open_index(store: Store) -> Iterator[Index]:
    """Open a store's index, brought up to date.

    An index that is damaged or has another version is recreated; if it can't be written, or another
    process has locked it, the index is built in memory.


    Raises PipelineError if the index turns out to be damaged, locked or unwritable while in use.
    """
    import sqlite3  # not needed by a no-op run

    try:
        with closing(_open(store)) as connection:
            yield Index(store, connection)
    except sqlite3.Error as error:
        if _has_code(error, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL):
            problem = f"its index can't be written ({error})"
            raise PipelineError(describe_remedy(store.root, problem)) from error
        problem = "its index is in use by another process; run again"
        if not _is_busy(error):
            _remove(store)
            problem = (
                f"its index was damaged; run this again to create it anew ({error})"
            )
        raise PipelineError(f"store {store.root}: {problem}") from error


def _open(store: Store) -> Connection:
    import sqlite3  # not needed by a no-op run

    path = store.root / FILE
    is_writable = os.access(store.root, os.W_OK)
    for _ in range(2 if is_writable else 0):
        try:
            clear_place(path)
            return _prepare(store, sqlite3.connect(path, timeout=_PATIENCE))
        except (sqlite3.Error, OSError) as error:
            if _is_busy(error):
                break
            _remove(store)
    in_memory = sqlite3.connect(":memory:")
    if not is_writable and is_plain(path):  # another user's
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(uri, uri=True)) as connection,
        ):
            connection.backup(in_memory)
    return _prepare(store, in_memory)


def _remove(store: Store) -> None:
    """Remove an index, with the journal of any process that was killed while writing it."""
    for name in (FILE, f"{FILE}-journal"):
        with suppress(OSError):
            remove(store.root / name)


def _is_busy(error: BaseException) -> bool:
    """Return whether the error means that another process is writing the index, which is intact."""
    import sqlite3

    return _has_code(error, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _has_code(error: BaseException, *codes: int) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in codes


def _prepare(store: Store, connection: Connection) -> Connection:
    """Bring an index up to date, with its schema recreated if it differs. Raises sqlite3.Error."""
    try:
        connection.execute("pragma synchronous = off")  # the index can be recreated
        connection.execute(f"pragma cache_size = -{_CACHE}")
        (version,) = connection.execute("pragma user_version").fetchone()
        query = "select name from sqlite_master where type = 'table' order by name"
        tables = [name for (name,) in connection.execute(query).fetchall()]
        if version != _VERSION or tables != ["blobs", "folders", "names", "results"]:
            for name in tables:
                connection.execute(f'drop table "{name}"')
            connection.executescript(_SCHEMA)
            connection.execute(f"pragma user_version = {_VERSION}")
        Index(store, connection).update()
    except BaseException:
        connection.close()
        raise
    return connection
