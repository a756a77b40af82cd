"""A family shares what two of its packages have in common, and all packages compute as before."""

from dataclasses import replace

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.export import export

from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.compile.objects import Blob, MethodObject, NamedBlob, make_object
from pipeline.compile.sharing import Shared
from pipeline.config.emission import EmitConfig
from pipeline.devices.bindings import Package
from pipeline.devices.interface import DeviceError, PackageFiles
from pipeline.features.families.choice import choose
from pipeline.features.families.layout import lay_out_files
from pipeline.program.pte import read_data
from pipeline.store.errors import PipelineError
from pipeline.store.pieces import join_pieces
from pipeline.store.store import Store
from tests.support.linking import LinkedFiles, link

EVERYTHING = [("chat", ["*"])]
WORDS = torch.arange(8)


class Adapted(nn.Module):
    """A table that a portable kernel reads, a base that XNNPACK computes, and an adapter."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("table", torch.randn(16, 32))
        self.base = nn.Linear(32, 32)
        torch.manual_seed(seed)
        self.adapter = nn.Linear(32, 32)

    def forward(self, words):
        x = torch.nn.functional.embedding(words, self.table)
        return self.base(x) + self.adapter(x)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store, and the model and objects of each package."""
    store, members = Store(tmp_path_factory.mktemp("family") / "store"), {}
    for seed, package in enumerate(("style", "code"), start=1):
        model = Adapted(seed).eval()
        lowered = lower({"forward": export(model, (WORDS,))}, {"forward": [XnnpackPartitioner()]})
        members[package] = model, [make_object(emit(lowered, EmitConfig()), store)]
    return store, members


def read(store, blob):
    return store.read(blob.digest)


def open_package(store, files):
    data = tuple(read(store, blob) for blob in files.ptds.values())
    return Package(PackageFiles("chat.pte", read(store, files.pte), data))


def run(store, files):
    return open_package(store, files).run("forward", [WORDS])[0]


def share(members, names, rules, store, base=None):
    records = {package: [each.to_json() for each in own] for package, own in members.items()}
    chosen = choose(records, names, rules, base)
    every = [each for own in members.values() for each in own]
    return replace(chosen, files=lay_out_files(chosen, every, store))


def shared_of(made, rules=EVERYTHING, names=None, base=None):
    store, members = made
    objects = {name: own for name, (_, own) in members.items()}
    return share(objects, names or {}, rules, store, base)


def test_each_package_runs_with_the_files_of_the_family(made):
    store, members = made
    shared = shared_of(made)
    assert list(shared.files) == ["chat"]
    for model, objects in members.values():
        apart, together = link(objects, {}, store), link(objects, {}, store, shared=shared)
        (chat,) = together.ptds.values()
        assert chat == Blob(*join_pieces(shared.files["chat"], store))
        # The family's file contains half of the linear layers, and the table.
        assert together.pte.size < apart.pte.size - 4 * (32 * 32 + 16 * 32)
        assert torch.equal(run(store, together), run(store, apart))
        torch.testing.assert_close(run(store, together), model(WORDS))


def test_the_file_depends_on_what_is_shared_alone(made):
    store, members = made
    own = members["style"][1]
    # A third package with nothing more leaves the file unchanged, and so does another order.
    third = {"code": members["code"][1], "again": own, "style": own}
    everything = share(third, {}, EVERYTHING, store)
    assert everything.files != shared_of(made).files  # the adapter is now in two packages
    half = {"b": members["code"][1], "a": own}
    assert share(half, {}, EVERYTHING, store) == shared_of(made)


def test_sizes_of_one_method_cost_one_set_of_weights(made):
    store, (model, one) = made[0], made[1]["style"]
    objects = [*one]  # for 8 words
    for size in (4, 16):
        program = export(model, (torch.arange(size) % 16,))
        lowered = lower({f"of_{size}": program}, {f"of_{size}": [XnnpackPartitioner()]})
        objects.append(make_object(emit(lowered, EmitConfig()), store))
    weights = sum(each.nbytes for each in model.state_dict().values())
    single, three = link(one, {}, store).pte.size, link(objects, {}, store).pte.size
    assert single > weights and three - single < weights / 2  # the difference is the graphs
    assert {each.key for own in objects for each in own.named} == {e.key for e in one[0].named}


