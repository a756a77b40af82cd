import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from pipeline.report.events import Event
from pipeline.report.stream import STREAM, EventStream
from tests.support.events import read_events
from tests.support.processes import wait_for

ENDED = {
    "idle_seconds": 0.0,
    "interrupted": False,
    "outcomes": {},
    "caches": {"kinds": {}, "moved": [0, 0]},
}
FACTS = {"jobs": 2, "executor": ""}
QUEUED = {"action": "0" * 64, "reason": "new"}


def action(package="pack"):
    return Event("compile", package, "run", "model", "built")


def started(folder, count=1):
    stream = EventStream(folder, **FACTS)
    for _ in range(count):
        stream.write("action-queued", action(), **QUEUED)
    return stream


def test_a_line_is_there_when_it_was_written(tmp_path):
    stream = started(tmp_path)
    first, queued = read_events(tmp_path)
    assert first["event"] == "run-started" and first["process"] == os.getpid()
    assert (queued["package"], queued["method"], queued["reason"]) == ("pack", "run", "new")
    assert first["run"] == queued["run"] and first["time"] <= queued["time"] <= time.time()
    stream.close(**ENDED)
    assert read_events(tmp_path)[-1]["event"] == "run-ended"


def test_a_run_begins_a_new_file(tmp_path):
    started(tmp_path).close(**ENDED)
    before = (tmp_path / STREAM).stat()
    EventStream(tmp_path, **FACTS).close(**ENDED)
    assert [line["event"] for line in read_events(tmp_path)] == ["run-started", "run-ended"]
    assert (tmp_path / STREAM).stat().st_ctime_ns > before.st_ctime_ns


def test_runs_at_once_share_a_file(tmp_path):
    first = started(tmp_path)
    second = started(tmp_path)
    first.close(**ENDED)
    third = started(tmp_path)  # the second one is still running
    second.close(**ENDED)
    third.close(**ENDED)
    lines = read_events(tmp_path)
    assert sorted(Counter(line["run"] for line in lines).values()) == [3, 3, 3]
    EventStream(tmp_path, **FACTS).close(**ENDED)
    assert len(read_events(tmp_path)) == 2


KILLED = """
import sys, time
from pathlib import Path
from pipeline.report.stream import EventStream
EventStream(Path(sys.argv[1]), jobs=1, executor="").write("run-killed")
time.sleep(60)
"""


def test_a_killed_run_holds_nobody_up(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
    wait_for(lambda: (tmp_path / STREAM).exists() and "killed" in (tmp_path / STREAM).read_text())
    process.send_signal(signal.SIGKILL)
    process.wait()
    started(tmp_path)
    assert len(read_events(tmp_path)) == 2


MANY = """
import sys
from pathlib import Path
from pipeline.report.stream import EventStream
for _ in range(20):
    stream = EventStream(Path(sys.argv[1]), jobs=1, executor="")
    for _ in range(20):
        stream.write("x", text="y" * 5000)
    stream.close()
"""


def test_lines_of_many_processes_are_whole(tmp_path):
    """No line of a run in progress is lost either: the file that it started in stays."""
    stream = started(tmp_path)
    command = [sys.executable, "-c", MANY, str(tmp_path)]
    others = [subprocess.Popen(command) for _ in range(3)]
    assert [other.wait() for other in others] == [0] * 3
    stream.close(**ENDED)
    lines = (tmp_path / STREAM).read_text().splitlines()
    assert len(lines) == 3 + 3 * 20 * 22
    assert all(line.startswith("{") and line.endswith("}") for line in lines)


def _a_folder(path):
    path.mkdir()


def _a_link(path):
    (path.parent / "elsewhere").write_text("kept")
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("put", [_a_folder, _a_link, os.mkfifo])
def test_what_stands_in_its_place_goes(tmp_path, put):
    put(tmp_path / STREAM)
    started(tmp_path)
    assert len(read_events(tmp_path)) == 2
    if (tmp_path / "elsewhere").exists():
        assert (tmp_path / "elsewhere").read_text() == "kept"


def test_a_stream_that_cannot_be_written_stops_no_build(tmp_path):
    (tmp_path / "build").write_text("a file")
    stream = started(tmp_path / "build" / "inner")
    stream.close(**ENDED)
    full = EventStream(tmp_path, **FACTS)
    full._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    full.write("action-queued", action(), **QUEUED)
    full.write("action-queued", action(), **QUEUED)
    assert full._file is None
