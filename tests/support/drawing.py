"""Charts of tests are drawn in a helper process, of which there is one for a test process and its
forks.

The process that draws takes 0.4 CPU seconds to start, which each forked doit (`forked.py`) would
take again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from functools import cache
from multiprocessing.connection import Client, Listener, arbitrary_address
from pathlib import Path
from typing import Any

import vl_convert

from pipeline.report import charts


def draw_in_helper() -> None:
    """Draw charts of this process and of its forks in another, which all of them share."""
    charts._convert = _submit  # type: ignore[assignment]


@cache
def start_helper() -> str:
    """Start the process that draws, before a fork needs it; return its address."""
    address = arbitrary_address("AF_UNIX")
    helper = subprocess.Popen(
        [sys.executable, "-m", __name__, address],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert helper.stdout is not None and helper.stdout.readline() == b"ready\n"
    _KEPT.append(helper)
    return address


_KEPT: list[Any] = []


def _submit(name: str, spec: dict[str, Any]) -> str:
    with Client(start_helper()) as connection:
        connection.send((name, json.dumps(spec)))
        drawn = connection.recv()
    if isinstance(drawn, str):
        return drawn
    raise drawn


@cache
def _draw(name: str, spec: str) -> str | ValueError:
    try:
        return getattr(vl_convert, name)(json.loads(spec))
    except ValueError as error:
        return ValueError(str(error))


def _serve(address: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with Listener(address) as listener:
        print("ready", flush=True)
        while True:
            with listener.accept() as connection:
                connection.send(_draw(*connection.recv()))


def _end_with_parent() -> None:
    """Wait for the end of standard input, whose other end the test process and its forks hold."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    _serve(sys.argv[1])
