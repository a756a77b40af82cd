"""What can happen to a build from outside, with real processes and bounds on count and time."""

import os
import re
import shutil
import signal
import subprocess

import pytest

from pipeline.store.store import Store
from pipeline.store.usage import read_usage
from tests.support.matrix import in_tiers
from tests.support.processes import descendants, gone, has_open, wait_for
from tests.support.resident import run_python

pytestmark = pytest.mark.slow

SLOW = (
    "\nimport time\n_export_methods = export_methods\n"
    "def export_methods():\n    time.sleep(60)\n    return _export_methods()\n"
)


def _heed_interrupts():
    """A suite started by a shell in the background ignores interrupts, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def running(built):
    """A build that has linked what it could, and now waits for a sleeping exporter."""
    (built.root / "models" / "slow.py").write_text(
        (built.root / "models" / "pair.py").read_text() + SLOW
    )
    config = (built.root / "partition_configs" / "pair.yaml").read_text()
    (built.root / "partition_configs" / "slow.yaml").write_text(config.replace("pair", "slow"))
    built.edit("models/pair.py", "- 1.0", "- 2.0")
    process = subprocess.Popen(
        built.command("lower"),
        cwd=built.root,
        env=built.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=_heed_interrupts,
    )
    log = built.root / "build" / ".logs" / "models" / "export-slow.log"
    first = process.stdout.readline()
    assert first.startswith("built    export pair"), first
    wait_for(log.exists)
    yield built, process
    process.kill()
    process.wait(10)


def test_interrupt_ends_within_seconds_and_keeps_what_was_finished(running):
    bench, process = running
    children = descendants(process.pid)
    assert children
    os.killpg(process.pid, signal.SIGINT)  # as a terminal would
    assert process.wait(15) == 130
    assert gone(children, 5)
    assert "Traceback" not in process.stdout.read()
    assert bench.outcomes()["export pair"] == "built"
    assert bench.outcomes()["export slow"] == "not-run"
    assert bench.doit("lower:pair") == 0
    assert bench.outcomes()["export pair"] == "up-to-date"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_killed_driver_leaves_no_orphans_and_loses_nothing_finished(running, end):
    bench, process = running
    children = descendants(process.pid)
    assert children
    os.kill(process.pid, end)
    process.wait(15)
    assert gone(children, 10)
    assert bench.doit("lower:pair") == 0
    assert bench.outcomes()["export pair"] == "up-to-date"


def test_killed_worker_costs_only_the_action_that_it_ran(running):
    """The action is retried by the other worker or a new one, while the other one continues."""
    bench, process = running
    bench.edit("models/slow.py", "time.sleep(60)", "pass")
    log = bench.root / "build" / ".logs" / "models" / "export-slow.log"
    # The exporter's process, a child of the worker, has it open too.
    worker = min(pid for pid in descendants(process.pid) if has_open(pid, log))
    exporters = {pid for pid in descendants(process.pid) if has_open(pid, log)}
    os.kill(worker, signal.SIGKILL)
    wait_for(
        lambda: any(has_open(pid, log) for pid in descendants(process.pid) if pid not in exporters)
    )
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    outcomes = bench.outcomes()
    assert {outcomes["link slow"], outcomes["link pair"]} <= {"built", "refit"}


TWO = """
import os, runpy, sys
sys.argv = ["doit", "lower"]
other = os.fork()
try:
    runpy.run_module("doit", run_name="__main__", alter_sys=True)
finally:
    if other:
        assert os.waitpid(other, 0)[1] == 0
