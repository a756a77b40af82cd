"""The range of an observer's histogram equals torchao's to the bit, and is searched for once."""

import pytest
import torch
from torchao.quantization.pt2e.observer import HistogramObserver

from pipeline.features.speedups import histogram_search
from pipeline.features.speedups.histogram_search import make_search


def observer_of(*values):
    observer = HistogramObserver(dtype=torch.int8, qscheme=torch.per_tensor_affine)
    for value in values:
        observer(value)
    return observer


def draw(seed):
    """Draw values from several distributions: normal, one-sided, with outliers, with a peak."""
    torch.manual_seed(seed)
    values = torch.randn(500 + 100 * seed)
    kinds = values, values.relu(), values**5, torch.cat([torch.full((9000,), 0.3), values])
    return kinds[seed % len(kinds)]


@pytest.mark.parametrize("seed", range(16))
def test_range_is_that_of_torchao(seed):
    observer = observer_of(draw(seed), 1.5 * draw(seed + 4))
    expected = observer._non_linear_param_search()
    actual = histogram_search._search(observer)
    assert torch.equal(torch.stack(actual), torch.stack(expected))
    assert [value.dtype for value in actual] == [torch.float32] * 2


@pytest.mark.parametrize("values", [[1.0] * 3, [0.0, 1.0], [0.0], [-2.0, 0.0, 0.0, 0.0, 5.0]])
def test_range_of_few_values_is_that_of_torchao(values):
    observer = observer_of(torch.tensor(values))
    expected = observer._non_linear_param_search()
    assert torch.equal(torch.stack(histogram_search._search(observer)), torch.stack(expected))


def test_range_is_searched_for_again_after_another_value(monkeypatch):
    searches = []

    def search(observer):
        searches.append(observer)
        return HistogramObserver._non_linear_param_search(observer)

    monkeypatch.setattr(histogram_search, "_search", search)
    find = make_search(HistogramObserver._non_linear_param_search)
    observer = observer_of(draw(0))
    for count in (1, 2):
        expected = observer._non_linear_param_search()
        for _ in range(2):
            actual = find(observer)
            assert torch.equal(torch.stack(actual), torch.stack(expected))
            actual[0].zero_()  # each is a copy
        assert len(searches) == count
        observer(2 * draw(0))
