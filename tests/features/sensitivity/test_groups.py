"""Groups of modules: few trials find the modules that matter when moved to another backend."""

import pytest

from pipeline.features.sensitivity.groups import find_disjoint, find_groups, split

LAYERS = [f"body.layers.{n}.{part}" for n in range(8) for part in ("norm", "linear")]


def _effect_of(*names):
    def measure(group):
        inside = [name for name in names for part in group if f"{name}.".startswith(f"{part}.")]
        return 0.1 * len(inside)

    return measure


def test_halves_lead_to_the_module_that_matters():
    effects, complete = find_groups(LAYERS, _effect_of("body.layers.5.linear"), 9, 0.05)
    assert complete and effects[("body.layers.5.linear",)] == 0.1
    assert next(iter(effects)) == tuple(f"body.layers.{n}" for n in range(8))
    assert len(effects) == 9 < len(LAYERS)


def test_nothing_is_split_that_has_no_effect():
    effects, complete = find_groups(LAYERS, _effect_of(), 9, 0.05)
    assert complete and len(effects) == 1


def test_few_modules_are_tried_one_by_one():
    effects, complete = find_groups(["stem", "head"], _effect_of("head"), 8, 0.05)
    assert complete and effects == {("stem", "head"): 0.1, ("stem",): 0, ("head",): 0.1}


def test_trials_are_bounded():
    effects, complete = find_groups(LAYERS, _effect_of("body.layers.5.linear"), 4, 0.05)
    assert not complete and len(effects) == 4


@pytest.mark.parametrize(
    ("group", "parts"),
    [
        (("a", "b", "c"), [("a",), ("b", "c")]),
        (("block",), [("block.one",), ("block.two",)]),
        (("leaf",), []),
    ],
)
def test_a_module_is_split_into_those_inside(group, parts):
    assert split(group, ["a", "b", "c", "block", "block.one", "block.two", "leaf"]) == parts


def test_no_module_is_moved_twice():
    gains = {("a", "b"): 3.0, ("a.in",): 5.0, ("b",): 1.0}
    assert find_disjoint(gains, ["a", "a.in", "b"]) == [("a.in",), ("b",)]
