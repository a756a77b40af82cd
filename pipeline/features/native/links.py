"""Define the interface of links: the commands here that run a shell's words on a board."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence


class Link(ABC):
    """Makes commands of this machine that run a shell's words on a board.

    Attributes:
        default_folder: the usual cache folder there, as its shell reads it.
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
        """Say why a command never reached the board, or lost it; "" where it did not.

        Args:
            status: the exit status of the command.
            lines: what it wrote to its stderr.
        """

    def add_remedy(self, message: str, remedies: Mapping[str, str]) -> str:
        """Return a message with what to do about it, by words that it contains."""
        for words, remedy in remedies.items():
            if words in message:
                return f"{message}; {remedy}"
        return message
