"""Which combinations are lowered if predictions can tell."""

import itertools
from types import SimpleNamespace

import pytest

from pipeline.features.tuning.estimates import Estimates, differs, find_hopeless
from pipeline.features.tuning.guided import can_guide, follow_estimates
from pipeline.features.tuning.trials import Trial

OBJECTIVES = {"size": "min", "sqnr": "max"}
LIMITS = {"min_sqnr": 25.0}
# The prediction for each quantization: bytes of constants, and SQNR in dB.
PREDICTED = [(1000.0, 120.0), (500.0, 31.0), (400.0, 24.8), (300.0, 20.0), (600.0, 33.0)]
# Bytes that nothing predicts, for each list of partitioners.
OVERHEAD = [40.0, 10.0, 90.0]
SPACE = SimpleNamespace(
    axes={"defaults.quantize": PREDICTED, "defaults.partitioners": OVERHEAD, "emit.x": [0, 0]}
)
ALL = list(itertools.product(range(5), range(3), range(2)))
SCREENING = SimpleNamespace(
    names={choice: f"p-{'-'.join(map(str, choice))}" for choice in ALL},
    figures={choice: dict(zip(OBJECTIVES, PREDICTED[choice[0]], strict=True)) for choice in ALL},
)


def lower(choice, better=0.0, failing=(), portable=()):
    """Return the trial of a combination.

    It is judged only by the floor of 25 dB, and by how little its list of partitioners delegates.
    """
    quantization, partitioners, _ = choice
    if partitioners in failing:
        return Trial(1, choice, "p", {}, {}, ("can't be lowered",), ())
    size, sqnr = PREDICTED[quantization]
    figures = {"size": size + OVERHEAD[partitioners], "sqnr": min(sqnr + better, 120.0)}
    faults = ("breaks min_sqnr",) if figures["sqnr"] < 25 else ()
    if portable:
        figures["delegated_nodes"] = 0.2 if partitioners in portable else 0.9
        faults += ("breaks min_delegated_nodes",) if partitioners in portable else ()
    return Trial(1, choice, "p", figures, {}, faults, ())


def search(number=30, present="p-0-0-0", limits=LIMITS, **facts):
    """Return the trials of a search, keyed by combination."""
    batches = follow_estimates(SCREENING, SPACE, present, number, OBJECTIVES, limits)
    trials = {}
    choices = next(batches)
    while True:
        made = [lower(choice, **facts) for choice in choices]
        trials.update(zip(choices, made, strict=True))
        try:
            choices = batches.send(made)
        except StopIteration:
            return trials


def find_best(trials):
    sound = [choice for choice, trial in trials.items() if not trial.faults]
    return min(sound, key=lambda choice: trials[choice].figures["size"])


def test_a_search_lowers_few_and_ends_by_itself():
    trials = search()
    assert next(iter(trials)) == (0, 0, 0)  # the current config
    assert find_best(trials)[:2] == (1, 1)
    # Three lists of partitioners, and the estimated front, once each. No combination that is
    # predicted to miss the floor by far.
    assert len(trials) <= 7
    assert all(choice[0] != 3 for choice in trials)
    assert {choice[1] for choice in trials} == {0, 1, 2} and {c[2] for c in trials} == {0, 1}
    assert search() == trials  # the same again


def test_the_number_of_trials_holds():
    trials = search(4)
    assert len(trials) == 4 and find_best(trials)[:2] == (1, 1)


def test_what_is_predicted_to_miss_a_floor_by_little_is_lowered_and_judged():
    """24.8 dB are predicted and 25 required. Lowered, it has 25.1, and is the smallest."""
    assert (2, 1) not in {choice[:2] for choice, trial in search().items() if not trial.faults}
    assert find_best(search(better=0.3))[:2] == (2, 1)


def test_partitioners_that_lower_nothing_are_asked_once():
    trials = search(failing=(1,))
    assert sum(choice[1] == 1 for choice in trials) == 1
    assert find_best(trials)[:2] == (1, 0)


def test_a_floor_of_delegation_is_broken_once_by_a_list_of_partitioners():
    """Nothing predicts delegation; a list's trials with other quantizations reveal it."""
    floor = {**LIMITS, "min_delegated_nodes": 0.5}
    trials = search(limits=floor, portable=(1,))
    assert sum(choice[1] == 1 for choice in trials) == 1
    assert find_best(trials)[:2] == (1, 0)


def test_estimates_follow_the_most_similar_trial():
    estimates = Estimates(SCREENING, SPACE, LIMITS)
    assert estimates.estimate((1, 1, 0)) == {"size": 500, "sqnr": 31}
    estimates.add((0, 0, 0), lower((0, 0, 0)))
    assert estimates.estimate((1, 1, 0)) == {"size": 540, "sqnr": 31}
    packed = lower((4, 2, 0))
    packed = packed._replace(figures={"size": 300.0, "sqnr": 32.0})  # 16 bits, for example
    estimates.add((4, 2, 0), packed)
    assert estimates.estimate((1, 2, 0)) == {"size": 250, "sqnr": 30}


@pytest.mark.parametrize(
    ("one", "two", "different"),
    [
        ({"size": 1000, "sqnr": 30.0}, {"size": 1005, "sqnr": 30.4}, False),
        ({"size": 1000, "sqnr": 30.0}, {"size": 1020, "sqnr": 30.0}, True),
        ({"size": 1000, "sqnr": 30.0}, {"size": 1000, "sqnr": 31.0}, True),
    ],
)
def test_what_counts_as_different(one, two, different):
    assert differs(one, two, OBJECTIVES) is different


def test_only_predicted_objectives_guide_a_search():
    assert can_guide(OBJECTIVES) and not can_guide({"latency": "min", "sqnr": "max"})


def test_what_breaks_a_limit_by_far_is_hopeless():
    """20 dB with 25 required, but not 24.8; and combinations that can't become a package."""
    screening = SimpleNamespace(**vars(SCREENING), faults={(9,): "no"}, duplicates={(8,)})
    hopeless = find_hopeless(screening, LIMITS)
    assert {choice[0] for choice in hopeless} == {3, 8, 9}
    assert {choice[0] for choice in find_hopeless(screening, {"max_size": 560.0})} == {0, 8, 9}
