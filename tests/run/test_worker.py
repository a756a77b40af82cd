"""What a worker keeps of an action, and the names of its files."""

import gc
import json
import resource
import weakref

import pytest
import torch
from executorch.exir.backend.utils import is_same_node
from torch._subclasses.fake_tensor import FakeTensorMode

from pipeline.run.worker_process import (
    call_with_room,
    forget_programs,
    worker_process,
)
from pipeline.store.names import is_file_name, shorten_name
from tests.support.lowerable import bench_for


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
    assert kept() is not None  # otherwise ExecuTorch has fixed it, and this can go
    forget_programs()
    gc.collect()
    assert kept() is None and not FakeTensorMode.cache


@pytest.fixture
def collected_as_ever():
    """Restore Python's thresholds, which doit's run in this process may have changed."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("seldom", [True, False])
def test_garbage_goes_meanwhile_and_before_the_next_action(seldom, collected_as_ever):
    def count_left(number):
        for _ in range(number):
            itself = []
            itself.append(itself)
        return len(gc.get_objects())

    usual = gc.get_threshold()
    with worker_process(seldom):
        before = count_left(0)
        small = count_left(50_000) - before
        assert (small > 40_000) if seldom else (small < 10_000)
        assert count_left(200_000) - before < 200_000
    assert gc.isenabled() and gc.get_threshold() == usual
    assert count_left(0) < before + 1_000
    gc.unfreeze()


LONG = """
import torch
from torch.export import export


class Count(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x):
        self.total.add_(x)
        return self.total * 2


def export_methods():
    return {name: export(Count(), (torch.ones(2),)) for name in NAMES}
"""


@pytest.mark.slow
def test_units_and_methods_have_names_of_any_length(tmp_path):
    """Methods that share state are compiled together; a file name is limited to 255 bytes."""
    names = [f"{letter * 127}_" for letter in "abc"]
    emit = {"memory_planning": {"share_mutable_buffers": True}, "initialized_buffers": ["total"]}
    methods = {name: {"partitioners": []} for name in names}
    bench = bench_for(tmp_path / "w", {"long": {"methods": methods, "emit": emit}})
    (bench.root / "models" / "small.py").write_text(f"NAMES = {names}\n{LONG}")
    assert bench.doit() == 0, bench.output
    assert json.loads(bench.bytes_of("long", "report.json"))["ok"]


def test_long_names_are_cut_and_stay_apart():
    long = ["+".join(f"{n}{last}" for n in range(200)) for last in "ab"]
    assert len({shorten_name(each) for each in long}) == 2
    assert all(is_file_name(f"{shorten_name(each)}.progress") for each in long)
    assert shorten_name("compile-prefill+decode") == "compile-prefill+decode"


def _count_faults(depth: int) -> int:
    """Return the page faults of 1,000 calls, as many calls below this one as `depth`."""
    if depth:
        return _count_faults(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(1000):
        _do_nothing()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _do_nothing() -> None:
    pass


def test_calls_at_any_depth_map_no_memory():
    def most_faults() -> int:
        return max(map(_count_faults, range(300)))

    if most_faults() < 500:
        pytest.skip("here, Python keeps a chunk: it depends on its release and the calls above")
    assert call_with_room(most_faults) < 100
