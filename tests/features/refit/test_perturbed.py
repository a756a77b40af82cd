"""A sample of `python -m tests.features.refit`: a method on portable kernels, one on XNNPACK."""

import pytest

from tests.features.refit.__main__ import SAME, run
from tests.support.bench import SAMPLES


@pytest.mark.slow
def test_changed_constants_give_what_compiling_gives(tmp_path):
    total = run(SAMPLES / "pair", "pair", 1, tmp_path)
    assert total.keys() == {(SAME, "all"), (SAME, "one")}