"""


def test_two_runs_at_once_agree(built):
    before = built.bytes_of("pair", "pair.pte")
    shutil.rmtree(built.root / "build")
    shutil.rmtree(built.store)
    done = run_python("-c", TWO, cwd=built.root, env=built.environment, merged=True)
    assert done.returncode == 0, done.stdout
    assert built.bytes_of("pair", "pair.pte") == before
    made = {kind: usage.misses for kind, usage in read_usage(Store(built.store)).items()}
    assert made == {"export": 1, "compile": 2, "preprocess": 1, "link": 1}  # each once, by either
    assert built.doit("lower") == 0
    assert built.outcomes()["link pair"] == "up-to-date"
    assert not list(built.store.rglob(".tmp-*"))


def test_a_build_folder_that_cannot_be_written_is_told_before_anything_is_compiled(built):
    shutil.rmtree(built.root / "build")
    (built.root / "build").write_text("a file where the folder should be")
    assert built.doit("lower") == 3
    assert "build/: File exists; it must be a writable folder" in built.output
    assert "Traceback" not in built.output


def test_a_build_whose_store_cannot_be_made_uses_its_own(built):
    shutil.rmtree(built.root / "build")
    shutil.rmtree(built.store)
    built.store.write_text("a file where the folder should be")
    assert built.doit("lower") == 0
    assert built.outcomes()["compile pair/encode"] == "built"
    own = built.root / "build" / ".store"
    assert f"{own}, for this workspace only" in built.output
    assert str(built.store) in built.output and "Traceback" not in built.output
    assert built.doit("lower") == 0
    assert built.outcomes()["link pair"] == "up-to-date"


APART = """
import ctypes, runpy, subprocess, sys
new_mounts = 0x00020000
assert ctypes.CDLL(None).unshare(new_mounts) == 0
subprocess.run(f"mount --make-rprivate / && {sys.argv.pop(1)}", shell=True, check=True)
sys.argv[0] = "doit"
runpy.run_module("doit", run_name="__main__", alter_sys=True)
"""


def _mounted(bench, command: str, *options: str) -> subprocess.CompletedProcess:
    """Run doit in a mount namespace with a small or read-only folder in it."""
    return run_python("-c", APART, command, *options, cwd=bench.root, env=bench.environment)


def _read_only(folder) -> str:
    return f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"


@pytest.fixture
def mounts():
    probe = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("needs the right to mount; run as root where mount namespaces are allowed")


def test_a_store_on_a_full_disk_is_told_and_the_build_goes_on(built, mounts):
    before = built.bytes_of("pair", "pair.pte")
    shutil.rmtree(built.root / "build")
    shutil.rmtree(built.store)
    built.store.mkdir()
    done = _mounted(built, f"mount -t tmpfs -o size=20k none {built.store}", "lower")
    assert done.returncode == 0, done.stdout
    assert f"store {built.store}: can't be written (No space left on device" in done.stdout
    assert "; free disk space there, or name another in PTE_PIPELINE_STORE" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert built.bytes_of("pair", "pair.pte") == before
    shutil.rmtree(built.root / "build")
    assert built.doit("lower") == 0
    assert built.bytes_of("pair", "pair.pte") == before


def test_a_read_only_store_is_told_and_the_build_goes_on(built, mounts):
    built.edit("models/pair.py", "- 1.0", "- 2.0")
    done = _mounted(built, _read_only(built.store), "lower")
    assert done.returncode == 0, done.stdout
    assert f"store {built.store}: can't be written (Read-only file system" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert built.doit("lower") == 0


def test_a_read_only_build_folder_is_told(built, mounts):
    built.edit("models/pair.py", "- 1.0", "- 2.0")
    done = _mounted(built, _read_only(built.root / "build"), "lower")
    assert done.returncode == 3
    assert "build/: Read-only file system; it must be a writable folder" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert built.doit("lower") == 0


def test_read_only_store_still_serves_hits(built, mounts):
    before = built.bytes_of("pair", "pair.pte")
    shutil.rmtree(built.root / "build")
    folder = built.store
    done = _mounted(built, _read_only(folder), "lower")
    assert done.returncode == 0, done.stdout
    assert built.bytes_of("pair", "pair.pte") == before


@pytest.mark.parametrize("limit", in_tiers([16, 20, 26], [16, 26]))
def test_too_few_open_files_are_a_line_with_the_remedy(bench, limit):
    bench = bench("pair")
    command = f"ulimit -n {limit}; exec {' '.join(bench.command('lower'))}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=bench.root,
        env=bench.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0 and "Traceback" not in done.stdout + done.stderr, done.stdout
    assert re.search(r"Too many open files; raise .*`ulimit -n`", done.stdout), done.stdout
