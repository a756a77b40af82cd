"""A few cases of the sweep: `python -m tests.sweep` runs all of them."""

from collections import Counter

import pytest

from tests.support.bench import Bench
from tests.sweep.cases import CASES, load_cases, program
from tests.sweep.compare import (
    EQUAL,
    HERE,
    KNOWN,
    LOST,
    LOST_ON_PURPOSE,
    LOWERED,
    OTHER,
    REFUSED,
    compare,
    expected_file,
    find,
)

SOME = (
    "out_symint",
    "containers",
    "container_namedtuple",
    "buffer_shared_mutated",
    "names_dunder",
)


@pytest.mark.slow
def test_a_few_cases_are_counted_rightly(tmp_path):
    load_cases(["arguments", "containers", "names", "state"])
    found = compare({name: CASES[name] for name in SOME}, tmp_path)
    counts = Counter(word for each in found for word in each.words)
    assert counts == {LOWERED: 2, EQUAL: 2, HERE: 1, REFUSED: 1, KNOWN: 1}
    assert not any(each.bad for each in found)

    bench = Bench(tmp_path)
    expected_file(tmp_path, "containers").write_bytes(b"other")
    other = find("containers", bench, {})
    assert other.words == (LOWERED, OTHER) and other.bad
    (tmp_path / "build" / "containers" / "containers.pte").unlink()
    lost = find("containers", bench, {"containers": "why"})
    assert lost.words == (LOST,) and lost.bad and "here: why" in str(lost)


def test_names_of_cases_are_their_own():
    load_cases(["names"])
    assert LOST_ON_PURPOSE.keys() <= CASES.keys()
    with pytest.raises(ValueError, match="two cases are called names_long"):
        program(CASES["names_long"])
