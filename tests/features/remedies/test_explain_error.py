"""Errors that ended an export or a lowering: line, operator, full reason and remedy."""

import importlib.util
import re
from collections import defaultdict

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

from pipeline.compile.lower import lower
from pipeline.compile.steps import timed_steps
from pipeline.features.remedies.explain_error import explain_error
from pipeline.features.remedies.remedies import add_remedy
from pipeline.features.remedies.table import REMEDIES
from pipeline.run.stages import Stages
from pipeline.store.errors import PipelineError
from pipeline.store.reasons import reason

EXPORTER = """\
import dataclasses
import torch


@dataclasses.dataclass
class Result:
    value: torch.Tensor


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.prelu = torch.nn.PReLU()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        y = x.relu()
        return {returned}


def build():
    {built}


def export_methods():
    build()
    return {{"forward": torch.export.export(Model(), (torch.ones(4, 4),){options})}}
"""


@pytest.fixture
def exporter(tmp_path):
    def write(returned="y", built="pass", options=""):
        path = tmp_path / "models" / "model.py"
        path.parent.mkdir()
        path.write_text(EXPORTER.format(returned=returned, built=built, options=options))
        spec = importlib.util.spec_from_file_location("model", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.export_methods

    return write


def explain(function, root):
    with pytest.raises(Exception) as caught:
        function()
    return explain_error(caught.value, root)


LINE = "models/model.py:18: `return "


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"built": "raise ValueError('no key\\nkeys: a, b')"},
            r"models/model.py:22: `raise ValueError.*`: ValueError: no key; keys: a, b",
        ),
        (
            {"built": "import module_that_nobody_has"},
            r"models/model.py:22: `import module.*`: ModuleNotFoundError: .*; install "
            r"module_that_nobody_has into .* or put module_that_nobody_has.py next to .*",
        ),
        (
            {"built": "open('no/such.pt')"},
            r"models/model.py:22: `open.*`: no/such.pt: No such file or directory",
        ),
        (
            {"returned": "y if x.sum() > 0 else x"},
            LINE + r"y if .*`: GuardOnDataDependentSymNode: Could not guard on data-dependent "
            r"expression Eq\(u0, 1\).*; use torch.where or torch.cond .*",
        ),
        (
            {"returned": "y if x.sum() > 0 else x", "options": ", strict=True"},
            LINE + r"y if .*`: Unsupported: Data-dependent branching; Explanation: .*; use torch.*",
        ),
        (
            {"returned": "Result(y)"},
            r"models/model.py:27: .*: Found <class 'model.Result'> in output, which is not a known "
            r"type.*; return a tensor, or a tuple, .* torch.export.register_dataclass\(Class, .*\)",
        ),
        (
            {"returned": "torch.nn.functional.linear(y, torch.ones(2, 3))"},
            LINE + r"torch.*`: RuntimeError: a and b must have same reduction dim, .*\[3, 2\].*",
        ),
        (
            {"returned": "self.weight.mul_(2) + y"},
            LINE + r"self.*: a leaf Variable that requires grad .*; store the value that the model "
            r"changes in a buffer \(register_buffer\).*",
        ),
        (
            {"options": ", dynamic_shapes={'x': {0: torch.export.Dim('n', min=5)}}"},
            r"models/model.py:27: .*: UserError: .* For more information|.*n.*",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value.values()))[:20],
)
def test_what_ends_an_export_is_explained_whole(exporter, tmp_path, parts, said):
    with torch.no_grad() if "linear" in str(parts) else torch.enable_grad():
        text = explain(exporter(**parts), tmp_path)
    assert re.fullmatch(said, text), text
    assert "TORCH_LOGS" not in text and "draft_export" not in text and "File " not in text


def test_an_exporter_that_is_no_python_has_a_line(tmp_path):
    path = tmp_path / "models" / "broken.py"
    text = explain(lambda: compile("x = {\n", str(path), "exec"), tmp_path)
    assert text.startswith("models/broken.py:1: `x = {`: SyntaxError: '{' was never closed")


