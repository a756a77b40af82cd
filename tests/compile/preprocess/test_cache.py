"""The preprocess cache: the same result without the call, or the call."""

import copy
import dataclasses
import json
import tempfile

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir import to_edge
from executorch.exir.backend import backend_api
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.test import backend_with_preprocess_all_demo as demo
from torch.export import Dim, export

from pipeline.backends import BACKENDS
from pipeline.backends.entry import Preprocessing
from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.compile.preprocess.cache import (
    cached_preprocess,
    counted_preprocess,
    keyed_preprocess,
)
from pipeline.features.preprocess_cache.key import UndescribableError
from pipeline.features.quantization.quantize import quantize
from pipeline.features.to_backend.to_backend_multiple import to_backend_multiple
from pipeline.features.xnnpack import cache_key as xnnpack_sight
from pipeline.features.xnnpack.entries import XnnpackQuantize
from pipeline.store.store import Store
from tests.support.programs import Plain, Shared, shared_programs
from tests.support.resident import run_python


@pytest.fixture(scope="module")
def edge():
    manager = to_edge(shared_programs())
    return {name: manager.exported_program(name) for name in ("step", "plain", "branch")}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def calls(monkeypatch):
    """Record the calls of XNNPACK's preprocess function in this process."""
    seen = []
    original = XnnpackBackend.preprocess

    def counting(program, specs):
        seen.append(copy.deepcopy(program))
        return original(program, specs)

    monkeypatch.setattr(XnnpackBackend, "preprocess", staticmethod(counting))
    return seen


def lowered_modules(programs):
    """Return the payload, debug handles and named data of every delegate."""
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


@pytest.mark.slow
def test_methods_lowered_in_several_processes_give_the_same(edge, calls, store):
    one = lowered_modules(to_backend_multiple(edge, XnnpackPartitioner()))
    calls.clear()
    for kept in (None, store):
        several = to_backend_multiple(edge, XnnpackPartitioner(), n_jobs=2, store=kept)
        assert lowered_modules(several) == one
    assert not calls  # the forked processes did everything


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


def test_partition_without_a_digest_is_preprocessed_every_time(edge, store, calls, monkeypatch):
    def refuse(*_):
        raise UndescribableError("something new")

    monkeypatch.setattr("pipeline.features.preprocess_cache.stored_results.describe", refuse)
    for _ in range(2):
        with counted_preprocess() as counts:
            to_backend_multiple(edge, {"plain": XnnpackPartitioner()}, store=store)
        assert counts.uncached == 1 and not counts.hits + counts.misses
    assert len(calls) == 2


# The same partition in another place


