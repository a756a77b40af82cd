"""Which modules are kept in float, and after how many probes, with made-up noise."""

import math

import pytest

from pipeline.features.sensitivity.search import (
    NoiseSearch,
    OutOfBudgetError,
    count_one_by_one,
    to_decibels,
    to_share,
)

NAMES = [f"layers.{number}" for number in range(32)]
QUIET = 1e-6


def search_of(noise, limit, estimates=None, fixed=(), most=math.inf, names=NAMES):
    """Search modules whose noise adds up; `noise` gives some modules' noise in two coordinates."""
    probes = []

    def probe(modules):
        if len(probes) >= most:
            raise OutOfBudgetError
        probes.append(modules)
        columns = zip(*(noise.get(name, (QUIET, QUIET)) for name in modules), strict=True)
        return tuple(map(math.fsum, columns)) or (0.0, 0.0)

    true = {name: max(noise.get(name, (QUIET,))) for name in names}
    search = NoiseSearch({**true, **(estimates or {})}, probe, fixed)
    search.run(limit)
    return search, len(probes)


def test_one_noisy_module_takes_three_probes():
    search, probes = search_of({"layers.21": (0.5, 0.0)}, 1e-3)
    assert search.kept == ["layers.21"] and search.reached
    assert max(search.rest) == pytest.approx(31 * QUIET)
    assert probes <= 3  # all, none, and without it; one by one would take 33


def test_many_noisy_modules_take_a_bisection():
    noise = {name: (0.001 * 2**-number, 0.0) for number, name in enumerate(NAMES)}
    search, probes = search_of(noise, 1e-5)
    assert search.kept == NAMES[:8]
    assert probes <= 7


@pytest.mark.parametrize("factor", [0.01, 0.2, 5, 100])
def test_estimates_that_are_all_off_cost_probes_alone(factor):
    noise = {name: (0.001 * 2**-number, 0.0) for number, name in enumerate(NAMES)}
    wrong = {name: values[0] * factor for name, values in noise.items()}
    search, probes = search_of(noise, 1e-5, estimates=wrong)
    assert search.kept == NAMES[:8]
    assert probes < 20  # one by one would take 33


def test_what_was_estimated_too_high_is_given_back():
    noise = {"layers.3": (0.02, 0.0), "layers.4": (0.0001, 0.0)}
    search, _ = search_of(noise, 1e-3, estimates={"layers.4": 0.03, "layers.3": 0.002})
    assert search.kept == ["layers.3"]


def test_the_noise_of_each_coordinate_counts():
    search, _ = search_of({"layers.3": (0.02, 0.0), "layers.30": (0.0, 0.03)}, 1e-3)
    assert {*search.kept} == {"layers.3", "layers.30"}


def test_what_cannot_be_kept_is_not():
    search, _ = search_of({"": (0.5, 0.5)}, 1e-3, fixed=[""], names=["", *NAMES])
    assert search.is_needed and not search.reached
    assert "" not in search.ranked


def test_without_need_the_noisiest_are_named():
    search, _ = search_of({"layers.7": (0.001, 0.0)}, 0.5)
    assert not search.is_needed
    assert search.kept == ["layers.7"]


def test_a_spent_budget_proposes_nothing():
    noise = dict.fromkeys(NAMES, (0.001, 0.0))
    search, probes = search_of(noise, 1e-2, most=2)
    assert probes == 2
    assert not search.complete and not search.reached


def test_decibels():
    assert to_decibels(to_share(30.0)) == pytest.approx(30.0)
    assert to_decibels(0.0) == math.inf
    assert to_decibels(math.inf) == -math.inf


def test_kinds_count_where_there_are_several():
    assert count_one_by_one(["a", "b"], {"add": frozenset()}) == 3
    assert count_one_by_one(["a", "b"], {"add": frozenset(), "linear": frozenset()}) == 5
