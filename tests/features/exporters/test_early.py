"""Exporters that are refused before they export anything."""

import functools
from functools import partial

import pytest

from pipeline.features.exporters.early import check_arities, check_syntax
from pipeline.store.errors import SourceError
from pipeline.store.remedies import explain_error
from tests.features.exporters.test_exporter import exporter

WITHOUT = "/m.py: example_inputs(): takes nothing, must take method; write `def example_"


def compile_text(root, text, suffix=".py"):
    path = root / "models" / f"hello{suffix}"
    check_syntax(path, text, partial(explain_error, root=root))


def load(text):
    module = exporter({})
    exec(text, vars(module))
    return module


def test_what_is_no_python_is_refused_before_torch_is_warmed_up(tmp_path):
    with pytest.raises(SourceError) as raised:
        compile_text(tmp_path, b"import torch\ndef export_methods()\n    pass\n")
    line = "models/hello.py:2: `def export_methods()`: SyntaxError: expected ':'"
    assert str(raised.value).startswith(line)
    with pytest.raises(SourceError, match="null bytes"):
        compile_text(tmp_path, b"x = 1\0")
    compile_text(tmp_path, b"model: bert", ".yaml")
    compile_text(tmp_path, "# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"))


def test_functions_that_take_something_else_are_refused_together():
    module = load("def example_inputs(): pass\ndef reference(*, method): pass\n")
    with pytest.raises(SourceError) as raised:
        check_arities(module)
    first, second = raised.value.args
    assert first.startswith(WITHOUT) and second.startswith("/m.py: reference(): takes method, must")


@pytest.mark.parametrize(
    "text",
    [
        "def example_inputs(method, size=3): pass\ndef constant_methods(): pass",
        "def example_inputs(*methods, **export): pass",
        "def example_inputs(name, width): pass  # `width` is a parameter of `export`",
        "example_inputs = dict(encode=[]).get",
        # A name that the export binds later doesn't count as defined before.
        "def example_inputs(): pass\ndef build():\n    global example_inputs; example_inputs = 1",
        "def example_inputs(): pass\ndef build():\n    globals()['example_inputs'] = list",
        "def example_inputs(): pass\nclass M:\n    def f(self):\n        x.example_inputs = list",
    ],
)
def test_what_an_export_may_accept_is_not_refused(text):
    check_arities(load(text))


def test_a_decorated_function_takes_what_its_wrapper_takes():
    module = exporter({})

    def example_inputs():
        return []

    @functools.wraps(example_inputs)
    def wrapper(*arguments):
        return example_inputs()

    module.example_inputs = wrapper
    check_arities(module)
