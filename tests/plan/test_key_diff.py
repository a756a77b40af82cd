"""Differences between two keys are described down to the file, the config key, the tensor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.plan.key_diff import describe_differences
from pipeline.store.json_diff import diff_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON, JSON)
def test_differences_are_reported_exactly_where_there_are_some(old, new):
    assert bool(list(diff_json(old, new))) == (old != new)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=3), JSON)
def test_every_changed_key_has_a_line(old, value):
    new = {**old, "more": value}
    reported = list(describe_differences(old, new, lambda _: None, "models/m.py"))
    assert bool(reported) == (old != new)


A, B = "0" * 64, "1" * 64
PARTS = {
    A: {
        "tensors": {"l.weight": "a", "gone": "x"},
        "modules": {"": "m", "layers.0": "n"},
        "ranges": {"symbol 0": {"min_val": 2, "max_val": 8}},
        "signature": "s",
        "call": "c",
        "wiring": "w",
        "schema": "v",
    },
}
PARTS[B] = {
    **PARTS[A],
    "tensors": {"l.weight": "b", "here": "x"},
    "modules": {"": "m", "layers.0": "o"},
    "ranges": {"symbol 0": {"min_val": 2, "max_val": 9}},
    "wiring": "x",
}
PARTS["2" * 64] = {**PARTS[A], "wiring": "y"}


def method(**fields):
    return {"methods": {"encode": fields}}


TOLD = {
    "library": (
        {"toolchain": {"torch": "2.12"}},
        {"toolchain": {"torch": "2.13"}},
        ["library torch: 2.12 -> 2.13"],
    ),
    "new library": (
        {"toolchain": {}},
        {"toolchain": {"vela": "5"}},
        ["library vela: none -> 5"],
    ),
    "own code": ({"code": A}, {"code": B}, ["pte-pipeline's own code changed"]),
    "machine": (
        {"host": {"isa": ["avx2"]}},
        {"host": {"isa": ["avx2", "fma"]}},
        ["this machine, isa: ['avx2'] -> ['avx2', 'fma']"],
    ),
    "metadata": (
        {"compiles": {}},
        {"compiles": {}, "metadata": {"config": A, "revision": None}},
        ["config emit.metadata is new"],
    ),
    "what metadata contains": (
        {"metadata": {"config": A, "revision": "1"}},
        {"metadata": {"config": B, "revision": "2"}},
        [
            "the config, whose digest is in metadata, changed",
            "the commit in metadata: 1 -> 2",
        ],
    ),
    "a commit in metadata": (
        {"metadata": {"config": A, "revision": None}},
        {"metadata": {"config": A, "revision": "1"}},
        ["config emit.metadata_revision: None -> 1"],
    ),
    "source": ({"source": A}, {"source": B}, ["models/m.py changed"]),
    "file read": (
        {"reads": {"files": {"a.txt": A, "b.txt": None, "c.txt": A, "d.txt": A, "~/lib/x.py": A}}},
        {"reads": {"files": {"a.txt": B, "b.txt": B, "c.txt": None, "e.txt": A, "~/lib/x.py": B}}},
        [
            "a.txt changed",
            "b.txt appeared",
            "c.txt is gone",
            "d.txt is not read",
            "e.txt is read",
            "x.py (outside the workspace, ~/lib/x.py) changed",
        ],
    ),
    "references": (
        {"programs": {"a": {"program": A, "reference": A}, "b": {"program": A}}},
        {"programs": {"a": {"program": A, "reference": B}, "b": {"program": A, "golden": [B, B]}}},
        [
            "the outputs of the reference of a changed",
            "the file of recorded outputs of b is new",
        ],
    ),
    "listing read": (
        {"reads": {"listings": {"shards": A}, "links": {"w": "a"}}},
        {"reads": {"listings": {"shards": B}, "links": {"w": "b"}}},
        ["link w changed", "listing of shards/ changed"],
    ),
    "environment read": (
        {"reads": {"environment": {"A": A, "B": None, "C": A, "*": "A C OLD"}}},
        {"reads": {"environment": {"A": B, "B": B, "C": None, "*": "A B NEW"}}},
        [
            "environment variables (the exporter reads all): B, NEW set, C, OLD unset",
            "environment variable A changed",
            "environment variable B is set",
            "environment variable C is no longer set",
        ],
    ),
    "module read": (
        {"reads": {"modules": {"x": [], "y": ["models/y.py"]}}},
        {"reads": {"modules": {"x": ["models/x.py"], "y": []}}},
        ["module x is in models/x.py", "module y is gone"],
    ),
    "option": (
        method(partitioners=[{"name": "xnnpack", "options": {"per_op_mode": False}}]),
        method(partitioners=[{"name": "xnnpack", "options": {"per_op_mode": True}}]),
        ["config methods.encode.partitioners[0].options.per_op_mode: False -> True"],
    ),
    "setting": (
        {"settings": {"atol": 1e-4}},
        {"settings": {"atol": 1e-3}},
        ["config validate.atol: 0.0001 -> 0.001"],
    ),
    "measured": (
        {"measured": {"settings": {"atol": 1e-4}}, "held_to": {"gates": {"max_size": 1}}},
        {"measured": {"settings": {"atol": 1e-3}}, "held_to": {"gates": {"max_size": 2}}},
        ["config validate.gates.max_size: 1 -> 2", "config validate.atol: 0.0001 -> 0.001"],
    ),
    "library of operators": (
        {"operators": ["a"], "operator_inputs": {"a": {"operators/a.py": A}}},
        {"operators": ["a", "b"], "operator_inputs": {"a": {"operators/a.py": B}, "b": {}}},
        [
            "operators/a.py, of the operators in a, changed",
            "the library of operators b is new",
            "libraries of operators changed",
        ],
    ),
    "pass": (
        {"passes": {"own:fuse": {"passes/own.py": A}}},
        {"passes": {"own:fuse": {"passes/own.py": B}}},
        ["passes/own.py, of the pass own:fuse, changed"],
    ),
    "names that count by now": (
        {**method(names=None), "emit": {"external_weights": {}}},
        {**method(names=A), "emit": {"external_weights": {"weights": ["*"]}}},
        ["config emit.external_weights.weights is new"],
    ),
    "order of files": (
        {"file_order": ["one", "two"]},
        {"file_order": ["two", "one"]},
        ["the order of files in emit.external_weights or external_files changed"],
    ),
    "ranges": (
        {"measured": {"keep_ranges": {}}},
        {"measured": {"keep_ranges": {"encode": True}}},
        ["config methods.encode.edge.keep_ranges is new"],
    ),
    "calibration": (
        method(calibration=A),
        method(calibration=B),
        ["calibration inputs of encode changed"],
    ),
    "object": ({"compiles": {"encode": A}}, {"compiles": {"encode": B}},
               ["method encode changed"]),
    "left out": ({"compiles": {"encode": A}}, {"compiles": {}}, ["method encode was left out"]),
    "package": ({"files": {"m.pte": A}}, {"files": {"m.pte": B}}, ["the package's m.pte changed"]),
    "unknown program": (
        method(program=A),
        method(program="9" * 64),
        ["the program of encode changed"],
    ),
    "program": (
        method(program=A),
        method(program=B),
        [
            "encode: tensor gone is gone",
            "encode: tensor here is new",
            "encode: tensor l.weight changed",
            "encode: operators of module layers.0 changed",
            "encode: range of symbol 0.max_val: 8 -> 9",
        ],
    ),
    "wiring": (
        method(program=A),
        method(program="2" * 64),
        ["encode: shapes, metadata or wiring of its graph changed"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "reported"), TOLD.values(), ids=TOLD)
def test_changes_are_reported_in_words(old, new, reported):
    assert list(describe_differences(old, new, PARTS.get, "models/m.py")) == reported


def test_many_changed_tensors_are_summed_up():
    names = {f"t{number}": "a" for number in range(9)}
    other = dict.fromkeys(names, "b")
    parts = {A: {**PARTS[A], "tensors": names}, B: {**PARTS[A], "tensors": other}}
    reported = list(describe_differences(method(program=A), method(program=B), parts.get, ""))
    assert len(reported) == 6
    assert reported[-1] == "encode: and 4 more tensors"
