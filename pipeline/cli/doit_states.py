"""doit's file of task states, made anew where it is damaged.

The states of our own tasks are the workspace's. What the file says of other tasks in the dodo file
is lost with it, so that these run again.
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

_SPARE = Path("build")  # where the file goes in a workspace that can't be written
_SUFFIXES = ("", "-journal", "-wal", "-shm")  # of the files that SQLite writes


class States(SqliteDB):  # type: ignore[misc]
    """doit's SQLite file, begun anew where it is damaged, instead of a traceback. It is asked for
    no task that it has no state of, as it has none of ours."""

    names: set[str]
    runs_tasks = True

    def _sqlite3(self, name: str) -> Any:
        import sqlite3  # with the first command that reads the file, as doit does

        damage = (DatabaseException, sqlite3.Error, ValueError, AttributeError)
        path = _find_place(Path(name), self.runs_tasks)
        existed = path.exists() or path.is_symlink()
        try:
            clear_place(path)  # a FIFO would block, a link lead elsewhere
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
        """Open the file and read all of it. Raises what doit would, now or later."""
        connection = super()._sqlite3(str(path))
        try:
            self._read_names(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def dump(self) -> None:
        """Write what is new. On a full disk only that is lost."""
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
    """The file for commands that run no task. They do without one that can't be written."""

    runs_tasks = False


def _find_place(path: Path, runs_tasks: bool) -> Path:
    """Return where the file of states is: elsewhere where it can't be written, as in a workspace
    whose sources are mounted read-only."""
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
    """Tell whether a live process has the file locked; the locks of dead ones are gone."""
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
