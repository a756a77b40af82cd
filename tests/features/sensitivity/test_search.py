"""Which modules are kept in float, and in how many probes, on noise that is made up."""

import math

import pytest

from pipeline.features.sensitivity.search import (
    NoiseSearch,
    OutOfBudgetError,
    count_one_by_one,
    order_alike,
    to_decibels,
    to_share,
)

NAMES = [f"layers.{number}" for number in range(32)]


def search_of(noise, limit, fixed=(), most=math.inf, names=NAMES):
    """Search modules whose noise adds up; `noise` gives that of some in each coordinate."""
    probes = []

    def probe(modules):
        if len(probes) >= most:
            raise OutOfBudgetError
        probes.append(modules)
        columns = zip(*(noise.get(name, (1e-6, 1e-6)) for name in modules), strict=True)
        return tuple(map(math.fsum, columns)) or (0.0, 0.0)

    search = NoiseSearch(names, probe, fixed)
    search.run(limit)
    return search, len(probes)


def test_one_noisy_module_is_found_by_halving():
    search, probes = search_of({"layers.21": (0.5, 0.0)}, 1e-3)
    assert search.kept == ["layers.21"] and search.reached
    assert max(search.rest) == pytest.approx(31e-6)
    # Halving 32 takes 5 probes, whose remainders may be measured too; one by one takes 33.
    assert probes <= 13


@pytest.mark.parametrize(
    ("noise", "kept"),
    [
        ({"layers.3": (0.02, 0.0), "layers.30": (0.0, 0.03)}, {"layers.3", "layers.30"}),
        ({"layers.3": (0.02, 0.0), "layers.4": (0.0009, 0.0)}, {"layers.3"}),
        # One that two coordinates need takes the place of one that either would be kept for.
        ({"layers.0": (0.02, 0.02), "layers.9": (0.0001, 0.0)}, {"layers.0"}),
    ],
)
def test_the_noisiest_of_each_coordinate_are_kept(noise, kept):
    search, _ = search_of(noise, 1e-3)
    assert {*search.kept} == kept
    assert max(search.rest) <= 1e-3


def test_a_module_that_is_not_needed_is_given_back():
    noise = {"layers.0": (0.004, 0.0), "layers.1": (0.0, 0.005), "layers.2": (0.006, 0.006)}
    search, _ = search_of(noise, 0.0061)
    assert search.kept == ["layers.2"]


def test_what_cannot_be_kept_is_not():
    search, _ = search_of({"": (0.5, 0.5)}, 1e-3, fixed=[""], names=["", *NAMES])
    assert not search.reached
    assert "" not in search.kept


def test_without_need_the_noisiest_are_named():
    search, _ = search_of({"layers.7": (0.001, 0.0)}, 0.5)
    assert not search.is_needed
    assert search.kept == ["layers.7"]


def test_a_spent_budget_proposes_nothing():
    search, probes = search_of({"layers.21": (0.5, 0.0)}, 1e-3, most=3)
    assert probes == 3
    assert not search.complete and not search.reached


def test_modules_of_one_role_are_next_to_each_other():
    names = ["a.0.in", "a.0.out", "a.1.in", "a.1.out", "head"]
    assert order_alike(names) == ["a.0.in", "a.1.in", "a.0.out", "a.1.out", "head"]


def test_decibels():
    assert to_decibels(to_share(30.0)) == pytest.approx(30.0)
    assert to_decibels(0.0) == math.inf
    assert to_decibels(math.inf) == -math.inf


def test_kinds_count_where_there_are_several():
    assert count_one_by_one(["a", "b"], {"add": frozenset()}) == 3
    assert count_one_by_one(["a", "b"], {"add": frozenset(), "linear": frozenset()}) == 5
