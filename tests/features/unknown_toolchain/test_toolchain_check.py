"""How commands react to a toolchain that this release doesn't know."""

import pytest

from pipeline.features.unknown_toolchain import toolchain_check, used_names
from pipeline.store.releases import (
    RELEASES,
    describe_unknown,
    installed_release,
    installed_versions,
)
from pipeline.store.toolchain import CORE
from tests.support.bench import bench_of

LINE = "untested toolchain: torch 2.14.1; "
REFUSED = '`unknown_toolchain = "allow"` in [tool.pte-pipeline], or PTE_PIPELINE_UNKNOWN_TOOLCHAIN'


@pytest.fixture
def bench(tmp_path, monkeypatch):
    versions = {"torch": "2.14.1", "executorch": "1.4.1", "torchao": "0.18.0"}
    problem = describe_unknown(versions)
    monkeypatch.setattr(toolchain_check, "describe_installed", lambda _: problem)
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
    bench.doit("rebuild", **environment)  # a package that was never built
    assert (REFUSED in bench.output) == refused
    assert bench.output.count(LINE) == 1 and (f"warning: {LINE}" in bench.output) != refused


SOURCE = """
from executorch.exir import schema as records, to_edge_transform_and_lower
from executorch.exir.program import _program
from executorch.exir.nonsense import thing
import executorch.nowhere
def build(other):
    other.Nonsense, records.Tensor, records.Sensor
    with replaced(_program, "to_backend", 1), replaced(_program, "to_frontend", 1):
        pass
"""


def test_names_that_are_not_in_the_installed_executorch():
    used = set(used_names.find_used(SOURCE))
    assert "executorch.exir.schema.Tensor" in used and len(used) == 9
    assert {name for name in used if not used_names.is_there(name)} == {
        "executorch.exir.nonsense.thing",
        "executorch.exir.program._program.to_frontend",
        "executorch.exir.schema.Sensor",
        "executorch.nowhere",
    }


def test_every_key_has_the_versions_that_decide():
    assert installed_versions().keys() <= {*CORE}


def test_the_installed_executorch_has_what_the_core_uses():
    assert used_names.find_missing() == []


def test_what_another_release_lacks_is_named_before_anything_is_built(bench, monkeypatch):
    (other,) = (release for release in RELEASES if release is not installed_release())
    monkeypatch.setattr(used_names, "installed_release", lambda: other)
    assert bench.doit("lower") != 0
    lacking = "the installed executorch lacks what every build uses: executorch.extension."
    assert f"{lacking}pybindings.{other.bindings}" in bench.output
    assert not (bench.root / "build/run.json").exists()
    assert bench.doit("list") == 0
