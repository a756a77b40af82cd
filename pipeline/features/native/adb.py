"""Reaches Android devices through the system's `adb`.

Files go through `adb shell`, just like commands: its protocol returns exit statuses and leaves the
bytes of input and output unchanged. This needs Android 7 or later.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from pipeline.features.native.addresses import BoardAddress
from pipeline.features.native.links import Link

_REMEDIES = {
    "not found": "`adb devices` lists the connected devices",
    "no devices": "`adb devices` lists the connected devices",
    "unauthorized": "accept this computer's key on its screen",
    "offline": "plug it in again, or `adb reconnect`",
    "cannot connect to daemon": "run `adb start-server` to see why",
}


class AdbLink(Link):
    """The adb commands that run a shell script on an Android device."""

    default_folder = "/data/local/tmp/pte-pipeline-runner"

    def __init__(self, address: BoardAddress) -> None:
        self._serial = address.host

    def open_session(self, script: str) -> list[str]:
        return self.run(script)

    def run(self, script: str) -> list[str]:
        return ["adb", "-s", self._serial, "shell", "-T", script]

    def explain(self, status: int, lines: Sequence[str]) -> str:
        messages = [line for line in lines if line.startswith(("error:", "adb:"))]
        if not status or not messages:
            return ""
        return self.add_remedy(messages[-1].strip(), _REMEDIES)


def find_problem() -> str:
    """Return how to install adb, or "" if it is installed."""
    if shutil.which("adb"):
        return ""
    return "adb is not installed; `apt install adb`"
