"""ExecuTorch is imported without torch's compiler, which works for whoever asks for it, and knows
all of its table of operators."""

import inspect
import subprocess
import sys
from importlib import resources

import executorch.exir.dialects.edge
import pytest
import torch
from ruamel.yaml import YAML
from torch._inductor.fx_passes import post_grad
from torch._library.utils import get_source
from torch.export import _remove_auto_functionalized_pass

from pipeline.run import imports
from pipeline.run.imports import Operator, split_table
from pipeline.store.digest import hash_bytes

ALONE = """
import sys
from pipeline.run.imports import import_executorch

import_executorch()
assert "executorch.exir.program" in sys.modules
assert not {"torch._inductor.lowering", "torch._inductor.fx_passes.post_grad"} & sys.modules.keys()
from torch._inductor.fx_passes import post_grad

assert post_grad.post_grad_passes
from executorch.exir.dialects.edge import _ops
from ruamel.yaml import YAML

assert YAML.__module__ == "ruamel.yaml.main"
assert sum(len(each) > 1 for each in _ops._edge_dialect_info.values()) < 50
"""


QUIETLY = """
import os
from pipeline.run.imports import import_numpy

os.environ |= {set!r}
before = dict(os.environ)
{imports}
import numpy

assert (numpy.ones((2, 2)) @ numpy.ones((2, 2)) == 2).all()
assert dict(os.environ) == before
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.parametrize(
    ("imports", "variables"),
    [
        ("import_numpy()", {}),
        ("import_numpy()", {"OPENBLAS_NUM_THREADS": "2"}),
        ("import pipeline.run.executors.processes", {}),
        ("import pipeline.run.executors.processes", {"KMP_INIT_AT_FORK": "TRUE"}),
    ],
)
def test_numpy_and_joblib_start_no_threads_and_leave_the_environment_alone(imports, variables):
    command = [sys.executable, "-c", QUIETLY.format(imports=imports, set=variables)]
    assert subprocess.check_output(command, text=True) == "1\n"


@pytest.mark.slow
def test_compiler_is_left_out_until_it_is_asked_for():
    subprocess.run([sys.executable, "-c", ALONE], check=True)


def test_graphs_with_higher_order_operators_are_given_to_the_compiler(monkeypatch):
    given = []
    monkeypatch.setattr(post_grad, "decompose_auto_functionalized", given.append)

    def graph_of(model, *inputs):
        return torch.export.export(model, inputs, strict=False).graph_module.graph

    class Branch(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    imports._decompose_auto_functionalized(graph_of(torch.nn.ReLU(), torch.ones(2)))
    assert not given
    branch = graph_of(Branch(), torch.ones(2))
    imports._decompose_auto_functionalized(branch)
    assert given == [branch]


def test_functions_are_those_that_this_was_written_for():
    """Look at whether they still change nothing in a graph without higher-order operators."""
    one, two = (
        hash_bytes(inspect.getsource(each).encode())[:16]
        for each in (_remove_auto_functionalized_pass, post_grad.decompose_auto_functionalized)
    )
    assert (one, two) == ("aafd7438e33dde91", "303b06394021bc98")


def test_operators_that_are_parsed_late_are_those_of_the_whole_table():
    table = resources.read_text(executorch.exir.dialects.edge, "edge.yaml", encoding="utf-8")
    parse = YAML(typ="safe").load
    late = [Operator(name, text, parse) for name, text in split_table(table)]
    assert len(late) > 100 and all(each.keys() == {"inherits"} for each in late)
    assert all(each["type_constraint"] for each in late)
    assert late == parse(table)


def test_modules_and_places_of_frames_are_those_that_inspect_finds():
    """Also of code that no module has, as in a file that was run."""
    apart = {"inspect": inspect, "__name__": "collections"}
    exec(compile("frame = inspect.currentframe()", __file__, "exec"), apart)
    frames = [inspect.currentframe(), apart["frame"], sys._getframe(1)]

    def look():
        modules = [inspect.getmodule(each) for each in (*frames, imports, look)]
        return modules, [inspect.getframeinfo(each)[:3:2] for each in frames]

    with imports.keeping_all():
        quick, without = look(), inspect.getframeinfo(frames[0])
        assert without.code_context is None
        assert inspect.getframeinfo(frames[0], 1).code_context
    assert quick == look()
    assert inspect.getframeinfo(frames[0]).code_context


def test_functions_are_those_that_ask_where_an_operator_is_registered():
    """Look at what else they ask of a frame."""
    assert "inspect.getframeinfo(sys._getframe(stacklevel))" in inspect.getsource(get_source)
    assert "inspect.getmodule(frame)" in inspect.getsource(torch.library.Library._register_fake)


OPERATOR = """- func: aten::relu
  namespace: edge
  inherits: aten::relu
  type_alias: {T0: [Float]}
"""


@pytest.mark.parametrize(
    "table",
    ["", "a: b\n", OPERATOR + "more: 1\n", OPERATOR + "  - x", OPERATOR + "  one: &one 1\n"],
    ids=["empty", "other", "after", "torn", "anchor"],
)
def test_table_of_another_form_is_left_to_its_reader(table):
    assert split_table(OPERATOR) == [("aten::relu", OPERATOR)]
    assert split_table(table) is None
