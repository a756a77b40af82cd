"""The code of features in keys: only features that take part in an action's moments count."""

from functools import cache

import pytest

from pipeline.moments import KEYS, find_features, find_modules
from pipeline.store import toolchain
from tests.support.own_code import read_codes
from tools.lines import read_files, read_modules
from tools.measures import find_closure, find_imports


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
        ("divergences/trace.py", {"export"}),
        ("exporters/exporter.py", {"export", "measure"}),
        ("quantization/quantize.py", {"plan", "export", "compile", "measure"}),
        ("provenance/attest.py", set()),
    ],
)
def test_a_line_more_changes_the_keys_of_its_moments(name, changed):
    kinds = ("plan", "export", "compile", "measure", "validate")
    before, now = read_codes(kinds), read_codes(kinds, f"pipeline/features/{name}")
    assert {kind for kind in kinds if now[kind] != before[kind]} == changed
