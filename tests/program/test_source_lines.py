"""Lines of a model's source, from what torch.export writes into nodes."""

from types import SimpleNamespace

import pytest

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
    assert str(source_line(node(trace, "a.b.Small"), root)) == (
        "x + y  # models/small.py:12, in Small.forward"
    )


def test_the_innermost_call_in_the_workspace_counts(root):
    trace = frame("/a/models/small.py", 3, "forward", "return half(x)")
    trace += frame("/a/models/parts/helpers.py", 7, "half", "return x / 2")
    trace += frame("/v/site-packages/torch/nn/functional.py", 99, "linear", "return f()")
    assert str(source_line(node(trace, "Small", "Half"), root)) == (
        "return x / 2  # models/parts/helpers.py:7, in half"
    )


def test_the_innermost_module_is_named(root):
    trace = frame("/a/models/small.py", 3, "forward")
    assert source_line(node(trace, "Small", "m.Layer"), root).function == "Layer.forward"

    class Inner:
        pass

    assert source_line(node(trace, Inner), root).function == "Inner.forward"


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
    assert describe_node(node(trace, "Small"), root) == "models/small.py:3, in Small.forward"
