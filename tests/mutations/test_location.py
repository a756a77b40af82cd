"""When the mutation suite accepts that a damage was traced to its place."""

from tests.mutations.location import base, is_at, names, unplaced

WANTED = {"method": "run", "kind": "operator", "name": "aten::addmm.out", "instruction": 3}
FOUND = {"method": "run", "kind": "operator", "operator": "aten.linear.default", "what": ""}


def wanted(**fields):
    return {**WANTED, "delegate": -1, **fields}


def found(**fields):
    return {"module": "", "line": "", "backend": None, "partition": None, **FOUND, **fields}


def test_operators_are_the_same_by_any_name():
    assert base("aten::add.out") == base("aten.add.Tensor") == "add"
    assert base("quantized_decomposed::quantize_per_tensor.out") == "quantize_per_tensor"
    assert "linear" in names("aten::addmm.out")
    assert "softmax" in names("aten::_softmax.out")
    assert "linear" not in names("aten::relu.out")


def test_a_culprit_is_where_it_is_expected_or_is_not():
    assert is_at(wanted(), found())
    assert not is_at(wanted(), found(kind="delegate"))
    assert not is_at(wanted(), found(operator="aten.relu.default"))
    assert is_at(wanted(), found(operator="", what="stops at aten::addmm.out"))
    assert not is_at(wanted(), found(kind="state"))
    delegate = wanted(kind="delegate", name="XnnpackBackend", delegate=1)
    assert is_at(delegate, found(kind="delegate", backend="XnnpackBackend", partition=1))
    assert not is_at(delegate, found(kind="delegate", backend="XnnpackBackend", partition=0))
    assert not is_at(delegate, found(kind="operator"))
    assert not is_at(delegate, found(kind="state"))
    assert is_at(wanted(kind="operator|state"), found(kind="state"))
    verdict = {"methods": {"run": "failed", "other": "equivalent"}, "culprits": [wanted()]}
    assert unplaced({**verdict, "found": [found()]}) == []
    assert unplaced({**verdict, "found": [found(method="other")]}) == ["run"]
    assert unplaced({**verdict, "culprits": [wanted(kind="")], "found": []}) == []
    both = {"run": "failed", "other": "failed"}  # damage to the first one affects both
    assert unplaced({**verdict, "methods": both, "found": [found()]}) == []
