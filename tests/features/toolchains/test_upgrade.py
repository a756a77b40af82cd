"""`doit upgrade` builds with another toolchain next to the current one, and reports the changes."""

import json
import os
from pathlib import Path

import pytest

from tests.support.bench import bench_of

# Not imported here, since importing it changes ExecuTorch in this process.
PLANTED = Path(__file__).with_name("planted.py")
# The folder of an environment with another release of ExecuTorch and pte-pipeline's requirements.
OTHER = os.environ.get("PTE_PIPELINE_TEST_TOOLCHAIN", "")
CONFIG = """model: one
methods:
  encode: {partitioners: [xnnpack], allow_none: true}
  decode: {partitioners: []}
"""


def test_the_toolchain_is_named_first(tmp_path):
    bench = bench_of("archives", tmp_path)
    assert bench.doit("upgrade") == 1
    assert "name a toolchain, as in `doit upgrade et15`" in bench.output
    assert bench.doit("upgrade", "et15") == 1
    assert "no toolchain 'et15': add it to `toolchains`" in bench.output


def write_workspace(bench, **toolchains):
    """Write a workspace with one package and these toolchains."""
    for config in (bench.root / "partition_configs").glob("*"):
        config.unlink()
    (bench.root / "partition_configs" / "one.yaml").write_text(CONFIG)
    lines = [f'{name} = "{folder}"' for name, folder in toolchains.items()]
    text = "\n".join(["[tool.pte-pipeline.toolchains]", *lines])
    (bench.root / "pyproject.toml").write_text(f"{text}\n")


@pytest.mark.slow  # two toolchains build a package: 60 s
@pytest.mark.skipif(not OTHER, reason="PTE_PIPELINE_TEST_TOOLCHAIN names no other release")
def test_a_package_is_the_same_bytes_with_another_release(tmp_path):
    bench = bench_of("archives", tmp_path)
    write_workspace(bench, other=OTHER)
    assert bench.process("upgrade", "other") == 0, bench.output
    assert "upgrade to other: executorch 1.4.1 to 1." in bench.output
    assert "identical: 1 package (one)" in bench.output
    assert "run in 1.4.1 (default), 1." in bench.output


@pytest.mark.slow  # two toolchains build a package: 60 s
def test_planted_regressions_are_on_top(tmp_path, twin, make_environment):
    bench = bench_of("archives", tmp_path)
    worse = make_environment("worse", sitecustomize=PLANTED.read_text())
    write_workspace(bench, twin=twin, worse=worse)
    assert bench.process("upgrade", "twin") == 0, bench.output  # builds nothing again
    assert "identical: 1 package (one)" in bench.output
    assert "(twin), " in bench.output and ": 1 package" in bench.output
    assert bench.process("upgrade", "worse") == 0, bench.output
    report = bench.output.partition("upgrade to worse")[2]
    lines = [line.strip() for line in report.splitlines()]
    assert lines[1] == "worse:"
    assert lines[2].startswith("one: bytes differ in")
    assert lines[3].startswith("encode: 1 more call of aten.mul.Tensor left undelegated")
    assert any(line.startswith("decode: planned memory") for line in lines)
    page = (bench.root / "build" / "upgrade-worse.md").read_text()
    assert page.index("### Worse") < page.index("<details>")
    assert (bench.root / "build/.toolchains/worse/one/one.pte").is_file()
    assert bench.process("lower") == 0, bench.output
    assert "up to date: 1 package" in bench.output
    runs_in = json.loads(bench.bytes_of("one", "report.json"))["runs_in"]
    assert {name.split()[1]: said for name, said in runs_in.items()} == {
        "(default)": "yes",
        "(twin)": "yes",
        "(worse)": "yes",
    }
    assert "<summary>Runs in</summary>" in bench.bytes_of("one", "report.md").decode()
    assert bench.doit("contract", "one") == 0
    assert f"  runs in:     {next(iter(runs_in))} yes; " in bench.output
