"""What a command says, and does, with a toolchain that this release doesn't know."""

import pytest

from pipeline.cli import toolchain_check
from tests.support.bench import bench_of

LINE = "untested toolchain: torch 2.14.1; "
REFUSED = '`unknown_toolchain = "allow"` of [tool.pte-pipeline], or PTE_PIPELINE_UNKNOWN_TOOLCHAIN'


@pytest.fixture
def bench(tmp_path, monkeypatch):
    versions = {"torch": "2.14.1", "executorch": "1.4.1", "torchao": "0.18.0"}
    monkeypatch.setattr(toolchain_check, "installed_versions", lambda: versions)
    monkeypatch.delenv("CI", raising=False)
    return bench_of("archives", tmp_path)


@pytest.mark.parametrize("words", [("lower",), (), ("rebuild",), ("validate", "*")])
def test_nothing_is_built_in_ci_with_an_unknown_toolchain(bench, words):
    assert bench.doit(*words, CI="true") != 0
    assert LINE in bench.output and REFUSED in bench.output
    assert not (bench.root / "build/run.json").exists()


@pytest.mark.parametrize("words", [("list",), ("help",), ("check",), ("plan",), ("cache", "stats")])
def test_what_builds_nothing_works_in_ci_with_any_toolchain(bench, words):
    assert bench.doit(*words, CI="true") == 0
    assert REFUSED not in bench.output
    assert f"warning: {LINE}" in bench.output or words[0] in ("list", "help")


@pytest.mark.parametrize(
    ("environment", "setting", "refused"),
    [
        ({}, "", False),
        ({"CI": "false"}, "", False),
        ({"CI": "1"}, "", True),
        ({"CI": "true"}, "allow", False),
        ({}, "refuse", True),
        ({"CI": "true", "PTE_PIPELINE_UNKNOWN_TOOLCHAIN": "allow"}, "refuse", False),
    ],
)
def test_a_setting_comes_before_the_environment_of_ci(bench, environment, setting, refused):
    if setting:
        text = f'[tool.pte-pipeline]\nunknown_toolchain = "{setting}"\n'
        (bench.root / "pyproject.toml").write_text(text)
    bench.doit("rebuild", **environment)  # of what was never built
    assert (REFUSED in bench.output) == refused
    assert bench.output.count(LINE) == 1 and (f"warning: {LINE}" in bench.output) != refused
