"""Limits, fronts, the best trial, and joint limits."""

from types import SimpleNamespace

import pytest

from pipeline.features.tuning.joint import choose_within, measure_losses, name_limits
from pipeline.features.tuning.ranking import (
    describe_violations,
    find_front,
    measure_violations,
    parse_limits,
)
from pipeline.features.tuning.sharing import FamilyWeights
from pipeline.features.tuning.trials import Trial
from pipeline.store.errors import PipelineError

OBJECTIVES = {"size": "min", "sqnr": "max"}
LIMITS = parse_limits({"max_size": "1kB", "min_sqnr": 20})
NAMES = ("size", "sqnr")


def trial(number, size, sqnr, *faults):
    return Trial(number, (number,), f"p-{number}", {"size": size, "sqnr": sqnr}, {}, faults, ())


TRIALS = [
    trial(1, 900, 40),
    trial(2, 500, 30),
    trial(3, 500, 20),  # as small as the second, and worse
    trial(4, 100, 10, "breaks a limit"),
    trial(5, 950, 40),  # beaten by the first
    trial(6, 1000, 80),
    trial(7, 500, 30),  # the same as the second
]


def test_the_front_has_what_no_other_trial_beats():
    assert [t.number for t in find_front(TRIALS, OBJECTIVES)] == [2, 1, 6]
    assert [t.number for t in find_front(TRIALS, {"sqnr": "max"})] == [6]


@pytest.mark.parametrize(
    ("figures", "violations", "sentences"),
    [
        ({"size": 500, "sqnr": 30}, (-0.5, -0.5), []),
        ({"size": 1500, "sqnr": 20}, (0.5, 0.0), ["size 1.5 kB breaks max_size 1.0 kB"]),
        ({"size": 1000}, (0.0, 1.0), ["no figure sqnr for the limit min_sqnr 20.0 dB"]),
    ],
)
def test_limits(figures, violations, sentences):
    assert measure_violations(figures, LIMITS, NAMES) == pytest.approx(violations)
    assert list(describe_violations(figures, LIMITS, NAMES)) == sentences


def test_limits_on_other_figures_are_left_out():
    assert list(describe_violations({"size": 1500}, LIMITS, ("sqnr",))) == [
        "no figure sqnr for the limit min_sqnr 20.0 dB"
    ]


def search(package, trials):
    space = SimpleNamespace(package=package)
    return SimpleNamespace(space=space, trials=trials, objectives=OBJECTIVES)


def test_losses_go_from_the_best_to_the_worst():
    front = find_front(TRIALS, OBJECTIVES)
    assert measure_losses(front, OBJECTIVES) == [1.0, 0.8, 0.0]


def test_a_joint_limit_chooses_what_loses_least():
    searches = [
        search("a", [trial(1, 100, 10), trial(2, 200, 40)]),
        search("b", [trial(1, 100, 10), trial(2, 190, 20), trial(3, 400, 40)]),
    ]
    trials, lines = choose_within(searches, {"size": 500}, {})
    assert [t.number for t in trials] == [2, 2]
    assert sum(t.figures["size"] for t in trials) <= 500
    # Checked by hand: no other choice that fits loses less.
    losses = {"a": {1: 1.0, 2: 0.0}, "b": {1: 1.0, 2: 2 / 3, 3: 0.0}}
    sizes = {"a": {1: 100, 2: 200}, "b": {1: 100, 2: 190, 3: 400}}
    best = min(
        losses["a"][x] + losses["b"][y]
        for x in losses["a"]
        for y in losses["b"]
        if sizes["a"][x] + sizes["b"][y] <= 500
    )
    chosen = losses["a"][trials[0].number] + losses["b"][trials[1].number]
    assert chosen == pytest.approx(best)
    assert lines[0] == "together: size 390 B of at most 500 B"


def with_memory(number, size, sqnr, memory):
    figures = {"size": size, "sqnr": sqnr, "planned_memory": memory}
    return trial(number, size, sqnr)._replace(figures=figures)


def test_joint_limits_on_size_and_memory_hold_together():
    """Checked by hand: the best of both takes 900 bytes of memory. Only one other choice meets both
    limits, with a trial that objectives alone would leave out."""
    searches = [
        search("a", [with_memory(1, 100, 10, 100), with_memory(2, 200, 40, 500)]),
        search(
            "b",
            [
                with_memory(1, 200, 40, 400),
                with_memory(2, 250, 30, 200),
                with_memory(3, 240, 20, 100),
            ],
        ),
    ]
    limits = {"size": 460, "planned_memory": 700}
    trials, lines = choose_within(searches, limits, {})
    assert [t.number for t in trials] == [2, 2]
    assert (
        lines[0] == "together: size 450 B of at most 460 B, planned_memory 700 B of at most 700 B"
    )
    # The app's other content counts too.
    other = {"c": {"size": 20, "planned_memory": 0}}
    trials, _ = choose_within(searches, limits, other)
    assert [t.number for t in trials] == [1, 1]


def test_weights_that_a_family_shares_count_once():
    """Checked by hand: two float packages share 90 of 100 bytes, so both fit with the fixed one."""
    searches = [
        search("a", [named("a-1", 1, 100, 40), named("a-2", 2, 60, 20)]),
        search("b", [named("b-1", 1, 100, 40), named("b-2", 2, 60, 20)]),
    ]
    blobs = {"a-1": {"w": 90}, "a-2": {"a": 50}, "b-1": {"w": 90}, "b-2": {"b": 50}, "c": {"w": 90}}
    constants = {"c": {"size": 95}, "d": {"size": 10}}
    numbers, lines = choose(searches, 125, constants, [FamilyWeights(["a", "b"], ["c"], blobs)])
    assert numbers == [1, 1]
    assert lines[:2] == [
        "together: size 125 B of at most 125 B",
        "  180 B that packages of a family share count once",
    ]
    # With another base, the family shares other weights; without one, none.
    base = FamilyWeights(["a", "b"], ["c"], blobs, {"v": 90})
    for families in ([base], []):
        numbers, lines = choose(searches, 225, constants, families)
        assert numbers == [2, 2] and lines[0] == "together: size 225 B of at most 225 B"
    with pytest.raises(
        PipelineError, match=r"has 40,000 choices of trials, but at most 20,000 are"
    ):
        many = [search("a", searches[0].trials * 100), search("b", searches[1].trials * 100)]
        choose(many, 125, constants, [base])


def named(name, number, size, sqnr):
    return trial(number, size, sqnr)._replace(name=name)


def choose(searches, size, constants, families):
    trials, lines = choose_within(searches, {"size": size}, constants, families)
    return [trial.number for trial in trials], lines


def test_memory_is_the_peak_on_a_device_that_all_searches_name():
    names = [["size", "peak_memory.native"], ["sqnr", "peak_memory.native"]]
    searches = [SimpleNamespace(names=list(figures)) for figures in names]
    sizes = {"size": None, "memory": 1000}
    assert name_limits(searches, sizes) == {"peak_memory.native": 1000}
    searches[1].names = ["sqnr"]
    assert name_limits(searches, sizes) == {"planned_memory": 1000}
    assert searches[1].names == ["sqnr", "planned_memory"]


def test_a_joint_limit_that_nothing_holds():
    with pytest.raises(PipelineError, match="the minimum is size 200 B, at most 150 B allowed"):
        searches = [search("a", [trial(1, 100, 1)]), search("b", [trial(1, 100, 1)])]
        choose_within(searches, {"size": 150}, {})
