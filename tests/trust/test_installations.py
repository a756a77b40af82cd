"""Distributions outside the environment's folder: the user's, or on the path only."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.bench import REPOSITORY
from tests.support.lowerable import bench_for, both
from tests.support.matrix import in_tiers

pytestmark = pytest.mark.slow

PASS = """
from torch.fx.passes.infra.pass_base import PassResult

INPUTS = ["passes/kept.txt"]


class Keep:
    def __call__(self, graph_module):
        open("passes/kept.txt").close()
        return PassResult(graph_module, False)
"""


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs a Python that lacks torch")
@pytest.mark.parametrize("way", in_tiers(["user", "path"], ["path"]))
def test_what_is_installed_elsewhere_is_no_input(tmp_path, way):
    """A symbolic link stands in for the installation, which takes 2 GB."""
    python = Path(sys.base_prefix, "bin", f"python{sysconfig.get_python_version()}")
    own = {**os.environ, "PYTHONUSERBASE": str(tmp_path / "home")}
    own.pop("PYTHONNOUSERSITE", None)
    ask = [python, "-c", "import site; print(site.getusersitepackages())"]
    place = tmp_path / "packages"
    if way == "user":
        place = Path(subprocess.check_output(ask, text=True, env=own).strip())
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(sysconfig.get_path("purelib"))
    config = both(partitioners=["xnnpack"], edge={"passes": ["mine:Keep"]})
    bench = bench_for(tmp_path / "w", {"small": config})
    (bench.root / "passes").mkdir()
    (bench.root / "passes" / "mine.py").write_text(PASS)
    (bench.root / "passes" / "kept.txt").write_text("")
    path = [REPOSITORY] if way == "user" else [REPOSITORY, place]
    environment = {**own, "PYTHONPATH": ":".join(map(str, path))}
    environment["PTE_PIPELINE_STORE"] = str(bench.store)
    for said in ("4 actions: 4 built", "up to date: 1 package"):
        done = subprocess.run(
            [python, "-m", "doit", "lower"],
            cwd=bench.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0 and said in done.stdout, done.stdout
    keys = [
        json.loads(each.read_text())["key"] for each in (bench.store / "actions").rglob("*.json")
    ]
    [reads] = [each["reads"]["files"] for each in keys if each["kind"] == "export"]
    assert "models/small.py" not in reads and not [each for each in reads if "packages" in each]
