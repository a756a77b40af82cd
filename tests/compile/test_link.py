"""Linking gives the bytes of ExecuTorch's joint call, which always serves as the oracle."""

import copy
import itertools
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch.export import export

from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.compile.objects import (
    Blob,
    NamedBlob,
    check_file_names,
    make_object,
    merge_named_data,
    parse_object,
    put_named_data,
)
from pipeline.config.emission import EmitConfig
from pipeline.store.digest import hash_file
from pipeline.store.errors import PipelineError
from pipeline.store.store import MissingBlobError, Store
from tests.support.linking import link
from tests.support.programs import shared_programs

CONSTANT_METHODS = {"get_vocabulary": ["a", 1, 2.5, True], "get_length": 128}


def xnnpack():
    return [XnnpackPartitioner()]


PARTITIONERS = {
    "portable": {"step": [], "plain": [], "branch": []},
    "xnnpack": {"step": xnnpack(), "plain": xnnpack(), "branch": []},
    "mixed": {"step": [], "plain": [XnnpackPartitioner(per_op_mode=True)], "branch": []},
}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def joint(edge, external, initialized):
    """Finish the joint call on a copy of what it has lowered."""
    passes = [InitializedMutableBufferPass(list(initialized))] if initialized else []
    config = ExecutorchBackendConfig(passes=passes, external_constants=external)
    return copy.deepcopy(edge).to_executorch(config)


def apart(programs, partitioners):
    """Lower each method separately."""
    for name, program in programs.items():
        yield lower({name: program}, {name: partitioners[name]})


def emitted(lowered, external, initialized, store):
    """Return the objects of methods after a round trip through JSON, as in the store's records."""
    settings = EmitConfig(external_constants=external, initialized_buffers=initialized)
    for each in lowered:
        compiled = make_object(emit(copy.deepcopy(each), settings), store)
        yield parse_object(json.loads(json.dumps(compiled.to_json())))


def objects_of(programs, partitioners, external, initialized, store):
    return emitted(apart(programs, partitioners), external, initialized, store)


@pytest.fixture(scope="module")
def _compiled(tmp_path_factory):
    """Compile the programs for XNNPACK, once for all link tests."""
    store = Store(tmp_path_factory.mktemp("compiled") / "store")
    partitioners = PARTITIONERS["xnnpack"]
    return store, list(objects_of(shared_programs(), partitioners, False, ("count",), store))


@pytest.fixture
def objects(_compiled, store):
    """Return the same objects, with their blobs in the test's store."""
    kept, objects = _compiled
    shutil.copytree(kept.root, store.root, dirs_exist_ok=True)
    return objects


@pytest.fixture(scope="module")
def lowered():
    """Return programs lowered separately and jointly, keyed by partitioners."""

    @cache
    def of(backend):
        own, theirs = PARTITIONERS[backend], shared_programs()
        edge = to_edge_transform_and_lower(
            theirs, partitioner=own, constant_methods=CONSTANT_METHODS
        )
        return list(apart(shared_programs(), own)), edge

    return of


def combinations():
    for backend in PARTITIONERS:
        for initialized, external in itertools.product([(), ("count",)], [False, True]):
            names = [backend, "initialized" if initialized else "", "ptd" if external else "inside"]
            # Both options or neither; the other two combinations, and mixed backends, are left to
            # the slow tests.
            is_slow = bool(initialized) != external or backend == "mixed"
            marks = pytest.mark.slow if is_slow else ()
            yield pytest.param(backend, initialized, external, id="-".join(names), marks=marks)


@pytest.mark.parametrize(("backend", "initialized", "external"), combinations())
def test_linked_bytes_are_those_of_the_joint_call(store, lowered, backend, initialized, external):
    methods, edge = lowered(backend)
    expected = joint(edge, external, initialized)
    objects = list(emitted(methods, external, initialized, store))
    linked = link(objects, CONSTANT_METHODS, store)
    assert store.read(linked.pte.digest) == expected.buffer
    data = {name.removesuffix(".ptd"): bytes(cord) for name, cord in expected._tensor_data.items()}
    assert {name: store.read(blob.digest) for name, blob in linked.ptds.items()} == data
    assert bool(data) == (external and backend != "none")


@pytest.mark.slow
def test_compiling_and_linking_is_deterministic(objects, store, tmp_path):
    again = Store(tmp_path / "again")
    own = list(objects_of(shared_programs(), PARTITIONERS["xnnpack"], False, ("count",), again))
    assert own == objects
    assert link(own, {}, again) == link(objects, {}, store)


def test_weights_of_several_methods_are_stored_once(store):
    objects = list(objects_of(shared_programs(), PARTITIONERS["portable"], False, (), store))
    single = [link([o], {}, store).pte.size for o in objects]
    together = link(objects, {}, store).pte.size
    weights = 2 * 8 * 8 * 4  # two float32 matrices, which two methods each use
    assert together < sum(single) - weights


