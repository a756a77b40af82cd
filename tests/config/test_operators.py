"""Libraries of operators: each is loaded once, by whichever name it is imported."""

import importlib
import sys

import pytest

from pipeline.config.operators import load_libraries


@pytest.fixture
def root(tmp_path, monkeypatch):
    (tmp_path / "operators").mkdir()
    (tmp_path / "operators" / "counted_ops.py").write_text("import sys\nsys.counted += 1\n")
    monkeypatch.setattr(sys, "counted", 0, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("counted_ops", "operators", "operators.counted_ops"):
        sys.modules.pop(name, None)


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
