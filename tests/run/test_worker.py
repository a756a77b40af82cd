"""What a worker keeps of an action."""

import gc
import weakref

import torch
from executorch.exir.backend.utils import is_same_node
from torch._subclasses.fake_tensor import FakeTensorMode

from pipeline.run.worker import _forget_programs


def test_no_program_outlives_its_action():
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    assert is_same_node(node, node)
    with FakeTensorMode() as mode:
        torch.add(mode.from_tensor(torch.ones(2)), 1)
    assert FakeTensorMode.cache
    kept = weakref.ref(graph)
    del graph, node
    gc.collect()
    assert kept() is not None  # or ExecuTorch has mended it, and this can go
    _forget_programs()
    gc.collect()
    assert kept() is None and not FakeTensorMode.cache
