"""Confidence intervals of metrics: known values, and how often they contain the true value."""

import random

import pytest

from pipeline.features.metrics.intervals import find_drop_interval, find_interval
from pipeline.features.metrics.judging import count_needed, judge_limit


def hits(right, number):
    return [1.0] * right + [0.0] * (number - right)


def test_wilson_of_62_of_97():
    # Published calculators give 0.5400 to 0.7278.
    low, high = find_interval(62 / 97, hits(62, 97), [])
    assert (round(low, 4), round(high, 4)) == (0.5400, 0.7278)


def test_all_right_is_no_certainty():
    low, high = find_interval(1.0, hits(30, 30), [])
    assert high == 1 and low == pytest.approx(0.8865, abs=1e-4)


def test_bonett_price_of_paired_answers():
    # Of 100 samples, the package loses 10 and gains 2.
    source = [1.0] * 80 + [0.0] * 20
    package = [1.0] * 70 + [0.0] * 10 + [1.0] * 2 + [0.0] * 18
    low, high = find_drop_interval(source, package, [], [])
    lost, won = 11 / 102, 3 / 102
    spread = 1.959964 * ((lost + won - (lost - won) ** 2) / 102) ** 0.5
    assert (low, high) == pytest.approx((lost - won - spread, lost - won + spread))
    assert low > 0


def test_the_same_answers_are_no_proof_on_few_samples():
    low, high = find_drop_interval(hits(30, 30), hits(30, 30), [], [])
    assert low == -high and high == pytest.approx(0.0866, abs=1e-4)


def test_shares_that_do_not_vary_are_no_certainty():
    # Each sample is a batch whose answers are all right.
    low, high = find_drop_interval([0.5] * 30, [0.5] * 30, [], [])
    assert high == -low == pytest.approx(0.0866, abs=1e-4)
    low, high = find_interval(0.75, [0.75] * 30, [])
    assert low < 0.6 and high > 0.85
    assert find_drop_interval([7.5, 8.5] * 15, [7.5, 8.5] * 15, [], []) == (0, 0)


def test_too_few_samples_have_no_interval():
    assert find_interval(0.5, [0.25, 0.75] * 14, []) is None
    assert find_interval(0.5, None, []) is None
    assert find_interval(0.5, [0.25, 0.75] * 15, []) is not None


def test_draws_without_a_value_are_left_out():
    drawn = [float(number) for number in range(101)]
    assert find_interval(50.0, None, [*drawn, None]) == (3.0, 97.0)
    assert find_interval(50.0, None, [*drawn, *[None] * 200]) is None


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_intervals_hold_the_truth_in_95_of_100_cases(share):
    drawn = random.Random(0)
    held = held_mean = 0
    for _ in range(400):
        scores = [float(drawn.random() < share) for _ in range(60)]
        low, high = find_interval(sum(scores) / 60, scores, [])
        held += low <= share <= high
        values = [drawn.gauss(share, 1) for _ in range(60)]
        low, high = find_interval(0.0, values, [])
        held_mean += low <= share <= high
    assert 0.92 <= held / 400 <= 0.98 and 0.92 <= held_mean / 400 <= 0.98


def facts(value, interval, drop=0.0, drop_interval=(0.0, 0.0), **more):
    return {
        "entry": "top1",
        "value": value,
        "interval": interval,
        "drop": drop,
        "drop_interval": drop_interval,
        "samples": 97,
        "more": False,
        "least_samples": 30,
        **more,
    }


@pytest.mark.parametrize(
    ("kind", "still", "verdict"),
    [
        ("max_drop", 0.9, "not judged"),
        ("max_drop", 0.88, "not judged"),
        ("max_drop", 0.1, "passed"),
        ("max_drop", float("nan"), "passed"),
        ("max_drop", None, "passed"),
        ("max_rise", 0.92, "not judged"),
        ("max_rise", 2.0, "passed"),
    ],
)
def test_a_limit_that_the_first_output_alone_would_meet_is_not_judged(kind, still, verdict):
    constant = facts(0.9, (0.85, 0.95), 0.0, (-0.01, 0.01), source=0.9, still=still)
    judged = judge_limit("top1", constant, kind, 0.05)
    assert judged["verdict"] == verdict
    assert ("always returns the first sample's output" in judged["sentence"]) == (
        verdict == "not judged"
    )


@pytest.mark.parametrize(
    ("kind", "limit", "verdict"),
    [
        ("min", 0.5, "passed"),
        ("min", 0.71, "not judged"),
        ("min", 0.6, "not judged"),
        ("min", 0.8, "failed"),
        ("max", 0.8, "passed"),
        ("max", 0.7, "not judged"),
        ("max", 0.5, "failed"),
        ("max_drop", 0.05, "passed"),
        ("max_drop", 0.02, "not judged"),
        ("max_drop", 0.0, "failed"),
        ("max_rise", 0.0, "passed"),
    ],
)
def test_a_limit_is_held_to_the_whole_interval(kind, limit, verdict):
    judged = judge_limit("top1", facts(0.639, (0.54, 0.728), 0.03, (0.01, 0.05)), kind, limit)
    assert judged["verdict"] == verdict
    assert (judged["sentence"] == "") == (verdict == "passed")


def test_what_is_not_judged_says_how_many_samples_would_tell():
    judged = judge_limit("top1", facts(0.639, (0.54, 0.728)), "min", 0.71)
    assert judged["sentence"] == (
        "metric top1: 0.639 (0.54 to 0.728) on 97 samples, at least 0.71 required; about 160 "
        "samples would settle it, but the data has no more"
    )
    more = judge_limit("top1", facts(0.639, (0.54, 0.728), more=True), "min", 0.71)
    assert more["sentence"].endswith("set `samples: 160` in validate.metrics.top1")
    few = judge_limit("top1", facts(0.639, None, samples=12), "min", 0.71)
    assert few["sentence"].endswith("required; an interval needs at least 30 samples")
    near = judge_limit("top1", facts(0.71, (0.6, 0.8)), "min", 0.71)
    assert near["sentence"].endswith("too close to the limit for more samples to settle it")


def test_a_rise_of_nothing_has_no_sign():
    judged = judge_limit("wer", facts(0.5, None, 0.0, (0.0, 0.1)), "max_rise", -0.01)
    assert judged["sentence"].startswith("metric wer: rise of 0 (-0.1 to 0) on 97 samples")


def test_that_many_samples_do_tell():
    value = 62 / 97
    number = count_needed(value, find_interval(value, hits(62, 97), []), 0.71, 97)
    right = round(value * number)
    _, high = find_interval(right / number, hits(right, number), [])
    assert 0.69 < high < 0.715


def test_that_many_equal_answers_tell_of_a_drop():
    interval = find_drop_interval(hits(300, 300), hits(300, 300), [], [])
    number = count_needed(0.0, interval, 0.005, 300)
    assert number == 560
    _, high = find_drop_interval(hits(number, number), hits(number, number), [], [])
    assert 0.0045 < high <= 0.005