class Layers(torch.nn.Module):
    """Two layers, each delegated separately."""

    def __init__(self, before=False, second=torch.tanh, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.before, self.activation = before, second

    def forward(self, x):
        if self.before:
            x = x.flip(-1).flip(-1)  # names and debug handles shift, values do not
        x = torch.sigmoid(self.first(x)).cumsum(-1)
        return self.activation(self.second(x))


class Renamed(torch.nn.Module):
    """The same layers in a module of another class, with other weight names."""

    def __init__(self):
        super().__init__()
        self.inner = Layers(before=True)

    def forward(self, value):
        return self.inner(value)


def program(model, dynamic=False):
    torch.manual_seed(0)
    shapes = ({0: Dim("rows", min=2, max=8)},) if dynamic else None
    model = model.eval().requires_grad_(False)
    return export(model, (torch.randn(3, 8),), dynamic_shapes=shapes)


def int8(model, **options):
    return quantize(program(model), XnnpackQuantize(quantizer="xnnpack", **options), [])


def package(programs, store=None, **options):
    """Return the bytes that a build writes, and its counts."""
    with counted_preprocess() as counts:
        partitioners = {name: [XnnpackPartitioner(**options)] for name in programs}
        emitted = emit(lower(programs, partitioners, store=store))
    return emitted.buffer, counts


WAYS = {
    "float": (program, {}),
    "operator by operator": (program, {"per_op_mode": True}),
    "dynamic sizes": (lambda model: program(model, dynamic=True), {}),
    "static int8": (int8, {}),
    "dynamic int8": (lambda model: int8(model, dynamic=True), {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_an_edit_elsewhere_costs_no_preprocess_and_changes_no_byte(way, store, calls):
    make, options = WAYS[way]
    _, counts = package({"forward": make(Layers())}, store, **options)
    before = list(calls)
    assert counts.misses + counts.hits >= 2
    calls.clear()
    edited = make(Renamed())
    warm, counts = package({"forward": copy.deepcopy(edited)}, store, **options)
    assert not calls and not counts.misses
    rebuilt, _ = package({"forward": edited}, **options)
    assert warm == rebuilt
    assert counts.hits == len(calls)
    assert handles(calls) != handles(before[: len(calls)])  # otherwise the test proves nothing


def handles(programs):
    return [node.meta.get("debug_handle") for program in programs for node in program.graph.nodes]


def test_only_what_changed_is_preprocessed(store, calls):
    package({"forward": program(Layers())}, store)
    changed = {"forward": program(Layers(before=True, second=torch.sigmoid))}
    warm, counts = package(changed, store)
    assert (counts.hits, counts.misses) == (1, 1)
    assert warm == package(changed)[0]


def test_methods_share_results(store, calls):
    programs = {"one": program(Layers()), "two": program(Layers(before=True))}
    shared, counts = package(programs, store)
    assert (counts.hits, counts.misses, len(calls)) == (2, 2, 2)
    assert shared == package(programs)[0]


def test_other_weights_are_another_partition(store):
    package({"forward": program(Layers())}, store)
    _, counts = package({"forward": program(Layers(seed=1))}, store)
    assert (counts.hits, counts.misses) == (0, 2)


def test_seconds_are_counted(store):
    _, cold = package({"forward": program(Layers())}, store)
    _, warm = package({"forward": program(Layers())}, store)
    assert cold.spent > 0 and cold.saved == 0
    assert warm.spent == 0 and warm.saved == pytest.approx(cold.spent, abs=0.01)


# Several processes


def test_processes_wait_for_each_other_and_leave_no_temporary_files(tmp_path, monkeypatch):
    """Nothing is computed twice. A forked process runs no `atexit` handlers, with which coremltools
    would remove its packages."""
    log = tmp_path / "calls"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    original = XnnpackBackend.preprocess

    def logging_call(program, specs):
        with open(log, "a") as file:
            file.write("call\n")
        tempfile.mkdtemp(suffix=".mlpackage")
        return original(program, specs)

    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    monkeypatch.setattr(XnnpackBackend, "preprocess", staticmethod(logging_call))
    methods = {f"m{number}": program(Layers(before=bool(number))) for number in range(2)}
    manager = to_edge(methods)
    edge = {name: manager.exported_program(name) for name in methods}
    to_backend_multiple(edge, XnnpackPartitioner(), n_jobs=2)
    assert log.read_text().count("call") == 2
    assert list(temporary.iterdir()) == [] and tempfile.gettempdir() == str(temporary)


# One partition, without a model around it


def partition():
    return to_edge(program(Plain(Shared()))).exported_program()


def through(store, program, specs=(), backend=XnnpackBackend):
    """Return what ExecuTorch gets from a backend, and the counts."""
    program = copy.deepcopy(program)
    with counted_preprocess() as counts, cached_preprocess(store):
        found = backend_api.BackendDetails.__subclasses__()
        stand_in = next(each for each in found if each.__name__ == backend.__name__)
        (result,) = stand_in.preprocess_multimethod({"m": [program]}, {"m": [list(specs)]})["m"]
    return result, counts


@pytest.fixture
def fixed(monkeypatch):
    """Make XNNPACK return one fixed payload, with the debug handle 7, for any input."""
    program = partition()
    own = {handle for handle in handles([program]) if handle is not None}
    real = XnnpackBackend.preprocess(program, [])
    payload = xnnpack_sight.remap_handles(real.processed_bytes, dict.fromkeys(own, 7))
    assert payload not in (None, real.processed_bytes)
    result = PreprocessResult(payload, {0: (7,)}, real.data_store_output)
    monkeypatch.setattr(XnnpackBackend, "preprocess", staticmethod(lambda *_: result))
    return result


def test_handles_that_are_not_the_partitions_are_not_exchanged(store, fixed, caplog):
    for _ in range(2):
        result, counts = through(store, partition())
        assert result is fixed and counts.misses == 1
    assert "can't be stored" in caplog.text


def test_the_debug_handle_map_is_exchanged_too(store, fixed):
    first, second = partition(), partition()
    for program, handle in ((first, 7), (second, 9)):
        for node in program.graph.nodes:
            if node.op == "call_function":
                node.meta["debug_handle"] = handle
    through(store, first)
    result, counts = through(store, second)
    assert counts.hits == 1
    assert result.debug_handle_map == {0: (9,)}
    assert result.processed_bytes == xnnpack_sight.remap_handles(fixed.processed_bytes, {7: 9})


OTHERWISE = {
    "toolchain": (
        "pipeline.features.preprocess_cache.stored_results.toolchain",
        lambda *_: {"torch": "0"},
    ),
    "code": ("pipeline.features.preprocess_cache.stored_results.code", lambda: "other"),
}


@pytest.mark.parametrize("what", OTHERWISE.values(), ids=OTHERWISE)
def test_toolchain_and_code_count(what, store, monkeypatch):
    through(store, partition())
    monkeypatch.setattr(*what)
    assert through(store, partition())[1].misses == 1


def test_what_else_of_the_process_counts(store):
    """Operator libraries are third-party code that may change what a backend does."""
    through(store, partition())
    for hits in (0, 1):
        with keyed_preprocess({"operators": ["team_ops"]}):
            assert through(store, partition())[1].hits == hits
    assert through(store, partition())[1].hits == 1


def test_compile_specs_count(store):
    specs = ([], [CompileSpec("k", b"ab")], [CompileSpec("ka", b"b")], [CompileSpec("k", b"b")])
    counted = [through(store, partition(), each)[1] for each in specs]
    both = [specs[1][0], specs[3][0]]
    counted += [through(store, partition(), each)[1] for each in (both, both[::-1])]
    assert [each.misses for each in counted] == [1] * 6
    assert through(store, partition(), both)[1].hits == 1


def test_keys_explain_themselves(store):
    through(store, partition(), [CompileSpec("k", b"v")])
    (path,) = (store.root / "actions").rglob("*.json")
    key = json.loads(path.read_bytes())["key"]
    assert {"backend", "code", "partition", "toolchain"} < key.keys()
    assert key["operators"]["aten._softmax.default"] == 1
    assert key["compile_specs"][0][0] == "k"


# Joint backends and unknown ones


class Waves(torch.nn.Module):
    def __init__(self, times):
        super().__init__()
        self.times = times

    def forward(self, x):
        for _ in range(self.times):
            x = torch.sin(x) + x
        return torch.cos(x) - x


def waves(**methods):
    manager = to_edge({n: export(Waves(t), (torch.ones(2),)) for n, t in methods.items()})
    return {name: manager.exported_program(name) for name in methods}


@pytest.fixture
def joint(monkeypatch):
    """Put the first demo backend into the catalogue but not the second; count the calls of each."""
    seen = []
    for backend in (demo.FirstBackendWithPreprocessAll, demo.SecondBackendWithPreprocessAll):

        def counting(programs, specs, backend=backend, original=backend.preprocess_multimethod):
            seen.append(backend.__name__)
            return original(programs, specs)

        monkeypatch.setattr(backend, "preprocess_multimethod", staticmethod(counting))
    known = dataclasses.replace(
        BACKENDS["xnnpack"],
        name="demo",
        backend_id="FirstBackendWithPreprocessAll",
        preprocessing=Preprocessing(joint=True),
    )
    monkeypatch.setattr("pipeline.compile.preprocess.registry.BACKENDS", {"demo": known})
    return seen


def lowered_waves(store, **methods):
    partitioner = demo.BackendWithPreprocessAllPartitioner()
    return lowered_modules(to_backend_multiple(waves(**methods), partitioner, store=store))


def test_a_joint_backend_is_called_once_for_the_same_methods(store, joint):
    plain = lowered_waves(None, one=1, two=2)
    cold = lowered_waves(store, one=1, two=2)
    joint.clear()
    warm = lowered_waves(store, one=1, two=2)
    assert plain == cold == warm
    assert joint == ["SecondBackendWithPreprocessAll"]


@pytest.mark.parametrize(
    "others", [{"one": 1, "two": 3}, {"one": 1}, {"two": 2, "one": 1}, {"one": 1, "to": 2}]
)
def test_a_joint_backend_sees_every_change_of_any_method(others, store, joint):
    lowered_waves(store, one=1, two=2)
    joint.clear()
    assert lowered_waves(store, **others) == lowered_waves(None, **others)
    assert joint.count("FirstBackendWithPreprocessAll") == 2


def test_an_unknown_backend_is_not_cached_and_the_log_says_so_once(store, joint, caplog):
    with counted_preprocess() as counts:
        lowered_waves(store, one=1, two=2)
    assert counts.uncached == 2
    assert caplog.text.count("SecondBackendWithPreprocessAll is not in the catalogue") == 1
    lowered_waves(store, one=1, two=2)
    assert joint.count("SecondBackendWithPreprocessAll") == 2


def test_a_row_of_a_vendors_backend_says_nothing_of_what_results_depend_on(
    store, joint, monkeypatch
):
    row = dataclasses.replace(BACKENDS["qualcomm"], backend_id="FirstBackendWithPreprocessAll")
    monkeypatch.setattr("pipeline.compile.preprocess.registry.BACKENDS", {"qualcomm": row})
    with counted_preprocess() as counts:
        lowered_waves(store, one=1, two=2)
    assert counts.hits == counts.misses == 0
    assert counts.uncached > 2


def test_without_a_store_everything_is_preprocessed_every_time(edge):
    with counted_preprocess() as counts:
        for _ in range(2):
            to_backend_multiple(edge, {"plain": XnnpackPartitioner()})
    assert (counts.hits, counts.misses) == (0, 0)
    assert counts.uncached > 0 and counts.uncached % 2 == 0


RUNNING = """
import os, sys, time
from pathlib import Path
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir import to_edge
from torch.export import export
from pipeline.features.to_backend.to_backend_multiple import to_backend_multiple
from pipeline.store.store import Store

original = XnnpackBackend.preprocess

def slow(program, specs):
    with open(sys.argv[2], "a") as calls:
        calls.write("called\\n")
    time.sleep(3)
    return original(program, specs)

XnnpackBackend.preprocess = staticmethod(slow)
torch.manual_seed(0)
model = torch.nn.Linear(4, 4).requires_grad_(False)
edge = {"m": to_edge(export(model, (torch.ones(1, 4),))).exported_program()}
other = os.fork()
to_backend_multiple(edge, XnnpackPartitioner(), store=Store(Path(sys.argv[1])))
if other:
    assert os.waitpid(other, 0)[1] == 0
"""


@pytest.mark.slow
def test_partition_that_another_process_preprocesses_is_waited_for(tmp_path):
    calls = tmp_path / "calls"
    done = run_python("-c", RUNNING, str(tmp_path / "store"), str(calls))
    assert done.returncode == 0, done.stderr
    assert calls.read_text() == "called\n"
