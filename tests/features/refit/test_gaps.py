"""A compilation that wasn't fully observed yields no recipe by itself, and reports the gaps."""

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from pipeline.compile.inspect.storages import note_described, storage_bytes
from pipeline.features.refit import hooks
from pipeline.features.refit.hooks import watched
from pipeline.features.refit.learn import find_gap
from pipeline.features.refit.pieces import hash_shape, pair_objects
from pipeline.features.refit.recipes import Evaluation
from pipeline.features.refit.watch import Watch
from pipeline.store.digest import hash_bytes
from pipeline.store.releases import installed_versions
from tests.features.refit.random_changes import build, judge_changes


def compute_unseen(weight):
    """Compute as ExecuTorch's pass that evaluates constants does."""
    guard = torch._C._DisableTorchDispatch()
    made = weight * 2
    del guard
    return made


def compute_without_modes(weight):
    with torch.utils._python_dispatch._disable_current_modes():
        return weight * 2


class Named(torch.Tensor):
    """A tensor subclass."""


GAPS = {
    "no dispatch": (compute_unseen, "compute_unseen computes unseen"),
    "no modes": (compute_without_modes, "compute_without_modes computes unseen"),
    "a custom class": (lambda w: w.as_subclass(Named) + 1, "a custom class"),
    "a higher order operator": (
        lambda w: torch.ops.higher_order.cond(w.sum() > 0, lambda x: x, torch.neg, (w,)),
        "cond computes unseen",
    ),
    "sparse": (lambda w: w.to_sparse() * 2, "a custom class"),
    "a view with other signs": (
        lambda w: torch._neg_view(w) + 1,
        "takes a tensor whose values differ from its storage",
    ),
    "a value of unknown origin": (
        lambda w: w * torch.as_tensor([w[0], w[1]]).max().item(),
        "a tensor of unknown origin is read by",
    ),
    "an address of unknown origin": (
        lambda w: w * bool(torch.FloatTensor([w[0]]).numpy().any()),
        "a tensor of unknown origin is read by",
    ),
    "an unknown literal": (lambda w: w + torch.Tensor([2.0, 1.0, 0.0]), "of unknown origin in"),
}
NO_GAPS = {
    "an operator": lambda w: w * 2 + 1,
    "a copy": copy.deepcopy,
    "a copied storage": lambda w: torch.empty(0).set_(w.untyped_storage().clone()),
    "a tensor of numbers": lambda w: w + torch.tensor([2.0, 1.0, 0.0]),
    "a new tensor": lambda w: w + torch.full((3,), 0.5).neg(),
    "a write": lambda w: torch.zeros(3).copy_(w),
}


def watched_call(function):
    watch, weight = Watch(), torch.tensor([1.0, -2.0, 3.0])
    watch.add_source(weight, "run", "weights", "head.weight")
    with watched(watch):
        made = function(weight)
    return watch, weight, made


@pytest.mark.parametrize("name", GAPS)
def test_what_is_unseen_is_a_gap(name):
    function, gap = GAPS[name]
    assert any(gap in text for text in watched_call(function)[0].gaps)


@pytest.mark.parametrize("name", NO_GAPS)
def test_what_is_seen_is_none_and_repeated(name):
    watch, weight, made = watched_call(NO_GAPS[name])
    assert not watch.gaps
    evaluation = Evaluation(watch.steps, lambda step: storage_bytes(weight))
    place = watch.find(made)
    assert place is not None
    assert evaluation.values(place).tobytes() == made.numpy().tobytes()


def test_a_fake_tensor_that_keeps_its_value_is_a_guard():
    """It computes with the value where no operator is observed."""
    watch, weight = Watch(), torch.tensor(2.0)
    watch.add_source(weight, "run", "constants", "scale")
    with watched(watch), FakeTensorMode():
        fake = torch.ops.aten.lift_fresh_copy(weight)
    assert fake.constant is not None
    assert watch.guards


