import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.validation import Limits
from pipeline.validate import limits as limits_module
from pipeline.validate import metrics
from pipeline.validate.limits import OutputLimits, check_limits, judge_output
from pipeline.validate.metrics import compare, json_number
from pipeline.validate.worst_place import find_worst_place

NAN, INF = math.nan, math.inf


def closeness(actual, expected, atol=0.0, rtol=0.0):
    return find_worst_place(compare(actual, expected), actual, expected, atol, rtol)


def test_identical_outputs_have_no_error():
    error = compare(torch.tensor([1.0, -2.0]), torch.tensor([1.0, -2.0]))
    assert (error.max_abs, error.mean_abs, error.sqnr_db) == (0.0, 0.0, INF)
    assert closeness(torch.ones(3), torch.ones(3)).ok


def test_figures_of_a_known_error():
    error = compare(torch.tensor([1.0, 2.0, 3.5]), torch.tensor([1.0, 2.0, 3.0]))
    assert error.max_abs == 0.5
    assert error.mean_abs == pytest.approx(0.5 / 3)
    assert error.sqnr_db == pytest.approx(10 * math.log10(14 / 0.25))


def test_figures_beside_the_greatest_error():
    error = compare(torch.tensor([1.0, 2.0, 3.5]), torch.tensor([1.0, -2.0, 3.0]))
    assert error.relative == pytest.approx(4.5 / 6)
    assert error.cosine == pytest.approx(7.5 / math.sqrt(17.25 * 14))
    same = compare(torch.ones(3), torch.ones(3))
    assert (same.relative, same.cosine, same.p999_abs) == (0.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("places", "bad", "percentile"), [(10000, 10, 0), (10000, 11, 1), (3, 1, 1)]
)
def test_the_percentile_leaves_out_one_place_of_a_thousand(places, bad, percentile):
    expected = torch.zeros(places)
    actual = expected.clone()
    actual[:bad] = 1
    assert compare(actual, expected).p999_abs == percentile


@pytest.mark.parametrize(
    ("actual", "expected", "share"),
    [
        ([[1.0, 2.0], [4.0, 3.0]], [[0.0, 9.0], [1.0, 2.0]], 0.5),
        ([1.0, 2.0], [1.0, 9.0], 1.0),
        ([[5.0, 1.0, 0.0]], [[2.0, 2.0, 1.0]], 1.0),  # a tie accepts either
        ([[0.0, 1.0, 9.0]], [[2.0, 2.0, 1.0]], 0.0),
        ([[NAN, 1.0]], [[NAN, 1.0]], 1.0),
        ([[1.0], [2.0]], [[5.0], [6.0]], None),
        (3.0, 2.0, None),
    ],
)
def test_agreement_is_of_the_greatest_value_of_each_row(actual, expected, share):
    assert compare(torch.tensor(actual), torch.tensor(expected)).agreement == share


def test_classes_are_chosen_by_floating_point_values_only():
    assert compare(torch.tensor([1, 2]), torch.tensor([1, 2])).agreement is None
    assert compare(torch.ones(0, 3), torch.ones(0, 3)).agreement is None


def test_what_compares_with_the_signal_is_undefined_without_one():
    error = compare(torch.ones(4), torch.zeros(4))
    assert (error.relative, error.cosine) == (None, None)
    error = compare(torch.zeros(4), torch.ones(4))
    assert (error.relative, error.cosine) == (1.0, 0.0)


@given(st.lists(st.tuples(*[st.floats(-1e3, 1e3, width=32)] * 2), min_size=1, max_size=50))
def test_figures_keep_to_their_bounds(pairs):
    a, e = (torch.tensor(side) for side in zip(*pairs, strict=True))
    error = compare(a, e)
    assert 0 <= error.p999_abs <= error.max_abs
    assert error.mean_abs <= error.max_abs * (1 + 1e-12)
    assert error.cosine is None or -1 <= error.cosine <= 1
    assert error.relative is None or error.relative >= 0
    flipped = compare(-a, -e)
    assert (flipped.max_abs, flipped.cosine) == (error.max_abs, error.cosine)


def test_the_worst_place_is_told_with_its_limit():
    worst = closeness(torch.tensor([[0.0, 10.0], [5.0, 1.0]]), torch.ones(2, 2), 0.5, 1.0)
    assert (worst.index, worst.actual, worst.expected) == ((0, 1), 10.0, 1.0)
    assert worst.allowed == 1.5
    assert worst.excess == 7.5
    assert not worst.ok


