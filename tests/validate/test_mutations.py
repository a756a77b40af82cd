"""Packages damaged on purpose fail validation, in the right method and with an explanation.

By default a tenth of the matrix runs: one seed of some damages of each sample. `pytest -m release`
judges one seed of the whole matrix, and prints the table that `python -m tests.mutations` prints
for two seeds.
"""

import random
import re
from fnmatch import fnmatch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.mutations.location import unplaced
from tests.mutations.score import Judges, table

# Damages that validation misses, or that end the process running them, and why this can't change.
# Keyed by `sample/damage`; the score still counts them.
SURVIVORS = {
    "branching/element_in_constant": "relu cuts it off but on a few large inputs",
    "static*/element_in_*": "one of 128 to 512 int8 weights: within the noise of quantization",
    "dynamic/element_in_*": "one of 128 to 512 int8 weights: within the noise of quantization",
    "static*/input_returned": "not rounded a last time: shows on large inputs, which are cut off",
    "static*/xnnpack_scales_permuted": "neighbouring scales differ by 5 %: within the noise, too",
    "dynamic/xnnpack_scales_permuted": "neighbouring scales differ by 5 %: within the noise, too",
    "static_portable/dim_order_inside": "a step or two of int8: shows on small inputs only",
}
# `doit validate` reports a process that ends as a failure of its method
# (tests/validate/test_crashes.py).
FATAL = {
    "*/delegate_of_another_*": "XNNPACK takes as many inputs as its bytes say, not as many as come",
    "*/scalar_changed": "ExecuTorch's kernels end the process where an argument makes no sense",
}
# Damages after which nothing can be traced: the package can't be read, or lacks the method.
UNREADABLE = {
    "truncated", "ptd_truncated", "ptd_missing", "method_missing", "method_extra",
    "constant_method",
}  # fmt: skip
# Damages that are caught, but that only a comparison with an undamaged build could trace. The share
# of located damages still counts them.
UNLOCATED = {
    "static/xnnpack_zero_point": "XNNPACK does not load it, so no value can be compared",
    "branching/condition_inverted": "a sum before it cancels, and diverges first by min_sqnr",
    "layouts/memory_overlapping": "an output is right when it is computed, and overwritten later",
}
REPRESENTATIVE = {
    "portable": ["element_in_constant", "replaced", "output_aliased", "constant_method"],
    "delegated": ["element_in_named_data", "xnnpack_replaced", "delegate_of_another_partition"],
    "twins": ["methods_swapped", "delegate_of_another_method", "row_in_named_data"],
    "stateful": ["write_back_removed", "initial_state_lost"],
    "sharing": ["shared_state_split", "write_back_removed"],
    "sixteen_bits": ["replaced", "xnnpack_range_lost"],
    "static": ["xnnpack_zero_point"],
    "external": ["element_in_ptd", "ptd_truncated"],
    "branching": ["condition_inverted", "skipped"],
    "add_sub": ["element_in_named_data", "methods_swapped"],
    "layouts": ["dim_order", "outputs_reordered", "memory_overlapping"],
}
# For the other samples, the slow tests judge these damages, among all.
QUICK = {"portable", "delegated", "stateful", "add_sub"}
DEFAULT = [
    pytest.param(sample, damage, 0, marks=() if sample in QUICK else pytest.mark.slow)
    for sample, own in REPRESENTATIVE.items()
    for damage in own
]
FOR_A_RELEASE = [
    pytest.param(*case.values, marks=[pytest.mark.slow, pytest.mark.release])
    for case in DEFAULT[4::4]
]
SEEDS = range(1)


@pytest.fixture(scope="module")
def judges():
    with Judges() as running:
        yield running


def known(patterns, sample, damage):
    return [why for pattern, why in patterns.items() if fnmatch(f"{sample}/{damage}", pattern)]


def check(verdict):
    outcome, sample, damage = (verdict[name] for name in ("outcome", "sample", "damage"))
    if outcome == "survived":
        assert known(SURVIVORS, sample, damage), verdict
    elif outcome == "crashed":
        assert known(FATAL, sample, damage), verdict
    else:
        assert outcome in ("caught", "tolerated", "equivalent"), verdict


