"""Files are written, copied and moved into place."""

import os
from pathlib import Path

import pytest

from pipeline.store.files import copy_atomically, temporary


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
