"""A new backend is just a new folder of a feature: nothing else names it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from pipeline.backends import families
from pipeline.moments import Feature

ROOT = Path(families.__file__).parents[1]
INIT = """
from pipeline.moments import Feature

FEATURE = Feature("fresh", "test", entries="pipeline.features.fresh.entries")
"""
ENTRIES = """
from typing import Annotated
from pipeline.backends.entry import Backend
from pipeline.backends.options import OneOf, Options

class FreshOptions(Options):
    mode: Annotated[str, OneOf("fresh_modes")] = "slow"

ENTRIES = (Backend("fresh", "FreshBackend", "a test", FreshOptions),)
"""
CONSTRUCTORS = """
[[constructors]]
target = "fresh:Partitioner"
stages = ["fresh.lowering"]
[beyond.fresh.lowering]
other = "for a test"
"""
LOOK = """
import json
from pipeline.backends import BACKENDS
from pipeline.features.constructor_options import constructors
from pipeline.features.contracts import linking
print(json.dumps({
    "modes": BACKENDS["fresh"].options.model_validate({"mode": "fast"}).mode,
    "library": linking.backend_links()["fresh"]["library"],
    "target": constructors.constructors("fresh.lowering")[0].target,
    "beyond": list(constructors.beyond("fresh.lowering")),
    "kernels": list(linking.kernel_libraries()),
}))
"""


def test_a_folder_is_all_that_a_backend_needs(tmp_path):
    shutil.copytree(ROOT, tmp_path / "pipeline")
    folder = tmp_path / "pipeline" / "features" / "fresh"
    folder.mkdir()
    (folder / "__init__.py").write_text(INIT)
    (folder / "entries.py").write_text(ENTRIES)
    (folder / "names.toml").write_text('fresh_modes = ["slow", "fast"]\n')
    (folder / "linking.toml").write_text('[backends]\nfresh = {library = "fresh_backend"}\n')
    (folder / "constructors.toml").write_text(CONSTRUCTORS)
    command = [sys.executable, "-c", LOOK]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    assert seen.pop("kernels")[-1] == "cortex_m"
    assert seen == {
        "modes": "fast",
        "library": "fresh_backend",
        "target": "fresh:Partitioner",
        "beyond": ["other"],
    }


def test_families_have_an_order_of_their_own_and_new_ones_come_last(monkeypatch):
    names = ("zeta", "alpha", "arm", "xnnpack")
    features = [Feature(name, "", entries=f"{name}.entries") for name in names]
    monkeypatch.setattr(families, "find_features", lambda: features)
    modules = families.find_families.__wrapped__()
    assert list(modules) == ["xnnpack", "arm", "alpha", "zeta"]
    assert modules["zeta"] == "zeta.entries"
