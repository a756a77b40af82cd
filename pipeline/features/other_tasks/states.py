"""Reads doit's file of task states for commands that don't run tasks."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from doit.dependency import DatabaseException

from pipeline.cli.doit_states import States


class RecordedStates(States):
    """A read-only copy of doit's file of task states, empty if the file can't be read."""

    def _sqlite3(self, name: str) -> Any:
        import sqlite3

        connection = self._open(Path(":memory:"))
        address = f"{Path(name).absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(address, uri=True)) as file:
                file.backup(connection)
            self._read_names(connection)
        except (DatabaseException, sqlite3.Error, ValueError, AttributeError):
            self.names = set()
        return connection
