"""ExecuTorch is imported without torch's compiler, which still works on request, and knows its
whole table of operators."""

import inspect
import subprocess
import sys
from importlib import resources

import executorch.exir.dialects.edge
import pytest
import torch
from ruamel.yaml import YAML
from torch._inductor.fx_passes import post_grad
from torch.export import _remove_auto_functionalized_pass

from pipeline.features.speedups import executorch_import
from pipeline.features.speedups.executorch_import import Operator, split_table
from pipeline.store.digest import hash_bytes

ALONE = """
import sys
from pipeline.features.speedups.executorch_import import import_executorch

import_executorch(lambda: None)
assert "executorch.exir.program" in sys.modules
assert not {"torch._inductor.lowering", "torch._inductor.fx_passes.post_grad"} & sys.modules.keys()
from torch._inductor.fx_passes import post_grad

assert post_grad.post_grad_passes
from executorch.exir.dialects.edge import _ops
from ruamel.yaml import YAML

assert YAML.__module__ == "ruamel.yaml.main"
assert sum(len(each) > 1 for each in _ops._edge_dialect_info.values()) < 50
"""


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

    executorch_import._decompose_auto_functionalized(graph_of(torch.nn.ReLU(), torch.ones(2)))
    assert not given
    branch = graph_of(Branch(), torch.ones(2))
    executorch_import._decompose_auto_functionalized(branch)
    assert given == [branch]


def test_functions_are_those_that_this_was_written_for():
    """On failure, check that they still change nothing in graphs without higher-order operators."""
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
