"""doit's file of task states, mended where it is damaged.

The states of our own tasks are the workspace's. What the file says of other tasks in the dodo file
is lost with it, so that these run again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from doit.dependency import DatabaseException, SqliteDB
from doit.exceptions import InvalidDodoFile

from pipeline.store.files import clear_place, remove
from pipeline.store.reasons import reason

_BESIDE = ("", "-journal", "-wal", "-shm")  # what SQLite writes


def mend_states() -> None:
    """Let doit begin anew where its SQLite file is damaged, instead of ending with a traceback, and
    ask it for no task that it has no state of, as it has none of ours.

    It can go when doit does it.
    """
    original = SqliteDB._sqlite3
    if getattr(original, "ours", False):
        return

    def open_states(states: Any, name: str) -> Any:
        import sqlite3  # with the first command that reads the file, as doit does

        damage = (DatabaseException, sqlite3.Error, ValueError, AttributeError)
        path = Path(name)
        there = path.exists() or path.is_symlink()
        try:
            clear_place(path)  # a FIFO would block, a link lead elsewhere
            return _open(original, states, path)
        except damage as error:
            if _is_busy(error):
                raise InvalidDodoFile(f"{name}: is in use by another doit; run again") from error
        except OSError as error:
            raise _unwritable(name, error) from error
        try:
            for suffix in _BESIDE:
                remove(path.with_name(path.name + suffix))
            opened = _open(original, states, path)
        except (OSError, *damage) as error:
            raise _unwritable(name, error) from error
        if there:
            print(f"{name}: was damaged and is made anew", file=sys.stderr)
        return opened

    open_states.ours = True  # type: ignore[attr-defined]
    SqliteDB._sqlite3 = open_states
    ask = SqliteDB._get_task_data
    SqliteDB._get_task_data = lambda own, task: ask(own, task) if task in own.names else {}


def _open(original: Any, states: Any, path: Path) -> Any:
    """Open the file and read all of it. Raises what doit would, now or later."""
    connection = original(states, str(path))
    states.names = set()
    try:
        for row in connection.execute("select task_id, task_data from doit"):
            row["task_data"].get("")
            states.names.add(row["task_id"])
    except BaseException:
        connection.close()
        raise
    return connection


def _is_busy(error: BaseException) -> bool:
    """Tell whether a live process has the file locked; the locks of dead ones are gone."""
    import sqlite3

    causes = (error, error.__context__)
    codes = [getattr(each, "sqlite_errorcode", None) for each in causes]
    return any(code is not None and code & 0xFF == sqlite3.SQLITE_BUSY for code in codes)


def _unwritable(name: str, error: BaseException) -> InvalidDodoFile:
    why = getattr(error, "strerror", None) or reason(error)
    return InvalidDodoFile(f"{name}: can't be opened or made anew: {why}")
