"""The work of a build grows in proportion to its size: the small form of `benchmarks.growth`, in
function calls, which repeat exactly."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from benchmarks.growth import DIMENSIONS, KNOWN, count_calls, count_sizes, find_growth


@pytest.mark.slow
@pytest.mark.parametrize("name", DIMENSIONS)
def test_no_function_is_called_more_than_in_proportion(name, tmp_path):
    # In a process of its own: the profiler missed calls in one that had run hundreds of tests.
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        growing = process.submit(find_growth_of, name, tmp_path).result()
    assert growing.keys() <= KNOWN.keys(), growing


def find_growth_of(name, folder):
    dimension = DIMENSIONS[name]
    return find_growth(count_sizes(dimension, dimension.sizes[0], folder))


def look_at(place):
    return place


def compare(first, second):
    return first == second


def work(count, pairs):
    for first in range(count):
        look_at(first)
        for second in range(count if pairs else 3):
            compare(first, second)


@pytest.mark.parametrize("pairs, growing", [(True, ["compare", "all functions"]), (False, [])])
def test_what_grows_by_a_power_is_named(pairs, growing):
    counts = [count_calls(lambda size=size: work(size, pairs)) for size in (4, 8, 16, 32)]
    assert sorted(name.rpartition(":")[2] for name in find_growth(counts)) == sorted(growing)


def test_calls_repeat_exactly():
    first, second = (count_calls(lambda: work(8, True)) for _ in range(2))
    assert first == second and sum(first.values()) > 64
