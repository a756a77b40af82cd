"""The interface of links: commands on this machine that run a shell script on a board."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence


class Link(ABC):
    """Makes the commands, on this machine, that run a shell script on a board.

    Attributes:
        default_folder: the default cache folder on the board, in the syntax of its shell.
    """

    default_folder: str

    @abstractmethod
    def open_session(self, script: str) -> list[str]:
        """Return the command of the process that lasts as long as a batch."""

    @abstractmethod
    def run(self, script: str) -> list[str]:
        """Return a command that runs while the session lasts."""

    @abstractmethod
    def explain(self, status: int, lines: Sequence[str]) -> str:
        """Return why a command never reached the board or lost it, or "" if neither happened.

        Args:
            status: the exit status of the command.
            lines: what the command wrote to its stderr.
        """

    def add_remedy(self, message: str, remedies: Mapping[str, str]) -> str:
        """Return a message with the remedy whose key it contains, if `remedies` has one."""
        for words, remedy in remedies.items():
            if words in message:
                return f"{message}; {remedy}"
        return message
