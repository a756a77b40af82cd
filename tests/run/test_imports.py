"""ExecuTorch is imported without torch's compiler, which works for whoever asks for it."""

import inspect
import subprocess
import sys

import torch
from torch._inductor.fx_passes import post_grad
from torch.export import _remove_auto_functionalized_pass

from pipeline.run import imports
from pipeline.store.digest import hash_bytes

ALONE = """
import sys
from pipeline.run.imports import import_executorch

import_executorch()
assert "executorch.exir.program" in sys.modules
assert not {"torch._inductor.lowering", "torch._inductor.fx_passes.post_grad"} & sys.modules.keys()
from torch._inductor.fx_passes import post_grad

assert post_grad.post_grad_passes
"""


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
