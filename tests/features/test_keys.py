"""The code of features in keys: what takes part in an action's moments counts, and nothing else."""

import shutil
from functools import cache
from pathlib import Path

import pytest

import pipeline
from pipeline.moments import KEYS, find_features, find_modules
from pipeline.store import toolchain
from tools.lines import read_files, read_modules
from tools.measures import find_closure, find_imports

ROOT = Path(pipeline.__file__).parent


@cache
def read_imports():
    return find_imports(read_modules(read_files()))


@pytest.mark.parametrize("feature", find_features(), ids=lambda feature: feature.name)
def test_all_that_a_moment_imports_counts(feature):
    imports = read_imports()
    folder = f"pipeline.features.{feature.name}."
    for keys in KEYS:
        modules = find_modules(feature, keys)
        reached = set().union(*(find_closure(module, imports) for module in modules))
        own = {name.rpartition(".")[2] for name in reached if name.startswith(folder)}
        assert not own & toolchain.find_uncounted(feature, keys)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("refit/unit.py", {"export", "compile", "measure"}),
        ("inspection/section.py", {"validate"}),
        ("gates/judge.py", {"validate"}),
        ("latency/latency.py", {"measure", "validate"}),
        ("departures/trace.py", {"export"}),
        ("exporters/exporter.py", {"export"}),
        ("quantization/quantize.py", {"plan", "export", "compile", "measure"}),
        ("provenance/attest.py", set()),
    ],
)
def test_a_line_more_changes_the_keys_of_its_moments(name, changed, tmp_path, monkeypatch):
    root = Path(shutil.copytree(ROOT, tmp_path / "pipeline"))
    monkeypatch.setattr(toolchain, "__file__", str(root / "store" / "toolchain.py"))
    monkeypatch.setattr(toolchain, "_room", toolchain._room.__wrapped__)
    monkeypatch.setattr(toolchain, "code", toolchain.code.__wrapped__)
    kinds = ("plan", "export", "compile", "measure", "validate")
    before = {kind: toolchain.code(kind) for kind in kinds}
    with (root / "features" / name).open("a") as module:
        module.write("# changed\n")
    assert {kind for kind in kinds if toolchain.code(kind) != before[kind]} == changed
