"""doit's file of task states, which is created again if it is damaged.

The workspace keeps the states of our own tasks. The states of other tasks in the dodo file are lost
with the file, so these tasks run again.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from doit.dependency import DatabaseException, SqliteDB
from doit.exceptions import InvalidDodoFile

from pipeline.store.files import clear_place, remove
from pipeline.store.reasons import reason

_SPARE = Path("build")  # the folder for the file if the workspace is read-only
_SUFFIXES = ("", "-journal", "-wal", "-shm")  # of the files that SQLite writes


class States(SqliteDB):  # type: ignore[misc]
    """doit's SQLite file; if damaged, it is created again instead of ending doit with a traceback.

    Tasks without a state in the file, like all of ours, are not looked up.
    """

    names: set[str]
    runs_tasks = True

    def _sqlite3(self, name: str) -> Any:
        import sqlite3  # imported late, as in doit

        damage = (DatabaseException, sqlite3.Error, ValueError, AttributeError)
        path = _find_place(Path(name), self.runs_tasks)
        existed = path.exists() or path.is_symlink()
        try:
            clear_place(path)  # a FIFO would block; a link would lead elsewhere
            return self._open(path)
        except damage as error:
            if _is_busy(error):
                raise InvalidDodoFile(
                    f"{name}: is in use by another doit process; run again"
                ) from error
        except OSError as error:
            raise _unwritable(name, error) from error
        try:
            for suffix in _SUFFIXES:
                remove(path.with_name(path.name + suffix))
            connection = self._open(path)
        except (OSError, *damage) as error:
            raise _unwritable(name, error) from error
        if existed:
            print(f"{name}: was damaged; it is created again", file=sys.stderr)
        return connection

    def _open(self, path: Path) -> Any:
        """Open the file and read all of it, to raise any error now that doit would raise later."""
        connection = super()._sqlite3(str(path))
        try:
            self._read_names(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def dump(self) -> None:
        """Write changed states; on a full disk, only these are lost."""
        import sqlite3

        try:
            super().dump()
        except sqlite3.OperationalError as error:
            line = f"{self.name}: can't be written: {reason(error)}; tasks of your own run again"
            print(line, file=sys.stderr)

    def _read_names(self, connection: Any) -> None:
        self.names = set()
        for row in connection.execute("select task_id, task_data from doit"):
            row["task_data"].get("")
            self.names.add(row["task_id"])

    def _get_task_data(self, task_id: str) -> Any:
        if task_id in self.names:
            return super()._get_task_data(task_id)
        return {}


class StatesToRead(States):
    """The file for commands that run no tasks; they work without it if it can't be written."""

    runs_tasks = False


def _find_place(path: Path, runs_tasks: bool) -> Path:
    """Return the path of the file, which is elsewhere if the given one can't be written.

    This happens in a workspace whose sources are mounted read-only, for example.
    """
    if _is_writable(path):
        return path
    with suppress(OSError):
        _SPARE.mkdir(exist_ok=True)
    if _is_writable(_SPARE / path.name):
        return _SPARE / path.name
    return path if runs_tasks else Path(":memory:")


def _is_writable(path: Path) -> bool:
    return os.access(path if os.path.lexists(path) else path.parent, os.W_OK)


def _is_busy(error: BaseException) -> bool:
    """Return whether another process has the file locked; a process's locks end with it."""
    import sqlite3

    for cause in (error, error.__context__):
        code = getattr(cause, "sqlite_errorcode", None)
        if code is not None and code & 0xFF == sqlite3.SQLITE_BUSY:
            return True
    return False


def _unwritable(name: str, error: BaseException) -> InvalidDodoFile:
    why = getattr(error, "strerror", None) or reason(error)
    return InvalidDodoFile(
        f"{name}: can't be opened or created again: {why}; `--db-file` names another"
    )