def test_delegates_with_equal_payloads_are_stored_once(store):
    program = shared_programs()["plain"]
    programs = {"a": program, "b": program}
    partitioners = {"a": xnnpack(), "b": xnnpack()}
    objects = list(objects_of(programs, partitioners, False, (), store))
    expected = joint(to_edge_transform_and_lower(programs, partitioner=partitioners), False, ())
    assert store.read(link(objects, {}, store).pte.digest) == expected.buffer


@pytest.mark.parametrize("part", ["program", "constants", "delegates", "named"])
def test_lost_blob_is_a_miss_that_leaves_nothing_half_written(objects, store, part):
    blobs = {
        "program": [objects[0].program],
        "constants": objects[0].constants,
        "delegates": objects[0].delegates,
        "named": [entry.blob for entry in objects[0].named],
    }[part]
    lost = blobs[-1]
    path = store.blob_path(lost.digest)
    path.chmod(0o644)
    path.write_bytes(bytes(lost.size))
    before = {p for p in store.root.rglob("*") if p.is_file()}
    with pytest.raises(MissingBlobError):
        link(objects, {}, store)
    after = {p for p in store.root.rglob("*") if p.is_file()}
    assert path not in after
    assert all(p.parent.name + p.name == hash_file(p) for p in after - before)  # complete blobs


def test_two_tags_do_not_name_one_file():
    """If two had the same name, a package would contain only the last one."""
    check_file_names(["w", "v.ptd", "w"])
    for other in ("w.ptd", "W", "W.ptd"):
        with pytest.raises(PipelineError, match=f"'w' and '{other}' name the same .ptd file"):
            check_file_names(["w", other])


def test_named_data_of_one_key_must_agree(objects, store):
    first = next(o for o in objects if o.named)
    other = Blob(store.put(b"other"), 5)
    named = (NamedBlob(first.named[0].key, other, 1, None),)
    with pytest.raises(PipelineError, match="differs between methods"):
        link([first, replace(first, named=named)], {}, store)


def test_external_tensors_of_one_name_must_agree(store):
    one, other = shared_programs(seed=0), shared_programs(seed=1)
    programs = {"a": one["plain"], "b": other["plain"]}
    objects = list(objects_of(programs, {"a": [], "b": []}, True, (), store))
    with pytest.raises(PipelineError, match=r"external tensor .* differs between methods"):
        link(objects, {}, store)


def test_package_of_a_linked_file_runs(objects, store):
    """ExecuTorch loads the linked file, and computes what the source computes."""
    from pipeline.devices.bindings import Package
    from pipeline.devices.interface import PackageFiles

    programs = shared_programs()
    linked = link(objects, CONSTANT_METHODS, store)
    package = Package(PackageFiles.of(store.verified_path(linked.pte.digest)))
    x = torch.randn(5, 8)
    (actual,) = package.run("plain", [x])
    torch.testing.assert_close(actual, programs["plain"].module()(x))
    assert package.run("get_length", ()) == [128]


LINK_ALONE = """
import json, sys
from pathlib import Path
from pipeline.compile.link import lay_out
from pipeline.compile.objects import parse_object
from pipeline.store.pieces import join_pieces
from pipeline.store.store import Store

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

store = Store(Path(sys.argv[1]))
objects = [parse_object(json.loads(Path(path).read_text())) for path in sys.argv[2:]]
before = peak()
_, size = join_pieces(lay_out(objects, {}, store)[""], store)
print(json.dumps([peak() - before, size]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_linking_does_not_hold_the_weights(store, tmp_path):
    size = 4096

    class Large(torch.nn.Module):
        def __init__(self, seed):
            super().__init__()
            torch.manual_seed(int(seed))
            self.weight = torch.nn.Parameter(torch.randn(size, size))

        def forward(self, x):
            return x @ self.weight

    programs = {
        f"method{n}": export(Large(n).requires_grad_(False), (torch.ones(1, size),)) for n in "12"
    }
    paths = []
    for number, compiled in enumerate(
        objects_of(programs, {n: [] for n in programs}, False, (), store)
    ):
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps(compiled.to_json()))
    done = subprocess.run(
        [sys.executable, "-c", LINK_ALONE, str(store.root), *map(str, paths)],
        capture_output=True,
        text=True,
        check=True,
    )
    grown, written = json.loads(done.stdout.splitlines()[-1])
    assert written > 2 * size * size * 4
    assert grown < written / 4


def test_named_data_keep_tag_and_alignment(store):
    """As backends set them: in the `.pte`, in `.ptd` files, and for equal bytes under two names."""
    given = NamedDataStore()
    given.add_named_data("plain", b"first", 1)
    given.add_named_data("aligned", b"second", 64)
    given.add_named_data("same", b"first", 16, "weights")
    given.add_named_data("outside", b"third", 32, "weights")
    data = given.get_named_data_store_output()
    entries = put_named_data(store, data)
    assert merge_named_data(entries, lambda blob: store.read(blob.digest)) == data
