"""In an untrusted build, only what security.md calls code runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = (
    *("filelock", "loky", "joblib", "yaml", "psutil", "s3fs", "cryptography"),
    *("multiprocessing", "pte_pipeline", "runpy"),
)
MARK = 'open({mark!r}, "a").write(__name__ + "\\n")\n'


def run(bench, *words):
    """Run doit's script."""
    environment = {**os.environ, **bench.environment, "PTE_PIPELINE_UNTRUSTED": "1"}
    done = subprocess.run(
        [sys.executable, Path(sys.executable).parent / "doit", *words],
        cwd=bench.root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def mark(tmp_path):
    return tmp_path / "ran"


@pytest.fixture
def pair(bench, mark):
    """A workspace with files in its root that are named like installed modules."""
    pair = bench("pair")
    for name in NAMES:
        (pair.root / f"{name}.py").write_text(MARK.format(mark=str(mark)) + "raise ImportError\n")
    return pair


@pytest.mark.slow
def test_no_file_of_the_root_is_imported_for_an_installed_module(pair, mark):
    run(pair, "lower")
    assert "up to date: 1 package\n" in run(pair, "lower")
    assert not mark.exists(), mark.read_text()


SETTINGS = {
    "doit.cfg": "[GLOBAL]\ndodoFile = other.py\nreporter = odd\nbackend = odd\n"
    "[REPORTER]\nodd = other:Odd\n[BACKEND]\nodd = other:Odd\n",
    "pyproject.toml": '[tool.doit]\ndodoFile = "other.py"\nreporter = "odd"\n'
    '[tool.doit.plugins.reporter]\nodd = "other:Odd"\n',
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_doit_choose_no_code(pair, mark, name):
    (pair.root / "other.py").write_text(
        MARK.format(mark=str(mark)) + "from pte_pipeline.tasks import *\nOdd = 1\n"
    )
    (pair.root / name).write_text(SETTINGS[name])
    assert "pair" in run(pair, "plan")
    assert "lower:pair" in run(pair, "list", "--all")
    assert not mark.exists(), mark.read_text()
