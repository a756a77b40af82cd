"""The smallest set by a metric: the fewest of the noisiest modules, none kept needlessly."""

from types import SimpleNamespace

import pytest

from pipeline.features.sensitivity import metric_search
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


def test_a_package_that_quantizes_nothing_is_not_built(monkeypatch):
    score = {"value": 0.5, "verdict": "failed", "sentence": "too low", "bytes": 9, "entry": "top1"}
    builds = []

    def build(plan, package, actions, methods, metric, kept):
        builds.append(list(kept))
        return score

    monkeypatch.setattr(metric_search, "read_score", lambda *_: score)
    monkeypatch.setattr(metric_search, "_rank", lambda *_: [("m", "a"), ("m", "b")])
    monkeypatch.setattr(metric_search, "_build", build)
    methods = {"m": {"modules": [{"module": "a"}, {"module": "b"}]}}
    budget = SimpleNamespace(spent=False)
    record = metric_search.search_by_metric(None, "p", {}, methods, "top1", budget)
    assert builds == [[("m", "a")]] and record["reached"] is False
    # Operators outside all modules stay quantized.
    methods["m"]["modules"].append({"module": ""})
    metric_search.search_by_metric(None, "p", {}, methods, "top1", budget)
    assert builds[1:] == [[("m", "a")], [("m", "a"), ("m", "b")]]


def test_all_modules_but_the_quietest_of_a_method_may_be_kept(monkeypatch):
    ranked = [*(("m", f"layers.{number}") for number in range(7)), ("n", "head"), ("n", "neck")]

    def build(plan, package, actions, methods, metric, kept):
        passed = {*ranked[:6], ranked[7]} <= {*kept}
        return {**present, "verdict": "passed" if passed else "failed"}

    present = {
        "value": 0.5,
        "verdict": "failed",
        "sentence": "too low",
        "bytes": 9,
        "entry": "top1",
    }
    monkeypatch.setattr(metric_search, "read_score", lambda *_: present)
    monkeypatch.setattr(metric_search, "_rank", lambda *_: [*ranked])
    monkeypatch.setattr(metric_search, "_build", build)
    methods = {name: {"modules": [{"module": m} for n, m in ranked if n == name]} for name in "mn"}
    budget = SimpleNamespace(spent=False)
    record = metric_search.search_by_metric(None, "p", {}, methods, "top1", budget)
    assert record["reached"]
    assert record["kept"] == {"m": [f"layers.{number}" for number in range(6)], "n": ["head"]}
