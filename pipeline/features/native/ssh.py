"""Reaches boards through the system's OpenSSH client.

It uses the user's own configuration, keys and known hosts, and never prompts on a terminal. All
commands of a batch share one connection.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pipeline.features.native.addresses import BoardAddress
from pipeline.features.native.links import Link

_CONNECTION_FAILED = 255
_OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "LogLevel=ERROR",
    "ClearAllForwardings=yes",
    "RequestTTY=no",
    "RemoteCommand=none",
    "PermitLocalCommand=no",
)
# Remedies for messages of ssh, keyed by words that the message contains.
_REMEDIES = {
    "Connection refused": "is its ssh server running, on that port?",
    "Permission denied": "add this user's public key to ~/.ssh/authorized_keys there, or set "
    "IdentityFile for the host in ~/.ssh/config here",
    "Host key verification failed": "connect once manually, and compare the fingerprint",
    "Could not resolve": "correct its name in native_boards",
    "timed out": "is it on, and on this network?",
    "No route to host": "is it on, and on this network?",
}


class SshLink(Link):
    """The ssh commands that run a shell script on a Linux board.

    Args:
        folder: a folder for this batch alone, for the socket of its connection.
    """

    default_folder = "${XDG_CACHE_HOME:-$HOME/.cache}/pte-pipeline-runner"

    def __init__(self, address: BoardAddress, folder: Path) -> None:
        port = ["-p", address.port] if address.port else []
        user = ["-l", address.user] if address.user else []
        options = [word for option in _OPTIONS for word in ("-o", option)]
        self._words = [*options, "-o", f"ControlPath={folder}/c", *port, *user]
        self._host = address.host

    def open_session(self, script: str) -> list[str]:
        return ["ssh", "-o", "ControlMaster=yes", *self._words, self._host, script]

    def run(self, script: str) -> list[str]:
        return ["ssh", "-o", "ControlMaster=no", *self._words, self._host, script]

    def explain(self, status: int, lines: Sequence[str]) -> str:
        if status != _CONNECTION_FAILED:
            return ""
        if not lines:
            return "the connection was lost"
        return self.add_remedy(lines[-1].strip(), _REMEDIES)


def find_problem() -> str:
    """Return how to install an ssh client, or "" if one is installed."""
    if shutil.which("ssh"):
        return ""
    return "ssh is not installed; `apt install openssh-client`"
