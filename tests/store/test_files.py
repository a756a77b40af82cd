"""Files are written, copied and moved into place."""

import fcntl
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.store.files import copy_atomically, open_locked, temporary


def test_a_file_is_copied_where_the_kernel_copies_none(tmp_path, monkeypatch):
    """As on macOS, where Python has no `copy_file_range`."""
    monkeypatch.delattr(os, "copy_file_range")
    (tmp_path / "a").write_bytes(b"content")
    copy_atomically(tmp_path / "a", tmp_path / "folder" / "b", tmp_path)
    assert (tmp_path / "folder" / "b").read_bytes() == b"content"


def test_a_folder_that_takes_no_file_is_named():
    with pytest.raises(OSError) as caught, temporary(Path("/proc/self")):
        pass
    assert caught.value.filename == "/proc/self"


def test_a_locked_file_is_waited_for(tmp_path):
    path = tmp_path / "lock"
    with open_locked(path, 0) as first, ThreadPoolExecutor(1) as threads:
        with pytest.raises(BlockingIOError):
            open_locked(path, 0)
        waiting = threads.submit(open_locked, path, 60)
        time.sleep(0.2)
        assert not waiting.done()
        first.close()
        waiting.result().close()


def test_a_file_that_was_removed_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    flock = fcntl.flock

    def lock_late(file, operation):
        if not removed:
            removed.append(path.unlink())
        flock(file, operation)

    removed = []
    monkeypatch.setattr(fcntl, "flock", lock_late)
    with open_locked(path, 0) as file:
        assert os.path.samestat(os.fstat(file.fileno()), path.stat())
