"""Lines of a model's source, from the traces that torch.export writes into nodes."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipeline.program.source_lines import describe_node, source_line


def node(trace, *modules):
    stack = {str(n): (f"m{n}", kind) for n, kind in enumerate(modules)}
    return SimpleNamespace(name="add_3", meta={"stack_trace": trace, "nn_module_stack": stack})


def frame(file, line, function, code="x + y"):
    return f'  File "{file}", line {line}, in {function}\n    {code}\n'


@pytest.fixture
def root(tmp_path):
    (tmp_path / "models" / "parts").mkdir(parents=True)
    for name in ("small.py", "parts/helpers.py"):
        (tmp_path / "models" / name).write_text("")
    return tmp_path


def test_a_file_is_named_as_in_this_workspace(root):
    trace = frame("/elsewhere/ci/models/small.py", 12, "forward")
    assert str(source_line(node(trace, "a.small.Small"), root)) == (
        "x + y  # models/small.py:12, in Small.forward"
    )


def test_of_a_file_of_this_workspace_no_end_of_its_path_is_looked_for(root):
    """Files that an exporter looks for are inputs: `INPUTS = []` wouldn't cover the suffixes."""
    file = root / "models" / "small.py"
    decoy = root.joinpath(*file.parts[1:])
    decoy.parent.mkdir(parents=True)
    decoy.touch()
    assert source_line(node(frame(file, 12, "forward"), "Small"), root).file == "models/small.py"


def test_the_innermost_call_in_the_workspace_counts(root):
    trace = frame("/a/models/small.py", 3, "forward", "return half(x)")
    trace += frame("/a/models/parts/helpers.py", 7, "half", "return x / 2")
    trace += frame("/v/site-packages/torch/nn/functional.py", 99, "linear", "return f()")
    assert str(source_line(node(trace, "Small", "Half"), root)) == (
        "return x / 2  # models/parts/helpers.py:7, in half"
    )


MODEL = """\
import torch


class Layer(torch.nn.Module):
    def forward(self, x):
        return self.norm(x)


class Small(torch.nn.Module):
    def forward(self, x):
        def shifted(y):
            return y + 1

        return shifted(self.layer(x))


def half(x):
    return [y / 2 for y in (x,)][0]
"""


@pytest.mark.parametrize(
    ("line", "code", "function"),
    [
        (6, "return self.norm(x)", "Layer.forward"),
        (12, "return y + 1", "Small.forward.shifted"),
        (14, "return shifted(self.layer(x))", "Small.forward"),
        (18, "return [y / 2 for y in (x,)][0]", "half"),
    ],
)
def test_a_line_is_in_the_function_that_the_file_has_there(root, line, code, function):
    """Even if the node is in a library's module, whose forward is in another file."""
    (root / "models" / "small.py").write_text(MODEL)
    trace = frame("/a/models/small.py", line, "forward", code)
    modules = ("small.Small", "small.Layer", "torch.nn.modules.normalization.LayerNorm")
    assert source_line(node(trace, *modules), root).function == function


def test_a_file_that_is_another_by_now_names_no_class_of_another_file(root):
    (root / "models" / "small.py").write_text(MODEL)
    trace = frame("/a/models/small.py", 6, "forward", "return self.gone(x)")
    modules = ("small.Small", "torch.nn.modules.normalization.LayerNorm")
    assert source_line(node(trace, *modules), root).function == "Small.forward"
    assert source_line(node(trace, modules[-1]), root).function == "forward"


def test_no_line_is_in_torch_or_in_what_torch_makes(root):
    own = frame("/elsewhere/project/model.py", 5, "forward")
    traced = frame("/v/site-packages/torch/_dynamo/functional_export.py", 232, "forward")
    made = frame("<eval_with_key>.13", 9, "forward", "cond = torch.ops.higher_order.cond()")
    line = source_line(node(traced + own + made, "model.Small"), root)
    assert (line.file, line.line, line.function) == ("project/model.py", 5, "Small.forward")
    assert source_line(node(traced + made, "torch.nn.modules.linear.Linear"), root) is None


def test_an_installed_model_is_named_from_its_package_on(root):
    trace = frame("/v/site-packages/transformers/models/bert/modeling_bert.py", 120, "forward")
    trace += frame("/v/site-packages/torch/nn/modules/linear.py", 130, "forward")
    modules = ("transformers.models.bert.modeling_bert.BertSelfAttention", "torch.nn.linear.Linear")
    line = source_line(node(trace, *modules), root)
    assert line.file == "transformers/models/bert/modeling_bert.py"
    assert line.function == "BertSelfAttention.forward"


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(x)


@pytest.mark.parametrize("strict", [False, True])
def test_a_library_module_is_called_by_the_models_forward(strict):
    program = torch.export.export(Normed(), (torch.ones(2, 4),), strict=strict)
    (norm,) = (n for n in program.graph.nodes if "layer_norm" in n.name)
    line = source_line(norm, Path(__file__).parents[2])
    assert line.file == "tests/program/test_source_lines.py"
    assert (line.code, line.function) == ("return self.norm(x)", "Normed.forward")


def test_installed_files_are_never_taken_for_those_of_the_workspace(root):
    own = frame("/elsewhere/project/model.py", 5, "forward")
    installed = frame("/v/site-packages/models/small.py", 9, "forward")
    line = source_line(node(own + installed, "Small"), root)
    assert (line.file, line.line) == ("project/model.py", 5)
    assert source_line(node(installed, "Small"), root).file == "models/small.py"


def test_where_nothing_is_known_the_node_is_named(root):
    for trace in (None, "", "no frames"):
        assert source_line(node(trace), root) is None
        assert describe_node(node(trace), root) == "node add_3"
    bare = SimpleNamespace(name="add", meta={})
    assert describe_node(bare, root) == "node add"


def test_a_line_whose_text_is_lost_has_its_place(root):
    trace = '  File "/a/models/small.py", line 3, in forward\n'
    assert describe_node(node(trace, "small.Small"), root) == "models/small.py:3, in Small.forward"


def test_a_class_that_inherits_its_forward_is_not_that_of_the_line_around_it(root):
    """The file has changed since, so only the modules tell whose `forward` contains the line."""
    trace = frame("/a/models/small.py", 22, "forward", "x = self.norm(x)")
    trace += frame("/v/site-packages/torch/nn/modules/normalization.py", 228, "forward")
    modules = ("models.small.Block", "models.small.LayerNorm")  # class LayerNorm(nn.LayerNorm)
    line = source_line(node(trace, *modules), root)
    assert (line.where, line.function) == ("models/small.py:22", "Block.forward")
