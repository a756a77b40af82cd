"""Which combinations are tried: all of a small space, and Optuna's suggestions from a large one."""

import sys

import pytest

from pipeline.features.tuning.sampler import sample
from pipeline.features.tuning.space import Space
from pipeline.features.tuning.trials import Trial
from pipeline.store.errors import PipelineError

OBJECTIVES = {"size": "min", "sqnr": "max"}


class Grid(Space):
    """A space of axes with these numbers of alternatives."""

    def __init__(self, *sizes):
        self.package = "p"
        self.axes = {f"axis{number}": [None] * size for number, size in enumerate(sizes)}


def follow(space, number, seed=0, excluded=()):
    """Return the combinations requested if the sum of its numbers is the size of a combination,
    and a sum below 3 breaks a limit."""
    batches = sample(space, number, seed, OBJECTIVES, excluded)
    choices = next(batches)
    tried = []
    while True:
        tried += choices
        trials = []
        for choice in choices:
            figures = {"size": sum(choice), "sqnr": 10.0 * choice[0]}
            violations = (3.0 - sum(choice),)
            faults = ("too small",) if violations[0] > 0 else ()
            trials.append(Trial(1, choice, "p-1", figures, {}, faults, violations))
        try:
            choices = batches.send(trials)
        except StopIteration:
            return tried


def test_a_small_space_is_tried_as_a_whole_without_optuna(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert follow(Grid(2, 3), 6) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert follow(Grid(2, 3), 4, excluded={(0, 0), (1, 1)}) == [(0, 1), (0, 2), (1, 0), (1, 2)]
    with pytest.raises(PipelineError, match=r"needs Optuna; .*`--trials 6` tries all"):
        follow(Grid(2, 3), 5)


@pytest.mark.slow
def test_a_large_space_is_sampled_by_seed():
    pytest.importorskip("optuna")
    first = follow(Grid(4, 4, 4), 24)
    assert len(set(first)) == 24
    assert follow(Grid(4, 4, 4), 24) == first
    assert follow(Grid(4, 4, 4), 24, seed=1) != first
    excluded = set(first[:8])
    rest = follow(Grid(4, 4, 4), 24, excluded=excluded)
    assert len(set(rest)) == 24 and excluded.isdisjoint(rest)
    # A longer search begins like a shorter one, with as many random trials.
    assert len(set(follow(Grid(2, 3), 5))) == 5