def test_an_operator_that_is_not_core_aten_has_its_line_and_our_key(exporter, tmp_path):
    programs = exporter("torch.linalg.qr(y)[0]")()

    def fail():
        with timed_steps(Stages().step):
            lower(programs, {"forward": []})

    assert explain(fail, tmp_path) == (
        "models/model.py:18: `return torch.linalg.qr(y)[0]`: aten.linalg_qr.default: to edge: "
        "SpecViolationError: Operator torch._ops.aten.linalg_qr.default is not in Core ATen opset; "
        "replace it with other operators; or, if a backend supports it or the app links a kernel "
        "for it, list it in the method's config, `edge: "
        "{core_aten_ops_exceptions: [aten.linalg_qr.default]}`"
    )


def test_all_operators_that_are_not_core_aten_are_named(exporter, tmp_path):
    """Each is named once."""
    programs = exporter("torch.cummax(y, 0)[0] + torch.linalg.qr(y)[0] + torch.cummax(y, 1)[0]")()
    text = explain(lambda: lower(programs, {"forward": []}), tmp_path)
    first, _, others = text.partition("; the same applies to ")
    assert first.startswith(LINE) and "Operator torch._ops.aten.cummax.default is not in" in first
    assert others.startswith("aten.linalg_qr.default (models/model.py:18); replace it with other")
    assert "[aten.cummax.default, aten.linalg_qr.default]}`" in others


def test_what_a_backend_cannot_compile_has_its_own_words(exporter, tmp_path):
    programs = exporter("self.prelu(y)")()

    def fail():
        with timed_steps(Stages().step):
            lower(programs, {"forward": [XnnpackPartitioner()]})

    text = explain(fail, tmp_path)
    assert text.startswith(
        "models/model.py:18: `return self.prelu(y)`: aten.prelu.default: preprocess XnnpackBackend:"
    )
    assert "AssertionError: Attempting to convert non-NHWC compatible node to NHWC" in text
    assert text.endswith("partitioner's options (`doit backends` lists them)")


def test_a_file_beside_the_workspace_or_of_a_library_is_no_place(tmp_path):
    (tmp_path / "site-packages").mkdir()
    path = tmp_path / "site-packages" / "library.py"
    code = compile("raise ValueError('x')", str(path), "exec")
    assert explain(lambda: exec(code), tmp_path) == "ValueError: x"
    assert explain(lambda: exec(code), tmp_path / "other") == "ValueError: x"


def test_errors_of_ours_stay_as_they_are(tmp_path):
    error = PipelineError("a.yaml: is wrong", "b.yaml: too")
    assert explain_error(error, tmp_path) == "a.yaml: is wrong\nb.yaml: too"


def test_a_reason_is_that_of_the_first_cause_too():
    try:
        try:
            raise AssertionError("4D weight required\n\n  got: 2D")
        except AssertionError as error:
            raise Exception("An error occurred when running a pass") from error
    except Exception as error:
        assert reason(error) == (
            "An error occurred when running a pass: AssertionError: 4D weight required; got: 2D"
        )
    assert reason(KeyError()) == "KeyError"


def test_a_reason_without_end_keeps_its_beginning_and_its_end():
    text = reason(ValueError("first " + "x" * 100_000 + " last"))
    assert len(text) < 1500 and text.startswith("first x") and text.endswith("x last")


@pytest.mark.parametrize("remedy", REMEDIES, ids=lambda each: each.name)
def test_a_remedy_is_said_once(remedy):
    said = remedy.text.format_map(defaultdict(lambda: "name"))
    assert "{{" not in said and not said.endswith(".")
    assert add_remedy("nothing known.") == "nothing known."


def test_a_remedy_is_not_said_again():
    once = add_remedy("No module named 'timm.models'.")
    assert once.startswith("No module named 'timm.models'; install timm into")
    assert add_remedy(once) == once


def test_a_traceback_that_is_none_is_no_part_of_a_reason():
    text = "It is so.\n\nWhile executing %x : f\nOriginal traceback:\nNone\nUse tlparse to see it"
    assert reason(RuntimeError(text)) == "It is so."
