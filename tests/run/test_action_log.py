"""The log of an action: everything that it prints, up to a limit."""

import os
import subprocess
import time

import pytest

from pipeline.run import action_log
from pipeline.run.action_log import logging_to


@pytest.fixture
def bound(monkeypatch):
    monkeypatch.setattr(action_log, "MOST", 1 << 20)
    monkeypatch.setattr(action_log, "_SECONDS", 0.02)
    return 1 << 20


def test_a_short_log_is_what_was_printed(tmp_path, bound):
    log = tmp_path / "a.log"
    log.write_text("of an earlier run")
    with logging_to(log):
        os.write(1, b"from Python\n")
        subprocess.run(["echo", "from a process"], check=True)
    assert log.read_text() == "from Python\nfrom a process\n"


def test_a_long_log_keeps_its_beginning_and_its_end(tmp_path, bound):
    log, largest = tmp_path / "a.log", 0
    with logging_to(log):
        os.write(2, b"it begins\n")
        for _ in range(100):
            os.write(1, b"x" * (bound // 8))
            time.sleep(0.005)
            largest = max(largest, log.stat().st_size)
        os.write(2, b"it ends\n")
    kept = log.read_bytes()
    assert kept.startswith(b"it begins\n") and kept.endswith(b"it ends\n")
    assert b"the middle of this log is left out: it is longer than 1 MB" in kept
    assert len(kept) <= bound and largest < 6 * bound