def test_harmless_code_turns_dispatching_off_by_its_name():
    with watched(Watch()):
        assert torch._C._DisableTorchDispatch is not no_dispatch
    assert torch._C._DisableTorchDispatch is no_dispatch


def test_what_a_description_or_a_serializer_takes_has_an_origin():
    watch = Watch()
    with watched(watch):
        note_described(torch.Tensor([1.0]), hash_bytes(b""))
        watch.note_stored(torch.Tensor([1.0]).untyped_storage())
    described, stored = watch.gaps
    assert "is described by" in described and "is stored by" in stored


def test_a_serializer_with_another_text_is_a_gap(monkeypatch):
    name = f"{__name__}:{test_a_serializer_with_another_text_is_a_gap.__qualname__}.<locals>.write"

    def write(storage):
        return storage.data_ptr()

    monkeypatch.setattr(hooks, "SERIALIZERS", (name,))
    monkeypatch.setattr(hooks, "has_known_text", lambda function: False)
    watch, _, _ = watched_call(lambda weight: write(weight.untyped_storage()))
    assert [*watch.gaps] == [f"{name} has unknown source code"]
    assert not watch.guards


def result_of(blobs, tensors=()):
    groups = ("constants", "mutable", "delegates", "external_constants", "named")
    unit_object = {group: [] for group in groups} | {"named_external": {}, "constants": blobs}
    return {
        "object": unit_object,
        "methods": {"run": {"constants": {"tensors": {key: {} for key in tensors}}}},
    }


def test_blobs_and_constants_that_nobody_saw_are_gaps(monkeypatch):
    blob = {"digest": "a", "size": 4}
    assert not find_gap([], {"a": [0]}, {"b": []}, result_of([blob], "b"))
    assert not find_gap([], {}, {}, result_of([{**blob, "size": 0}]))
    assert "unknown serializer" in find_gap([], {}, {}, result_of([blob]))
    assert "described before it was recorded" in find_gap([], {}, {}, result_of([], "b"))
    assert find_gap(["a gap"], {}, {}, result_of([])) == "a gap"
    monkeypatch.setattr(
        "pipeline.features.refit.learn.installed_versions",
        lambda: {**installed_versions(), "executorch": "9.9.9"},
    )
    assert "executorch 9.9.9" in find_gap([], {}, {}, result_of([]))


class Forgotten(set):
    """Made by another process, as far as this one knows."""

    def __contains__(self, item):
        return False


@pytest.mark.slow
def test_a_partition_that_another_process_made_is_a_gap(monkeypatch, tmp_path):
    monkeypatch.setattr(hooks, "_made_here", Forgotten())
    _, record = build("twins", tmp_path)
    assert not record["proven"]
    assert "a result of XnnpackBackend was found in the store" in record["why"]


@pytest.mark.slow
def test_a_partition_that_this_process_made_is_made_again_to_learn(tmp_path):
    verdicts, _ = judge_changes("twins", 8, tmp_path)
    assert verdicts["same"] and not verdicts["DIFFERENT"]


def test_the_keys_of_a_joint_unit_are_exchanged_method_by_method():
    def unit(first, second):
        named = [{"key": f"xnnpack/{key}", "size": 4} for key in (first, second)]
        keys = {"decode": [f"xnnpack/{first}"], "prefill": [f"xnnpack/{second}"]}
        return {"program": {"digest": "p"}, "named": named, "keys": keys}

    assert hash_shape([unit("a", "b")]) == hash_shape([unit("c", "d")])
    assert hash_shape([unit("a", "b")]) != hash_shape([unit("a", "a")])
    _, keys = pair_objects([unit("a", "b")], [unit("c", "d")])
    assert keys == {"xnnpack/a": "xnnpack/c", "xnnpack/b": "xnnpack/d"}


@pytest.mark.slow
def test_random_changes_give_what_compiling_gives(tmp_path):
    """A sample of `python -m tests.features.refit.random_changes`."""
    verdicts, _ = judge_changes("folded", 3, tmp_path)
    assert verdicts["same"] and not verdicts["DIFFERENT"]
