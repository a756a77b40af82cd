"""The figures computed from call times, and the growth that they reveal."""

import random

import pytest

from pipeline.features.native.growth import open_accepted
from pipeline.features.native.timing import DeviceTiming, bound_median, find_median, find_p95
from pipeline.store.digest import hash_bytes
from pipeline.store.store import Store


def test_median_and_p95():
    times = [float(number) for number in range(1, 21)]
    assert find_median(times) == 10.5 and find_p95(times) == 19.0
    assert find_median([]) is None and find_p95([]) is None
    assert find_p95([1.23456]) == 1.23


@pytest.mark.parametrize(
    ("milliseconds", "calls"), [(0.0, 100), (1.0, 100), (50.0, 4), (1000.0, 2)]
)
def test_slow_methods_are_called_less_often(milliseconds, calls):
    assert DeviceTiming().count_calls(milliseconds) == calls
    assert DeviceTiming(100).count_calls(milliseconds) == 100


def test_the_interval_of_a_median_holds_it_in_95_of_100_samples():
    chosen = random.Random(0)
    samples = [[chosen.lognormvariate(0, 1) for _ in range(20)] for _ in range(400)]
    bounds = [bound_median(sample) for sample in samples]
    share = sum(low <= 1 <= high for low, high in bounds) / len(bounds)
    assert 0.94 <= share <= 0.99
    assert bound_median([3.0, 1.0]) == (1.0, 3.0)


def test_an_accepted_package_that_the_store_lost(tmp_path):
    store = Store(tmp_path)
    files = {"one.pte": store.put(b"a program"), "one.ptd": store.put(b"data")}
    package, reason = open_accepted(store, files)
    assert package.contents() == b"a program" and package.data() == [b"data"] and not reason
    lost = {**files, "one.ptd": hash_bytes(b"gone")}
    assert open_accepted(store, lost) == (None, "the store no longer has the baseline's one.ptd")
    assert "`doit baseline` writes them" in open_accepted(store, {})[1]