def test_the_limit_itself_is_close():
    assert closeness(torch.tensor([1.5]), torch.tensor([1.0]), atol=0.5).ok
    assert not closeness(torch.tensor([1.5]), torch.tensor([1.0]), atol=0.4999).ok


def test_zeros_have_no_signal_so_only_the_absolute_error_counts():
    error = compare(torch.full((4,), 1e-7), torch.zeros(4))
    assert error.sqnr_db is None
    assert closeness(torch.full((4,), 1e-7), torch.zeros(4), atol=1e-6, rtol=1.0).ok
    assert not closeness(torch.full((4,), 1e-5), torch.zeros(4), atol=1e-6, rtol=1.0).ok
    assert compare(torch.zeros(4), torch.zeros(4)).sqnr_db == INF
    assert compare(torch.zeros(4), torch.ones(4)).sqnr_db == 0.0


@pytest.mark.parametrize(
    ("actual", "expected"),
    [(NAN, 1.0), (1.0, NAN), (INF, 1.0), (1.0, -INF), (INF, -INF), (INF, NAN)],
)
def test_nan_or_infinity_on_one_side_is_never_close(actual, expected):
    a, e = torch.tensor([1.0, actual]), torch.tensor([1.0, expected])
    error = compare(a, e)
    assert (error.disagreeing, error.nonfinite) == (1, 0)
    assert (error.max_abs, error.mean_abs, error.sqnr_db) == (INF, INF, -INF)
    assert (error.p999_abs, error.relative, error.cosine, error.agreement) == (INF, INF, -1, 0)
    worst = closeness(a, e, atol=INF, rtol=1.0)
    assert not worst.ok
    assert worst.index == (1,)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_the_same_nonfinite_value_at_the_same_place_agrees_and_is_counted(value):
    a, e = torch.tensor([value, 1.5]), torch.tensor([value, 1.0])
    error = compare(a, e)
    assert (error.nonfinite, error.disagreeing, error.max_abs) == (1, 0, 0.5)
    assert error.mean_abs == 0.5
    assert closeness(a, e, atol=0.5).ok
    assert not closeness(a, e, atol=0.1).ok


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.int8])
def test_integers_are_compared_exactly_whatever_the_tolerance(dtype):
    a, e = torch.tensor([3, 4], dtype=dtype), torch.tensor([3, 5], dtype=dtype)
    assert compare(a, e).max_abs == 1
    assert not closeness(a, e, atol=10.0, rtol=10.0).ok
    assert closeness(e, e).ok


def test_integers_beyond_float64_are_still_told_apart():
    a, e = torch.tensor([2**53 + 1]), torch.tensor([2**53])
    assert compare(a, e).max_abs == 1
    assert not closeness(a, e).ok


def test_bools():
    a, e = torch.tensor([True, False]), torch.tensor([True, True])
    assert compare(a, e).max_abs == 1
    assert not closeness(a, e, atol=2.0).ok
    assert closeness(a, a).ok


def test_complex_numbers_are_two_numbers_each():
    a, e = torch.tensor([1 + 2j, 3 + 4j]), torch.tensor([1 + 2j, 3 + 5j])
    assert compare(a, e).max_abs == 1.0
    assert closeness(a, e).index == (1, 1)


@pytest.mark.parametrize(
    ("actual", "expected", "words"),
    [
        (torch.ones(2), torch.ones(3), "shape (2,), must be (3,)"),
        (torch.ones(2), torch.ones(2).double(), "dtype float32, must be float64"),
        (torch.ones(2), 3, "a tensor, must be int 3"),
        (None, torch.ones(2), "None, must be a tensor"),
        (True, 1, "bool True, must be int 1"),
        ("a", "b", "'a', must be 'b'"),
    ],
)
def test_mismatches_are_flagged_and_never_close(actual, expected, words):
    error = compare(actual, expected)
    assert error.mismatch == words
    assert not find_worst_place(error, actual, expected, INF, 0.0).ok


@pytest.mark.parametrize("value", [None, "text", 3, 2.5, True])
def test_what_is_not_a_tensor_equals_itself(value):
    assert compare(value, value).max_abs == 0
    assert closeness(value, value).ok


def test_python_numbers():
    assert not closeness(3, 4, atol=5.0).ok
    assert closeness(2.5, 2.6, atol=0.2).ok


def test_an_empty_tensor_is_close_to_another():
    error = compare(torch.ones(0, 3), torch.ones(0, 3))
    assert (error.max_abs, error.mean_abs, error.sqnr_db) == (0.0, 0.0, INF)
    assert closeness(torch.ones(0, 3), torch.ones(0, 3)).ok


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_ratios_survive_very_small_and_very_large_values(scale):
    e = torch.tensor([1.0, 2.0], dtype=torch.float64) * scale
    error = compare(e * 1.1, e)
    assert error.sqnr_db == pytest.approx(20.0)
    assert (error.relative, error.cosine) == (pytest.approx(0.1), pytest.approx(1.0))