def test_a_base_alone_decides(made):
    """Other packages don't affect what is shared, and each one runs with the file."""
    store, members = made
    objects = {package: own for package, (_, own) in members.items()}
    base = share({"style": objects["style"]}, {}, EVERYTHING, store, "style")
    (own,) = objects["style"]
    assert base.keys.keys() == {e.key for e in own.named if e.blob.size >= 64}
    model, code = members["code"]
    linked = link(code, {}, store, shared=base)
    assert linked.pte.size < link(code, {}, store).pte.size
    torch.testing.assert_close(run(store, linked), model(WORDS))
    first = own.named[0]
    other = replace(base, keys={first.key: (store.put(b"other"), "chat")})
    with pytest.raises(
        PipelineError, match=r"differs from the data of that name in chat\.ptd of the family's base"
    ):
        link([own], {}, store, shared=other)


def test_weights_in_files_of_a_packages_own_are_shared_too(made):
    store, members = made
    model, (own,) = members["style"]
    program = export(model, (WORDS,))
    settings = EmitConfig(external_constants=True)
    apart = make_object(emit(lower({"forward": program}, {"forward": []}), settings), store)
    inside = make_object(emit(lower({"forward": program}, {"forward": []}), EmitConfig()), store)
    shared = share({"a": [apart], "b": [inside]}, {}, EVERYTHING, store)
    for each in (apart, inside):
        files = link([each], {}, store, shared=shared)
        assert list(files.ptds) == ["chat"]
        assert torch.equal(run(store, files), run(store, link([each], {}, store)))
    across = share({"a": [inside], "b": [own]}, {}, EVERYTHING, store)  # two backends
    assert across.keys and across.constants
    for each in (inside, own):
        torch.testing.assert_close(run(store, link([each], {}, store, shared=across)), model(WORDS))


def test_patterns_choose_files(made):
    store, members = made
    every = shared_of(made)
    digests = sorted(
        {*every.constants}
        | {
            e.blob.digest
            for _, (o,) in members.values()
            for _, e in o.tagged()
            if e.key in every.keys
        }
    )
    names = {key: {"base.weight"} for key in digests} | {digests[0]: {"table"}}
    shared = shared_of(made, [("table", ["table"]), ("rest", ["base"])], names)
    assert sorted(shared.files) == ["rest", "table"]
    assert (
        len(
            read_data(
                memoryview(read(store, Blob(*join_pieces(shared.files["table"], store))))
            ).named
        )
        == 1
    )
    assert not shared_of(made, [("none", ["nothing"])], names).files


def test_without_a_file_the_runtime_says_so(made):
    store, members = made
    files = link(members["style"][1], {}, store, shared=shared_of(made))
    with pytest.raises(DeviceError, match="external data"):
        open_package(store, LinkedFiles(files.pte, {})).load("forward")


def test_a_file_may_not_be_called_as_one_of_the_package(made):
    store, members = made
    (own,) = members["style"][1]
    tagged = MethodObject(
        own.program, own.constants, (), own.delegates, (), {}, (), {"chat": own.named}
    )
    first = own.named[0]
    with pytest.raises(PipelineError, match=r"chat\.ptd is a file of the package and also"):
        shared = Shared({first.key: (first.blob.digest, "chat")}, files={"chat": []})
        link([tagged], {}, store, shared=shared)


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xyz")), max_size=4))
def test_a_key_is_shared_if_two_hold_its_data_and_all_hold_the_same(tmp_path_factory, held):
    store = Store(tmp_path_factory.getbasetemp() / "property")
    blobs = {each: Blob(store.put(each.encode() * 64), 64) for each in "xyz"}
    nothing = Blob(store.put(b""), 0)
    members = {
        str(number): [
            MethodObject(
                nothing, (nothing,), (), (), (), {},
                tuple(NamedBlob(key, blobs[value], 16, None) for key, value in own.items()),
            )
        ]
        for number, own in enumerate(held)
    }  # fmt: skip
    shared = share(members, {}, EVERYTHING, store)
    holders = {each: {n for n, own in enumerate(held) if each in own.values()} for each in "xyz"}
    values = {key: {own[key] for own in held if key in own} for key in "abcd"}
    one = {key: found.pop() for key, found in values.items() if len(found) == 1}
    wanted = {key for key, value in one.items() if len(holders[value]) > 1}
    assert shared.keys.keys() == wanted
    assert bool(shared.files) == bool(wanted)
