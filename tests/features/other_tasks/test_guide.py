"""docs/guides/tasks.md: its files train a model, lower it, validate the package and release it."""

from __future__ import annotations

import pytest

from tests.docs.blocks import read_blocks
from tests.support.bench import Bench

FILES = {block.title: block.text for block in read_blocks("docs/guides/tasks.md") if block.title}


@pytest.mark.slow
def test_the_guide_trains_lowers_validates_and_releases(tmp_path):
    bench = Bench(tmp_path)
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "data.csv").write_text("1,2\n2,4\n")
    assert bench.doit() == 0, bench.output
    released = (tmp_path / "released.pte").read_bytes()
    assert released == bench.bytes_of("scale", "scale.pte")
    (tmp_path / "data.csv").write_text("1,3\n2,6\n")
    assert bench.doit("-n", "2") == 0, bench.output
    assert (tmp_path / "released.pte").read_bytes() == bench.bytes_of("scale", "scale.pte")
    assert (tmp_path / "released.pte").read_bytes() != released
    assert bench.doit() == 0
    assert bench.output.splitlines()[:3] == ["-- train", "-- release", "up to date: 1 package"]