def test_layout_does_not_matter():
    e = torch.arange(24.0).reshape(1, 2, 3, 4)
    assert compare(e.to(memory_format=torch.channels_last), e).max_abs == 0


def test_parts_give_what_the_whole_gives(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    e = torch.randn(7, 5, generator=generator)
    a = e + 0.01 * torch.randn(7, 5, generator=generator)
    a[6, 4] += 1
    whole, worst = compare(a, e), closeness(a, e)
    monkeypatch.setattr(metrics, "_CHUNK", 4)
    parts = compare(a, e)
    assert parts.max_abs == whole.max_abs
    assert parts.mean_abs == pytest.approx(whole.mean_abs)
    assert parts.sqnr_db == pytest.approx(whole.sqnr_db)
    assert closeness(a, e) == worst
    assert worst.index == (6, 4)


FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)
LIMITS = st.floats(0, 10)


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=6), LIMITS, LIMITS)
def test_close_means_what_allclose_means(pairs, atol, rtol):
    a, e = (torch.tensor(side, dtype=torch.float64) for side in zip(*pairs, strict=True))
    assert closeness(a, e, atol, rtol).ok == torch.allclose(a, e, rtol, atol, equal_nan=True)


@given(st.lists(st.tuples(FLOATS, FLOATS), max_size=6))
def test_errors_are_strict_json(pairs):
    a, e = (torch.tensor([pair[side] for pair in pairs]) for side in (0, 1))
    record = compare(a, e).to_json()
    assert json.loads(json.dumps(record, allow_nan=False)) == record


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
EDGES = st.sampled_from([NAN, INF, -INF, 0.0, -0.0, 1e-40, 1.0, -2.5, 6e4])


@given(st.lists(st.tuples(EDGES, EDGES), min_size=1, max_size=6), st.sampled_from(DTYPES), LIMITS)
def test_nan_and_infinity_are_close_to_themselves_only_in_every_dtype(pairs, dtype, atol):
    a, e = (torch.tensor([pair[side] for pair in pairs]).to(dtype) for side in (0, 1))
    apart = [
        not (x == y or (x != x and y != y))
        for x, y in zip(
            *(
                torch.view_as_real(t).flatten().tolist() if t.is_complex() else t.tolist()
                for t in (a, e)
            ),
            strict=True,
        )
        if not (math.isfinite(x) and math.isfinite(y))
    ]
    error, worst = compare(a, e), closeness(a, e, atol, 1e30)
    assert error.disagreeing == sum(apart)
    assert error.nonfinite == len(apart) - sum(apart)
    if any(apart):
        assert not worst.ok and not (math.isfinite(worst.actual) and math.isfinite(worst.expected))
        figures = (error.max_abs, error.mean_abs, error.p999_abs, error.relative)
        assert figures == (INF, INF, INF, INF)
        assert (error.sqnr_db, error.cosine, error.agreement) == (-INF, -1.0, 0.0)
    else:
        assert math.isfinite(error.mean_abs) and error.max_abs >= error.mean_abs * (1 - 1e-9)


@given(st.lists(EDGES, min_size=1, max_size=6), st.sampled_from(DTYPES))
def test_every_output_is_close_to_itself(values, dtype):
    value = torch.tensor(values).to(dtype)
    error = compare(value, value.clone())
    assert (error.max_abs, error.disagreeing, error.mismatch) == (0.0, 0, None)
    assert error.sqnr_db == INF and error.cosine == 1.0 and error.relative == 0.0
    assert error.agreement in (None, 1.0)
    assert closeness(value, value.clone()).ok


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=9), st.booleans())
def test_an_output_of_zeros_is_like_nothing(values, flipped):
    """It isn't undefined, as when there is nothing to compare with, so a limit fails it."""
    e = torch.tensor(values)
    a = -e if flipped else torch.zeros_like(e)
    error = compare(a, e)
    if e.any():
        assert error.cosine == pytest.approx(-1.0 if flipped else 0.0, abs=1e-9)
        assert error.sqnr_db == pytest.approx(-6.0206 if flipped else 0.0, abs=1e-3)
        assert error.relative == pytest.approx(2.0 if flipped else 1.0)
    else:
        assert (error.max_abs, error.cosine) == (0.0, 1.0)


