"""XNNPACK as a catalogue entry: lowered through doit, in float32 and int8, and run."""

import pytest

from tests.support.lowerable import (
    bench_for,
    both,
    check_delegated,
    check_fresh_checkout_hits,
    check_ran,
    check_same_bytes,
)

pytestmark = pytest.mark.slow
CONFIGS = {
    "fp32": both(partitioners=["xnnpack"]),
    "int8": both(partitioners=["xnnpack"], quantize={"quantizer": "xnnpack"})
    | {"validate": {"atol": 0.1, "min_sqnr": 20.0}},
}
PORTABLE = {"portable": both(partitioners=[])}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    bench = bench_for(tmp_path_factory.mktemp("xnnpack") / "workspace", CONFIGS | PORTABLE)
    assert bench.doit() == 0, bench.output
    return bench


@pytest.mark.parametrize("package", CONFIGS)
def test_everything_is_delegated_and_runs(bench, package):
    check_delegated(bench, package, "XnnpackBackend", 0.9)
    check_ran(bench, package)


def test_bytes_are_those_of_the_joint_call_and_of_another_build(bench):
    check_same_bytes(bench, CONFIGS, *PORTABLE)


def test_a_fresh_checkout_compiles_nothing(bench, tmp_path):
    check_fresh_checkout_hits(bench, tmp_path / "other", *CONFIGS)
