"""Every way in which Python gets at constants is detected, together with the code that did it."""

import pytest
import torch

from pipeline.compile.inspect.storages import storage_bytes
from pipeline.features.refit.hooks import watched
from pipeline.features.refit.recipes import UNKNOWN, Evaluation
from pipeline.features.refit.unit import CannotRefitError, Recipe, _check_guards
from pipeline.features.refit.watch import Watch

READS = {
    "item": lambda w: w.sum().item(),
    "truth": lambda w: bool((w >= 0).all()),
    "comparison": lambda w: 1 if w.min() >= 0 else 2,
    "list": lambda w: w.tolist(),
    "one of a list": lambda w: w[1].tolist(),
    "numpy": lambda w: w.numpy().sum(),
    "detached": lambda w: w.detach().numpy(),
    "array": lambda w: __import__("numpy").asarray(w),
    "equal": lambda w: torch.equal(w, torch.zeros(3)),
    "close": lambda w: torch.allclose(w, torch.zeros(3)),
    "text": lambda w: "0." in repr(w),
    "indices": lambda w: len(torch.nonzero(w)),
    "mask": lambda w: w[w > 0].shape,
    "unique": lambda w: torch.unique(w).numel(),
    "storage": lambda w: w.untyped_storage().tolist(),
    "loop": lambda w: [float(each) for each in w],
    "membership": lambda w: 1.0 in w,
    "dlpack": lambda w: torch.utils.dlpack.to_dlpack(w) and w.__dlpack__(),
    "bare dlpack": lambda w: torch._C._to_dlpack(w),
    "sections": lambda w: torch.arange(9).tensor_split(w.abs().long()),
    "named sections": lambda w: torch.tensor_split(
        torch.arange(9), tensor_indices_or_sections=w.abs().long()
    ),
    "address": lambda w: w.data_ptr(),
    "a tensor of elements": lambda w: torch.tensor([[w[0], w[1]]]),
    "a tensor of data": lambda w: torch.tensor(data=(w[0], 1.0)),
}
METADATA = {
    "shape": lambda w: (w.shape, w.dtype, w.stride(), w.numel(), w.device),
    "layout": lambda w: (w.is_contiguous(), w.ndim, w.storage_offset(), w.requires_grad),
    "copies": lambda w: w.t().contiguous().clone().to(torch.float64),
    "parts": lambda w: w.tensor_split(3),
    "zeros": lambda w: float(torch.zeros_like(w).sum()),
    "a storage's size": lambda w: w.untyped_storage().nbytes(),
}


def watched_read(read):
    watch, weight = Watch(), torch.tensor([1.0, -2.0, 3.0])
    watch.add_source(weight, "run", "weights", "head.weight")
    with watched(watch):
        read(weight)
    return watch, weight


@pytest.mark.parametrize("name", READS)
def test_values_that_reach_python_are_guarded(name):
    watch, _ = watched_read(READS[name])
    assert watch.guards
    assert all(__name__ in guard["where"] for guard in watch.guards), watch.guards


@pytest.mark.parametrize("name", METADATA)
def test_what_is_no_value_is_not(name):
    assert not watched_read(METADATA[name])[0].guards


def test_a_value_that_is_computed_twice_is_one_step():
    watch, _ = watched_read(lambda w: [w * 2, w * 2, w * 3, (w * 2).neg()])
    assert [step["op"] for step in watch.steps[1:]] == [
        *["aten.mul.Tensor"] * 2,
        "aten.neg.default",
    ]
    assert watch.steps[3]["args"][0]["step"] == 1
    # Nothing is known about the results of operators that numpy can't repeat.
    watch, _ = watched_read(lambda w: [w.sin(), w.sin()])
    assert [step["op"] for step in watch.steps[1:]] == [UNKNOWN] * 2


def test_a_guard_holds_while_the_answer_is_the_same():
    """It guards the answer to a query, not the weight itself."""
    watch, _ = watched_read(READS["truth"])
    recipe = Recipe(watch.steps, watch.guards, {}, {})

    def check(values):
        weight = torch.tensor(values)
        _check_guards(recipe, Evaluation(watch.steps, lambda step: storage_bytes(weight)))

    check([4.0, -1.0, 2.0])
    with pytest.raises(CannotRefitError, match=r"line \d+ reads values of head.weight, which"):
        check([4.0, 1.0, 2.0])


def test_what_is_not_repeated_says_what_it_was_made_of():
    watch, weight = Watch(), torch.rand(3)
    watch.add_source(weight, "run", "weights", "head.weight")
    with watched(watch):
        made = torch.cumsum(weight, 0) * 2
    step = watch.steps[watch.find(made).step - 1]
    assert (step["op"], step["what"], step["of"]) == (UNKNOWN, "aten.cumsum.default", [0])
    assert __name__ in step["where"]


def test_changes_in_place_are_seen():
    watch, weight = Watch(), torch.rand(3)
    watch.add_source(weight, "run", "weights", "head.weight")
    with watched(watch):
        before = watch.find(weight)
        weight.add_(1)
        assert watch.find(weight).step != before.step
        assert watch.steps[-1]["op"] == UNKNOWN


def test_all_is_as_before_when_nothing_is_watched():
    read = torch.Tensor.numpy, torch.Tensor.tolist, torch.UntypedStorage.data_ptr
    with watched(Watch()):
        assert torch.Tensor.numpy is not read[0]
    assert (torch.Tensor.numpy, torch.Tensor.tolist, torch.UntypedStorage.data_ptr) == read
    assert "tolist" not in vars(torch.Tensor)
