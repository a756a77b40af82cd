"""Modules imported from their source, whatever bytecode is next to it."""

import importlib
import os
import py_compile
import sys

import pytest

from pipeline.program.fresh_imports import importing_from_text


@pytest.fixture
def stale(tmp_path, monkeypatch):
    """A package and a module, edited after their bytecode was written, with equal size and time."""
    folder = tmp_path / "edited_package"
    folder.mkdir()
    for path in (folder / "__init__.py", folder / "inner.py"):
        path.write_text("value = 1\n")
        py_compile.compile(str(path))
        before = os.stat(path)
        path.write_text("value = 2\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("edited_package", "edited_package.inner"):
        sys.modules.pop(name, None)


def values():
    return [importlib.import_module(f"edited_package{name}").value for name in ("", ".inner")]


def test_python_itself_takes_the_old_bytecode(stale):
    assert values() == [1, 1]


def test_the_text_counts(stale):
    hooks = list(sys.path_hooks)
    with importing_from_text(lambda path: path.startswith(str(stale))):
        assert values() == [2, 2]
    assert sys.path_hooks == hooks
    assert not any(path.startswith(str(stale)) for path in sys.path_importer_cache)


def test_other_folders_are_imported_as_ever(stale):
    with importing_from_text(lambda path: False):
        assert values() == [1, 1]
