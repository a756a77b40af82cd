"""A mistake with one cause in many configs is reported once, by every command."""

import re

from tests.support.bench import bench_of


def test_a_missing_base_is_one_message(tmp_path):
    bench = bench_of("pair", tmp_path)
    (bench.root / "partition_configs" / "pair.yaml").unlink()
    names = [f"p{number:02}" for number in range(20)]
    for name in names:
        (bench.root / "partition_configs" / f"{name}.yaml").write_text("extends: _gone\n")
    for words in (["check"], ["plan"], ["lower"]):
        assert bench.doit(*words) == 1
        assert len(re.findall("no config '_gone'", bench.output)) == 1, bench.output
        assert "also in p01, p02, p03 and 16 more" in bench.output
    assert "link p00, link p01, link p02 and 17 more\n" in bench.output
    assert "20 failed" in bench.output
