"""A sample of ExecuTorch's operator tests: `python -m tests.upstream` runs all of them."""

import pytest

from tests.upstream.collect import find_files
from tests.upstream.compare import CAUGHT, EQUAL, LOWERED, VALIDATED, compare

pytestmark = pytest.mark.slow


def test_all_tests_of_operators_are_found():
    folders = [path.parent.name for path in find_files()]
    assert folders.count("operators") > 50
    assert folders.count("ops") > 40


@pytest.mark.parametrize(
    ("files", "select", "cases"),
    [("operators/adaptive_avgpool3d", "dtype or output_size", 2), ("ops/negate", "", 2)],
)
def test_a_sample_is_lowered_to_the_same_bytes_and_judged_rightly(files, select, cases, tmp_path):
    outcomes = compare(find_files(None, files), "xnnpack", tmp_path, "sample", select)
    counts = sum((each.count() for each in outcomes), start=type(outcomes[0].count())())
    assert counts[LOWERED] == counts[EQUAL] == counts[VALIDATED] + counts[CAUGHT] == cases, outcomes
    # The wheel has no kernel of a three-dimensional average.
    assert counts[CAUGHT] == files.startswith("operators")
