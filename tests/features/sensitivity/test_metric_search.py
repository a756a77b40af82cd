"""The smallest set by a metric: the fewest of the noisiest modules, none kept needlessly."""

import pytest

from pipeline.features.sensitivity.metric_search import find_smallest

RANKED = [("m", f"layers.{number}") for number in range(40)]


@pytest.mark.parametrize(
    ("needed", "most"),
    [({0}, 1), ({0, 2}, 6), ({1, 9, 11}, 12), ({39}, 14), (set(range(40)), 14)],
)
def test_few_builds_find_what_a_metric_needs(needed, most):
    builds = []

    def passes(kept):
        builds.append(kept)
        return {RANKED[number] for number in needed} <= {*kept}

    kept = find_smallest(RANKED, passes)
    assert {RANKED[number] for number in needed} <= {*kept} and passes(kept)
    assert len(builds) - 1 <= most


def test_nothing_is_kept_where_nothing_helps():
    assert find_smallest(RANKED, lambda kept: False) is None


def test_modules_kept_for_nothing_are_given_back():
    needed = {RANKED[1], RANKED[3]}
    assert find_smallest(RANKED, lambda kept: needed <= {*kept}) == [RANKED[1], RANKED[3]]
