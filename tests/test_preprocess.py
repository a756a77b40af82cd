"""The preprocess cache: the same result without the call, or the call."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir import to_edge
from executorch.exir.backend import backend_api
from executorch.exir.backend.backend_details import BackendDetails
from executorch.exir.backend.compile_spec_schema import CompileSpec
from programs import Plain, Shared, shared_programs
from torch.export import Dim, export

from pipeline.lowering import to_backend_multiple
from pipeline.partitions import UndescribableError, partition_digest
from pipeline.store import Store

TOOLCHAIN = {"torch": "1"}


@pytest.fixture(scope="module")
def edge():
    manager = to_edge(shared_programs())
    return {name: manager.exported_program(name) for name in ("step", "plain", "branch")}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def calls(monkeypatch):
    """How often XNNPACK's preprocess function runs in this process."""
    seen = []
    original = XnnpackBackend.preprocess

    def counting(program, specs):
        seen.append(program)
        return original(program, specs)

    monkeypatch.setattr(XnnpackBackend, "preprocess", staticmethod(counting))
    return seen


def lowered_modules(programs):
    """Payload, debug handles and named data of every delegate."""
    return {
        name: [
            (
                module.processed_bytes,
                module.meta["debug_handle_map"],
                module.named_data_store_output,
            )
            for module in program.graph_module._modules.values()
            if hasattr(module, "processed_bytes")
        ]
        for name, program in programs.items()
    }


def test_second_lowering_calls_no_preprocess_and_gives_the_same(edge, store, calls):
    plain = lowered_modules(to_backend_multiple(edge, XnnpackPartitioner()))
    alone = len(calls)
    cold = lowered_modules(to_backend_multiple(edge, XnnpackPartitioner(), store=store))
    assert len(calls) == 2 * alone > 0
    warm = lowered_modules(to_backend_multiple(edge, XnnpackPartitioner(), store=store))
    assert len(calls) == 2 * alone
    assert plain == cold == warm


def test_methods_lowered_in_several_processes_give_the_same(edge, calls):
    one = lowered_modules(to_backend_multiple(edge, XnnpackPartitioner()))
    calls.clear()
    several = lowered_modules(to_backend_multiple(edge, XnnpackPartitioner(), n_jobs=2))
    assert several == one
    assert not calls  # the forked processes did it all


def test_damaged_result_is_made_again(edge, store, calls):
    expected = lowered_modules(to_backend_multiple(edge, XnnpackPartitioner(), store=store))
    calls.clear()
    for path in (store.root / "blobs").rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            path.write_bytes(b"\0" * path.stat().st_size)
    again = lowered_modules(
        to_backend_multiple(edge, XnnpackPartitioner(), store=Store(store.root))
    )
    assert again == expected and calls


def test_executorch_is_left_as_it_was(edge, store):
    to_backend_multiple(edge, {"plain": XnnpackPartitioner()}, store=store)
    assert backend_api.BackendDetails is BackendDetails


def partition(model=None, dynamic=None, rows=3):
    model = (model or Plain(Shared())).eval().requires_grad_(False)
    return to_edge(
        export(model, (torch.randn(rows, 8),), dynamic_shapes=dynamic)
    ).exported_program()


def digest_of(program, specs=(), backend="XnnpackBackend", toolchain=TOOLCHAIN):
    return partition_digest(backend, program, specs, toolchain)


class Scaled(Plain):
    def forward(self, x):
        return torch.softmax(self.shared.first(x), -1) - self.shared.offset


def _other_weights():
    return partition(Plain(Shared(seed=1)))


def _moved_debug_handle():
    program = partition()
    program.graph_module.graph.output_node().args[0][0].meta["debug_handle"] = 77
    return program


def _renamed():
    program = partition()
    program.graph_module.graph.output_node().args[0][0].name = "another_name"
    return program


def _other_argument():
    program = partition()
    node = next(n for n in program.graph.nodes if "softmax" in str(n.target))
    node.args = (node.args[0], 0, *node.args[2:])
    return program


CHANGES = {
    "operator": lambda: partition(Scaled(Shared())),
    "weights": _other_weights,
    "shape": lambda: partition(rows=4),
    "dynamic": lambda: partition(dynamic=({0: Dim("n", min=2, max=8)},)),
    "argument": _other_argument,
    "debug handle": _moved_debug_handle,
    "node name": _renamed,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_of_a_partition_changes_its_digest(change):
    assert digest_of(change()) != digest_of(partition())


def test_backend_specs_and_toolchain_count():
    program = partition()
    before = digest_of(program)
    assert digest_of(program, backend="Other") != before
    assert digest_of(program, specs=[CompileSpec("k", b"v")]) != before
    one, two = ([CompileSpec("k", b"ab")], [CompileSpec("ka", b"b")])
    assert digest_of(program, specs=one) != digest_of(program, specs=two)
    assert digest_of(program, toolchain={"torch": "2"}) != before


def test_bounds_of_a_dynamic_size_count():
    first = partition(dynamic=({0: Dim("n", min=2, max=8)},))
    second = partition(dynamic=({0: Dim("n", min=2, max=9)},))
    assert digest_of(first) != digest_of(second)


def test_volatile_metadata_does_not_count():
    program = partition()
    before = digest_of(program)
    for node in program.graph.nodes:
        node.meta.update(stack_trace=f"line {id(node)}", seq_nr=id(node), delegation_tag="tag9")
    assert digest_of(program) == before


def test_what_cannot_be_described_has_no_digest():
    program = partition()
    next(iter(program.graph.nodes)).meta["odd"] = object()
    with pytest.raises(UndescribableError, match="object"):
        digest_of(program)


def test_partition_without_a_digest_is_preprocessed_every_time(edge, store, calls, monkeypatch):
    def refuse(*_):
        raise UndescribableError("something new")

    monkeypatch.setattr("pipeline.preprocess.partition_digest", refuse)
    for _ in range(2):
        to_backend_multiple(edge, {"plain": XnnpackPartitioner()}, store=store)
    assert len(calls) == 2


@pytest.mark.parametrize("seed", ["0", "7"])
def test_digest_is_the_same_in_another_process(seed):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_preprocess import digest_of, partition\n"
        "print(digest_of(partition()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-1] == digest_of(partition())