@pytest.mark.parametrize(("sample", "damage", "seed"), DEFAULT)
def test_damage_is_caught_and_located(judges, sample, damage, seed):
    verdict = judges.judge(sample, damage, seed)
    assert verdict is not None, "there is nothing to damage so"
    assert verdict["outcome"] == "caught", verdict
    assert set(verdict["methods"].values()) <= {"failed", "equivalent", "tolerated"}
    for sentence in verdict["sentences"]:
        assert re.match(r"[\w.]+: \S", sentence), sentence
    said = {sentence.split(":")[0] for sentence in verdict["sentences"]}
    assert said & {"model.pte", *verdict["methods"]}
    assert damage in UNREADABLE or known(UNLOCATED, sample, damage) or not unplaced(verdict), (
        verdict
    )


@pytest.mark.parametrize("sample", ["delegated", "stateful", "add_sub"])
def test_no_damage_passes(judges, sample):
    """The slow tests do so for all samples, on three seeds and on random ones."""
    verdict = judges.judge(sample, "", random.Random(sample).randrange(1 << 30))
    assert (verdict["outcome"], verdict["sentences"]) == ("equivalent", [])


@pytest.mark.parametrize(("sample", "damage", "seed"), [DEFAULT[0], *FOR_A_RELEASE])
def test_a_damage_is_that_of_its_seed(judges, sample, damage, seed):
    again = [judges.judge(sample, damage, seed) for _ in range(2)]
    for verdict in again:
        verdict.pop("seconds")
    assert again[0] == again[1]


def test_what_cannot_be_seen_is_told_apart(judges):
    """The last bits of an int8 weight drown in quantization. The layout of an input has no visible
    effect if its kernel reads the elements in any order."""
    verdict = judges.judge("add_sub", "dim_order", 0)
    assert (verdict["outcome"], verdict["sentences"]) == ("equivalent", [])


@pytest.mark.slow
@pytest.mark.release
def test_all_samples_pass_on_three_seeds(judges):
    """The next test draws eight others in each run."""
    found = {}
    for sample in judges.samples:
        for seed in range(3):
            verdict = judges.judge(sample, "", seed)
            if verdict["outcome"] != "equivalent":
                found[sample, seed] = verdict["sentences"]
    assert found == {}


@pytest.mark.slow
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_damage_passes_whatever_the_seed(judges, data):
    sample = data.draw(st.sampled_from(judges.samples))
    verdict = judges.judge(sample, "", data.draw(st.integers(0, 2**40)))
    assert (verdict["outcome"], verdict["sentences"]) == ("equivalent", [])


@pytest.fixture(scope="module")
def matrix(judges):
    """Judge every damage on every sample that it applies to."""
    found = [judges.judge(*job) for job in judges.jobs(SEEDS)]
    verdicts = [verdict for verdict in found if verdict is not None]
    print("\n" + table(verdicts))
    return verdicts


@pytest.mark.slow
@pytest.mark.release
def test_every_damage_is_caught_or_known(matrix):
    wrong = []
    for verdict in matrix:
        try:
            check(verdict)
        except AssertionError:
            keys = ("sample", "damage", "seed", "what", "outcome", "methods", "sentences")
            wrong.append({key: verdict[key] for key in keys})
    assert wrong == []


@pytest.mark.slow
@pytest.mark.release
def test_the_score_is_high(matrix):
    visible = [v for v in matrix if v["outcome"] not in ("equivalent", "tolerated")]
    caught = [v for v in visible if v["outcome"] == "caught"]
    assert len(caught) / len(visible) > 0.96


@pytest.mark.slow
@pytest.mark.release
def test_nine_of_ten_damages_are_located(matrix):
    """Traced to the right place: method, delegate or operator, and kind."""
    caught = [
        verdict
        for verdict in matrix
        if verdict["outcome"] == "caught" and verdict["damage"] not in UNREADABLE
    ]
    missed = [verdict for verdict in caught if unplaced(verdict)]
    print(f"\n{len(caught) - len(missed)} of {len(caught)} located")
    for verdict in missed:
        print({key: verdict[key] for key in ("sample", "damage", "seed", "what", "found")})
    assert len(missed) <= len(caught) / 10


@pytest.mark.slow
@pytest.mark.release
def test_every_damage_applies_somewhere(judges, matrix):
    assert {verdict["damage"] for verdict in matrix} == set(judges.damages)
