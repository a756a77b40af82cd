"""Parses the addresses of boards: `ssh://user@host:port/folder` and `adb://serial/folder`.

Configs name boards, but only the settings of a workspace have their addresses, so that a stranger's
config can't connect to anything. This module is imported with the feature's declaration.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pipeline.store.setting_table import checked, parse_text

SSH, ADB = "ssh", "adb"
# No part of an address starts with a dash, since ssh and adb would read it as an option.
_HOST = r"(?P<host>\w[\w.-]*|\[[0-9a-fA-F:.]+\])"
_FOLDER = r"(?P<folder>(/\w[\w.-]*)*)/?"
_SSH = (  # compiled only if a board is configured
    rf"ssh://((?P<user>\w[\w.-]*)@)?{_HOST}(:(?P<port>\d{{1,5}}))?{_FOLDER}"
)
_ADB = rf"adb://(?P<host>\w[\w.:-]*){_FOLDER}"
_BOARD = r"[A-Za-z][\w.-]{0,39}"
_RESERVED = {"native", "executorch", "interpreter"}  # devices that every workspace has


class BoardAddress:
    """The address of a board: how to reach it, and which folder there is ours.

    Attributes:
        text: the address as written.
        scheme: `ssh` or `adb`.
        user: the account on the board, or "" for ssh's default.
        host: a host name or address for ssh, a serial number for adb.
        port: the port of the board's ssh server, or "" for ssh's default.
        folder: the absolute path of the cache folder on the board, or "" for the default folder.
    """

    def __init__(self, text: str) -> None:
        """Parse an address. Raises ValueError if it is malformed."""
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
    """Return the addresses of boards, keyed by name. Raises ValueError if one is malformed."""
    boards = {}
    for name, text in checked(value, isinstance(value, dict)).items():
        checked(name, bool(re.fullmatch(_BOARD, name)) and name not in _RESERVED)
        boards[name] = BoardAddress(parse_text(text))
    return boards
