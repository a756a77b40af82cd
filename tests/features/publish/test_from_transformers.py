"""examples/publish/publish.sh, from an empty folder to packages that a client fetches and runs."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.store.digest import hash_file
from tests.support.bench import REPOSITORY

SCRIPT = REPOSITORY / "examples" / "publish" / "publish.sh"
GUIDE = "docs/guides/from-transformers-to-an-index.md"
TARGETS = ("android-arm64", "any")
# PyPI's torchvision can't be imported with the CPU build of torch, and these models don't need it.
NO_TORCHVISION = 'import sys\n\nsys.modules["torchvision"] = None\n'
needs = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="the extra `gallery` is not installed"
)


def test_the_guide_shows_all_that_the_script_writes():
    guide = (REPOSITORY / GUIDE).read_text(encoding="utf-8")
    files = re.findall(r"cat > (\S+) <<'END'\n(.*?)END\n", SCRIPT.read_text("utf-8"), re.S)
    assert len(files) == 7
    missing = [path for path, text in files if f"`{path}`\n\n```yaml\n{text}```" not in guide]
    assert missing == []


@needs
@pytest.mark.slow
@pytest.mark.parametrize(
    "models",
    [["vision"], pytest.param(["text", "vision", "speech"], marks=pytest.mark.gallery)],
    ids=["small", "whole"],
)
def test_an_empty_folder_becomes_a_published_index(tmp_path, models):
    hidden = tmp_path / "python"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(NO_TORCHVISION)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(hidden),
        "PTE_PIPELINE_STORE": str(tmp_path / "store"),
        "PTE_PIPELINE_JOBS": "1",
    }
    words = ["sh", str(SCRIPT), str(tmp_path / "w"), *models]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    packages = [f"{model}-{target}" for model in models for target in TARGETS]
    published = tmp_path / "w" / "published"
    index = json.loads((published / "packages.json").read_text())
    assert {release["package"] for release in index["releases"]} == {*packages}
    assert {target: [*names] for target, names in index["targets"].items()} == {
        target: sorted(models) for target in TARGETS
    }
    for release in index["releases"]:
        path = release["path"]
        assert release["verdict"] == "passed"
        assert f"{path}: sent 4 files, " in done.stdout
        assert f"{path}: already uploaded\n" in done.stdout
        (pte,) = (file for file in release["files"] if file["kind"] == "program")
        fetched = tmp_path / "w" / "client" / path / pte["name"]
        assert hash_file(fetched) == hash_file(published / path / pte["name"]) == pte["blake3"]
    ran = re.findall(r"^([\w-]+)\.pte: (?:.*, finite: True|loaded, .*)$", done.stdout, re.M)
    assert ran == packages
