"""Operator libraries: each is loaded once, whatever name imports it."""

import importlib
import sys

import pytest

from pipeline.features.operators.loading import load_libraries
from pipeline.store.errors import PipelineError


@pytest.fixture
def root(tmp_path, monkeypatch):
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "counted_ops.py").write_text("import sys\nsys.counted += 1\n")
    monkeypatch.setattr(sys, "counted", 0, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(sys.modules[name]) or name == "operators":
            del sys.modules[name]


@pytest.mark.parametrize("reference", ["counted_ops", "operators/counted_ops.py"])
def test_an_exporter_imports_what_is_loaded_by_the_name_in_the_folder(root, reference):
    load_libraries([reference, reference], root)
    importlib.import_module("operators.counted_ops")
    assert sys.modules["operators"].counted_ops is importlib.import_module("counted_ops")
    assert sys.counted == 1


def test_what_was_imported_by_the_name_in_the_folder_is_not_loaded_again(root):
    sys.path.insert(0, str(root))
    importlib.import_module("operators.counted_ops")
    load_libraries(["counted_ops", "operators/counted_ops.py"], root)
    assert sys.counted == 1


NAMED = """
import safetensors
from . import safetensors as own
from safetensors import SafetensorError
import _named
"""


@pytest.mark.parametrize("reference", ["safetensors", "operators/safetensors.py"])
def test_a_library_may_be_called_as_an_installed_one(root, reference):
    (root / "operators" / "safetensors.py").write_text(f"{NAMED}sys = _named.sys\nMINE = 1\n")
    (root / "operators" / "_named.py").write_text("import sys\nsys.counted += 1\n")
    load_libraries([reference], root)
    module = sys.modules["operators.safetensors"]
    assert module.own is module and module.MINE == 1 and sys.counted == 1
    assert module.safetensors is sys.modules["safetensors"] is not module


def test_a_library_at_a_path_takes_no_installed_name(root):
    (root / "json.py").write_text("import json\nassert json.loads\nimport sys\nsys.counted += 1\n")
    before = sys.modules["json"]
    load_libraries(["./json.py"], root)
    assert sys.modules["json"] is before and sys.counted == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import json\nraise RuntimeError('no kernels')\n", ":2: RuntimeError: no kernels"),
        ("def f(:\n", ":1: SyntaxError: "),
        ("from . import nothing\n", ":1: ImportError: "),
    ],
)
def test_a_library_that_raises_is_named_with_its_line(root, text, words):
    (root / "operators" / "torchao.py").write_text(text)
    with pytest.raises(PipelineError, match="operators: torchao: cannot be loaded") as caught:
        load_libraries(["torchao"], root)
    assert f"(operators/torchao.py{words}" in str(caught.value)
