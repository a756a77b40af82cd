"""Parse the addresses of boards: `ssh://user@host:port/folder` and `adb://serial/folder`.

Configs name boards; only the settings of a workspace say where they are, so that a config from a
stranger connects to nothing. The declaration of the feature imports this module.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pipeline.store.setting_table import checked, parse_text

SSH, ADB = "ssh", "adb"
# Nothing here begins with a dash, which ssh and adb would take for an option.
_HOST = r"(?P<host>\w[\w.-]*|\[[0-9a-fA-F:.]+\])"
_FOLDER = r"(?P<folder>(/\w[\w.-]*)*)/?"
_SSH = (  # compiled where a board is configured
    rf"ssh://((?P<user>\w[\w.-]*)@)?{_HOST}(:(?P<port>\d{{1,5}}))?{_FOLDER}"
)
_ADB = rf"adb://(?P<host>\w[\w.:-]*){_FOLDER}"
_BOARD = re.compile(r"[A-Za-z][\w.-]{0,39}")
_RESERVED = {"native", "executorch", "interpreter"}  # devices that everyone has


class BoardAddress:
    """The address of a board: how it is reached, and the folder that is ours there.

    Attributes:
        text: the address as it was written.
        scheme: `ssh` or `adb`.
        user: the account on the board; "" for the one that ssh chooses.
        host: a name or an address for ssh, a serial number for adb.
        port: of its ssh server; "" for the one that ssh chooses.
        folder: the absolute path of the cache folder there; "" for the usual one.
    """

    def __init__(self, text: str) -> None:
        """Parse an address. Raises ValueError."""
        match = re.fullmatch(_SSH, text) or re.fullmatch(_ADB, text)
        if match is None:
            raise ValueError(text)
        parts = match.groupdict()
        self.text = text
        self.scheme = text.partition(":")[0]
        self.user: str = parts.get("user") or ""
        self.host: str = parts["host"].strip("[]")
        self.port: str = parts.get("port") or ""
        self.folder: str = parts["folder"]


def parse_boards(value: Any, _: Path) -> dict[str, BoardAddress]:
    """Return the addresses of boards by name. Raises ValueError."""
    boards = {}
    for name, text in checked(value, isinstance(value, dict)).items():
        checked(name, bool(_BOARD.fullmatch(name)) and name not in _RESERVED)
        boards[name] = BoardAddress(parse_text(text))
    return boards