def test_finite_values_that_are_infinitely_far_apart_are_not_close():
    a, e = (torch.tensor([sign * 1.7e308], dtype=torch.float64) for sign in (-1, 1))
    assert not closeness(a, e, atol=1e300, rtol=1.0).ok
    assert compare(a, e).max_abs == INF
    assert compare(a, e).disagreeing == 0


def test_numbers_of_the_record():
    numbers = [None, INF, -INF, NAN, 0.123456789]
    assert list(map(json_number, numbers)) == [None, "inf", "-inf", "nan", 0.123457]


@pytest.mark.parametrize(
    ("actual", "limits", "of_limit"),
    [
        ([1.0, 2.0, 3.25], {"atol": 0.5}, 0.5),
        ([1.0, 2.0, 4.0], {"atol": 0.5}, 2.0),
        ([1.0, 2.0, 3.25], {"atol": 0.2, "rtol": 0.1}, 0.5),  # 0.25 of 0.2 + 0.1 * 3
        ([1.0, 2.0, 3.0], {"atol": 0.0}, 0.0),
        ([1.0, 2.0, 3.5], {"atol": 0.0}, INF),
        ([1.0, 2.0, 3.3], {"atol": 1.0, "max_mean_abs": 0.05}, 2.0),
        ([1.0, 2.0, 3.5], {"min_sqnr": 10 * math.log10(14 / 0.25) + 20}, 10.0),
        ([1.0, 2.0, 3.5], {"min_cosine": 0.9}, None),
        ([1.0, 2.0, NAN], {"atol": 1.0}, INF),
        ([1.0, 2.0], {"atol": 1.0}, INF),
    ],
)
def test_an_output_has_the_ratio_to_the_limit_that_it_comes_nearest_to(actual, limits, of_limit):
    actual, expected = torch.tensor(actual), torch.tensor([1.0, 2.0, 3.0])
    error = compare(actual, expected)
    faults, ratio = judge_output(error, actual, expected, Limits(**limits))
    assert ratio == (None if of_limit is None else pytest.approx(of_limit))
    assert bool(faults) == ((of_limit or 0) > 1)


@pytest.mark.parametrize("limits", [{}, {"atol": 0.0}, {"atol": 0.6}, {"atol": INF}])
@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([1.0, 2.0, 3.5], [1.0, 2.0, 3.0]),
        ([1.0, NAN, INF], [1.0, NAN, INF]),
        ([1.0, 2.0, NAN], [1.0, 2.0, 3.0]),
        ([1, 2], [1, 3]),
        ([2j, 1.0], [1j, 1.0]),
    ],
)
def test_a_check_finds_the_faults_of_a_judgement(actual, expected, limits):
    actual, expected = torch.tensor(actual), torch.tensor(expected)
    error = compare(actual, expected)
    for min_sqnr in (None, 40.0):
        output_limits = OutputLimits(min_sqnr=min_sqnr).model_copy(update=limits)
        faults, _ = judge_output(error, actual, expected, output_limits)
        assert check_limits(error, actual, expected, output_limits) == faults


def test_a_check_looks_for_the_worst_place_only_beyond_the_tolerance(monkeypatch):
    actual, expected = torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0])
    error = compare(actual, expected)
    monkeypatch.delattr(limits_module, "find_worst_place")
    assert check_limits(error, actual, expected, Limits(atol=0.5)) == ()
    assert check_limits(error, actual, expected, Limits(atol=0.5, min_sqnr=40.0))
    with pytest.raises(NameError):
        check_limits(error, actual, expected, Limits(atol=0.4))


def test_integers_must_be_equal_whatever_the_limits():
    actual, expected = torch.tensor([1, 3]), torch.tensor([1, 2])
    error = compare(actual, expected)
    faults, ratio = judge_output(error, actual, expected, Limits(min_sqnr=1.0))
    assert faults and ratio == INF


@pytest.mark.parametrize("kind", ["random", "few", "ties", "rising", "falling"])
@pytest.mark.parametrize("size", [1, 2, 999, 1000, 16_385, 60_000])
def test_the_percentile_of_a_large_output_is_exact(kind, size):
    """Values that a sample shows to be too small are left out, wherever the largest ones lie."""
    generator = torch.Generator().manual_seed(size)
    values = torch.rand(size, generator=generator, dtype=torch.float64)
    if kind == "few":
        values[size // 1500 :] = 0.0
    elif kind == "ties":
        values = (values * 3).floor()
    elif kind in ("rising", "falling"):
        values = values.sort(descending=kind == "falling").values
    error = compare(values, torch.zeros_like(values))
    assert error.p999_abs == float(values.topk(size // 1000 + 1).values[-1])
