"""A build like one on a Mac: Linux's system calls and files are hidden, file names fold case and
Unicode forms, and new processes replace forks (`tests/support/without_linux`).

torch's and ExecuTorch's C++ code, and `sys.platform`, remain those of Linux.
"""

import subprocess
import sys

import pytest

from tests.support.bench import REPOSITORY, TESTS, Bench

HIDDEN = TESTS / "support" / "without_linux"
MODEL = """
import torch
from torch import nn
from torch.export import export

def export_methods():
    torch.manual_seed(0)
    inputs = (torch.ones(1, 4),)
    methods = {"encode": nn.Linear(4, 4), "decode": nn.Linear(4, 4)}
    return {
        name: (export(module.requires_grad_(False), inputs), module)
        for name, module in methods.items()
    }


def example_inputs(method):
    return [(torch.ones(1, 4),), (torch.zeros(1, 4),)]
"""
CONFIG = "model: small\nmethods: {encode: {partitioners: []}, decode: {partitioners: []}}\n"


def test_the_calls_and_files_of_linux_are_hidden():
    code = (
        "import ctypes, os, pathlib\n"
        "assert not hasattr(os, 'pidfd_open') and not hasattr(os, 'sched_getaffinity')\n"
        "assert not hasattr(ctypes.CDLL(None), 'prctl') and ctypes.CDLL(None).getpid()\n"
        "assert not pathlib.Path('/proc/self/status').exists()\n"
        "try: open('/proc/meminfo')\n"
        "except FileNotFoundError: print('hidden')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(HIDDEN)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "hidden\n", done.stderr


def test_names_of_files_are_folded(tmp_path):
    (tmp_path / "Caf\u00e9").mkdir()
    code = (
        "import os, pathlib\n"
        "name = pathlib.Path('CAFE\u0301') / 'a'\n"
        "name.write_text('x')\n"
        "name.rename('caf\u00e9/B')\n"
        "assert os.path.exists('Caf\u00e9/b') and not os.path.exists('Cafe/b')\n"
    )
    environment = {"PYTHONPATH": str(HIDDEN), "FOLDED": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True)
    assert [file.name for file in tmp_path.rglob("*")] == ["Caf\u00e9", "B"]


@pytest.fixture
def shop(tmp_path):
    for name, text in {
        "dodo.py": "from pte_pipeline.tasks import *\n",
        "models/small.py": MODEL,
        "partition_configs/small.yaml": CONFIG,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return Bench(tmp_path)


@pytest.mark.slow
@pytest.mark.release
def test_a_build_and_its_repetition(shop):
    """First everything is exported, lowered and validated, then nothing, then one method. A name in
    another case is refused as on Linux, although the file could be opened."""
    hidden = {
        "PYTHONPATH": f"{HIDDEN}:{REPOSITORY}",
        "FOLDED": str(shop.root),
        "PTE_PIPELINE_TEST_SPAWN": "1",
    }
    assert shop.doit(**hidden) == 0, shop.output
    assert set(shop.outcomes().values()) == {"built"}
    assert shop.doit(**hidden) == 0, shop.output
    assert "up to date: 1 package" in shop.output
    with_linux = shop.bytes_of("small", "small.pte")
    shop.edit("models/small.py", '"decode": nn.Linear(4, 4)', '"decode": nn.Linear(4, 3)')
    assert shop.doit(**hidden) == 0, shop.output
    compiled = {name for name, what in shop.outcomes().items() if what == "built"}
    assert "compile small/decode" in compiled and "compile small/encode" not in compiled
    shop.edit("models/small.py", "nn.Linear(4, 3)", "nn.Linear(4, 4)")
    shop.edit("partition_configs/small.yaml", "model: small", "model: SMALL")
    assert shop.doit("check", **hidden) == 1
    assert "no model 'SMALL'; did you mean 'small'?" in shop.output
    shop.edit("partition_configs/small.yaml", "model: SMALL", "model: small")
    assert shop.doit() == 0, shop.output  # with Linux's calls again
    assert shop.bytes_of("small", "small.pte") == with_linux
