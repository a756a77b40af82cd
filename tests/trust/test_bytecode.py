"""The code that runs is the code that was hashed: bytecode of an earlier source isn't run."""

import os
import shutil
import subprocess
import sys
import time
from importlib.util import cache_from_source

import pytest

PLAIN = "import acme; print(acme.N)"
CHECKED = "from pte_pipeline import bytecode; bytecode.check_bytecode({}); " + PLAIN
# Keys contain no thread counts, so a worker has the same number whatever the user's variables say.
IN_WORKER = """
import os
import pkgutil
from pathlib import Path
from pipeline.run.executors.processes import WorkerProcesses
processes = WorkerProcesses()
assert processes.submit(Path(), os.getenv, "OMP_NUM_THREADS").result() == "1"
print(processes.submit(Path(), pkgutil.resolve_name, "acme:N").result())
processes.close()
"""


def run(folder, code):
    path = os.pathsep.join([str(folder), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "7"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", code]
    return int(subprocess.check_output(command, env=environment, timeout=60))


def patch(folder, number):
    """Write a file of the same size, and keep its time."""
    path = folder / "acme.py"
    before = path.stat()
    time.sleep(0.02)  # the resolution of the kernel's clock
    path.write_text(f"N = {number}\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "acme.py").write_text("N = 1\n")
    os.utime(folder / "acme.py", (10**9, 10**9))
    time.sleep(0.02)
    assert run(folder, PLAIN) == 1
    return folder


@pytest.mark.slow
def test_a_worker_runs_a_file_as_it_was_patched_and_as_it_was_put_back(site):
    patch(site, 2)
    assert run(site, PLAIN) == 1  # according to Python's own rule
    assert run(site, IN_WORKER) == 2
    assert run(site, PLAIN) == 2  # since the bytecode was compiled again
    patch(site, 1)
    assert run(site, CHECKED.format("()")) == 1 == run(site, PLAIN)


def test_bytecode_of_a_source_that_stays_is_not_written_again(site):
    bytecode = cache_from_source(str(site / "acme.py"))
    before = os.stat(bytecode)
    assert run(site, CHECKED.format("()")) == 1
    after = os.stat(bytecode)
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


def test_a_copy_is_believed_where_its_sources_are_known(site, tmp_path):
    """For example in an image, whose files get times in the order in which they are unpacked."""
    for name in ("whole", "patched"):
        shutil.copytree(site, tmp_path / name)
    copy = tmp_path / "whole"
    source, bytecode = str(copy / "acme.py"), cache_from_source(str(copy / "acme.py"))
    for path in (bytecode, source):
        os.utime(path, (10**9, 10**9))  # the source was copied last
        time.sleep(0.02)
    for check, is_old in (
        ("", True),  # check_bytecode isn't called
        ("check_bytecode(())", True),
        (f"check_bytecode([{str(tmp_path / 'patched')!r}])", True),
        (f"check_bytecode([{str(copy)!r}])", False),
    ):
        code = (
            "from pte_pipeline.bytecode import check_bytecode, is_outdated\n"
            f"{check}\n"
            f"print(int(is_outdated({source!r}, {bytecode!r})))"
        )
        assert run(copy, code) == is_old
    patched = tmp_path / "patched"
    patch(patched, 2)
    assert run(patched, CHECKED.format("()")) == 2
