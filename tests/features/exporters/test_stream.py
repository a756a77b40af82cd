"""An exporter that yields its methods gives the same archive, with one program in memory."""

import weakref
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.export import export

from pipeline.features.exporters.exporter import call_export_methods
from pipeline.features.exporters.handover import handing_over
from pipeline.features.exporters.methods import hand_over_all, hand_over_stream
from pipeline.program.archive import load_program
from pipeline.store.errors import SourceError
from pipeline.store.store import Store

X = (torch.ones(1, 3),)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return self.linear(x) + self.count


class Around(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model.count * x


def module_of(**functions):
    module = ModuleType("model")
    module.__file__ = "models/model.py"
    vars(module).update(functions)
    return module


def hand_over(module, tmp_path):
    store = Store(tmp_path / "store")
    returned = call_export_methods(module, {})
    with handing_over(store) as handover:
        if isinstance(returned, tuple):
            records = hand_over_all(module, *returned, {}, handover, tmp_path)
        else:
            records = hand_over_stream(module, returned, {}, handover, tmp_path)
        archive = handover.store_all(store, handover.to_json())
    return records, store.blob_path(archive)


def test_a_generator_gives_what_a_dict_gives(tmp_path):
    torch.manual_seed(0)
    model = Counter().requires_grad_(False)
    programs = {"encode": (export(model, X), model), "decode": export(Around(model), X)}
    inputs = {
        "example_inputs": lambda method: [X],
        "calibration_inputs": lambda method: (X for _ in range(2)),
        "constant_methods": lambda: {"size": 3},
    }
    pairs = [("encode", *programs["encode"]), ("decode", programs["decode"])]
    eager = hand_over(module_of(export_methods=lambda: programs, **inputs), tmp_path / "all")
    lazy = hand_over(module_of(export_methods=lambda: iter(pairs), **inputs), tmp_path / "stream")
    assert lazy[0]["methods"][0]["renamed"] == {"count": 0}
    for record in (eager[0], lazy[0]):  # two runs of one reference, timed or not
        assert record["methods"][0].pop("reference")
    assert lazy[0] == eager[0]
    assert lazy[1].read_bytes() == eager[1].read_bytes()
    assert load_program(lazy[1], "decode").graph_signature.buffers_to_mutate == {}


def test_each_program_is_freed_before_the_next_is_made(tmp_path):
    alive, counts = [], []

    def export_methods():
        for name in ("one", "two", "three"):
            counts.append(sum(weight() is not None for weight in alive))
            model = nn.Linear(64, 64).requires_grad_(False)
            alive.append(weakref.ref(model.weight))
            model = export(model, (torch.ones(1, 64),))
            yield name, model
            del model

    records, _ = hand_over(module_of(export_methods=export_methods), tmp_path)
    assert [method["name"] for method in records["methods"]] == ["one", "two", "three"]
    assert counts == [0, 0, 0]


def test_an_archive_that_the_exporter_writes_meanwhile_is_whole(tmp_path):
    model = nn.Linear(3, 3).requires_grad_(False)

    def export_methods():
        yield "one", export(model, X)
        torch.export.save(export(model, X), tmp_path / "own.pt2")
        yield "two", export(model, X)

    hand_over(module_of(export_methods=export_methods), tmp_path)
    own = torch.export.load(tmp_path / "own.pt2").module()
    assert torch.equal(own(*X), model(*X))


@pytest.mark.parametrize(
    ("values", "mistake"),
    [
        ([], "yielded NoneType"),
        (["one"], "yielded str"),
        ([("one", 3)], r"yielded \(str, int\)"),
        ([("a b", "program")], "cannot name a method: 'a b' must be letters"),
        ([("one", "program"), ("One", "program")], "differ only in case"),
        ([("one", "program"), ("one", "program")], "two of them differ only in case"),
    ],
)
def test_what_is_no_method_is_refused(values, mistake, tmp_path):
    program = export(nn.Linear(3, 3), X)
    pairs = [(value[0], program) if value[1:] == ("program",) else value for value in values]
    with pytest.raises(SourceError, match=mistake):
        hand_over(module_of(export_methods=lambda: iter(pairs)), tmp_path)
