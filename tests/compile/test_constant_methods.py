"""Constant methods: every value that ExecuTorch's `constant_methods` accepts gives the joint call's
bytes, and every other value a one-line error."""

import collections
import enum
import json

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from torch import nn
from torch.export import export

from pipeline.compile.emit import emit
from pipeline.compile.lower import lower
from pipeline.compile.objects import make_object
from pipeline.config.validation import ValidateConfig
from pipeline.devices.bindings import Package
from pipeline.devices.interface import PackageFiles
from pipeline.program.constant_values import decode_constant, encode_constant, find_blobs
from pipeline.store.errors import PipelineError
from pipeline.store.forms import check_of
from pipeline.store.results import CONSTANT_METHODS
from pipeline.store.store import Store
from pipeline.validate.package import validate_package
from tests.support.linking import link


class Kind(enum.IntEnum):
    LARGE = 3


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.arange(4.0))

    def forward(self, x):
        return x + self.weight


VALUES = {
    "get_weight": torch.arange(4.0),  # stored once, as the method's own
    "get_view": torch.arange(100.0)[3:7],
    "get_transposed": torch.arange(6.0).reshape(2, 3).t(),
    "get_odd_strides": torch.ones(1, 3, 1, 1).to(memory_format=torch.channels_last),
    "get_scalar": torch.tensor(2.5, dtype=torch.bfloat16),
    "get_empty": torch.zeros(0, 3),
    "get_bools": torch.tensor([True, False]),
    "get_parameter": nn.Parameter(torch.ones(2)),
    "get_nested": [1, [2, [3.5, "x"]], True, []],
    "get_tuple": (1, "héé😀"),
    "get_dict": {"b": 1, "a": [torch.arange(3), 2]},
    "get_ordered": collections.OrderedDict(z=1, a=2),
    "get_numbered": {2: 1},
    "get_infinite": [float("inf"), float("nan")],
    "get_dtype": torch.float16,
    "get_layout": torch.strided,
    "get_enum": Kind.LARGE,
    "get_least": -(2**63),
    "get_none": [],
}
WRONG = {
    "None": None,
    "list": [None],
    "ndarray": torch.ones(2).numpy(),
    "int64": torch.ones(2, dtype=torch.int64).numpy()[0],
    "set": {1},
    "bytes": b"x",
    "sparse": torch.eye(2).to_sparse(),
    "meta": torch.empty(2, device="meta"),
    "named tuple": collections.namedtuple("Unknown", "a")(1),
    "64 bits": 2**63,
    "NUL": "a\0b",
}


def test_values_as_the_joint_call_writes_them(tmp_path):
    program = export(Weighted(), (torch.ones(4),))
    expected = to_edge_transform_and_lower({"forward": program}, constant_methods=VALUES)
    store = Store(tmp_path)
    records = {n: encode_constant(v, store.put) for n, v in VALUES.items()}
    records = json.loads(json.dumps(records))
    assert check_of(CONSTANT_METHODS)([[name, record] for name, record in records.items()])
    made = make_object(emit(lower({"forward": program}, {"forward": []})), store)
    linked = link([made], records, store)
    assert store.read(linked.pte.digest) == expected.to_executorch().buffer
    assert records["get_nested"] == VALUES["get_nested"] and records["get_enum"] == 3
    assert [len([*find_blobs(records[n])]) for n in ("get_dict", "get_tuple")] == [1, 0]

    pte = store.verified_path(linked.pte.digest)
    decoded = {name: decode_constant(each, store.read)[0] for name, each in records.items()}
    (weight,) = Package(PackageFiles.of(pte)).run("get_weight", ())
    assert torch.equal(weight, VALUES["get_weight"])

    def failures(**changed):
        settings = ValidateConfig(inputs=1, cases=[])
        return validate_package(pte, (), {"forward": program}, {}, settings, decoded | changed)

    assert failures().ok, failures().failures
    other = failures(get_weight=torch.ones(4), get_tuple=(1, "x"), get_view=torch.ones(100))
    assert other.failures == (
        "get_weight: returns [0.0, 1.0, 2.0, 3.0], must return [1.0, 1.0, 1.0, 1.0]",
        "get_view: returns [3.0, 4.0, 5.0, 6.0], must return a float32 tensor of [100]",
        "get_tuple: returns [1, 'héé😀'], must return (1, 'x')",
    )


@pytest.mark.parametrize("words", WRONG)
def test_other_values_are_refused_with_what_they_must_be(words):
    with pytest.raises(ValueError, match=r"must be") as caught:
        encode_constant(WRONG[words], lambda data: "0" * 64)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"dtype": "load"}, {"dtype": "x"}, {"sizes": [9]}])
def test_a_tensor_that_does_not_fit_its_bytes_is_told_in_a_line(tmp_path, change):
    store = Store(tmp_path)
    record = encode_constant(torch.ones(4), store.put)
    record["leaves"][0]["tensor"].update(change)
    with pytest.raises(PipelineError, match="differs from its record in the store or its remote"):
        decode_constant(record, store.read)
