"""Temporary files are removed with their action, however it, its worker or the build ends."""

import os
import signal
import subprocess
import sys
import time

import pytest

from pipeline.features.tracing.watch import FileAccessLog
from pipeline.run.isolated import ForkWatch
from pipeline.store.scratch import scratch_folder
from tests.support.stand_in import run_stand_in

PERFORM = """
import os, shutil, signal, subprocess, tempfile
from pathlib import Path

def runs_user_code(action):
    return False

def perform(action, workspace, stages, always, *_):
    folder = Path(tempfile.mkdtemp())
    (folder / "x").write_text("1")
    os.symlink("/etc", folder / "link")
    os.chmod(folder, 0o500)
    tempfile.mkstemp(prefix=".hidden")
    subprocess.run(["sh", "-c", "echo 1 > $TMPDIR/of-a-program"], check=True)
    os.chdir(workspace.root)
    seen = workspace.root / f"{action.package}.seen"
    seen.write_text(f"{sorted(os.listdir(folder.parent))}")
    if action.package == "well":
        shutil.rmtree(folder.parent)
    if action.package == "fails":
        raise ValueError("no")
    if action.package == "dies" and not os.path.exists("died"):
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return False
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_temporary_files_go_with_their_action(tmp_path, temporary):
    names = ["well", "fails", "dies", "again"]
    run_stand_in(tmp_path, PERFORM, [("compile", name, {}) for name in names], jobs=1)
    for name in names:
        seen = (tmp_path / f"{name}.seen").read_text().split(", ")
        assert len(seen) == 3, seen  # nothing from the previous action
    assert list(temporary.iterdir()) == []
    assert (os.stat("/etc").st_mode & 0o777) == 0o755


KILLED = """
import os, sys
from pipeline.store.scratch import scratch_folder
with scratch_folder("mine-", sys.argv[1]) as folder:
    (folder / "deep").mkdir()
    (folder / "deep" / "x").write_text("1")
    print(flush=True)
    sys.stdin.read()
"""


def test_folders_of_killed_builds_go_with_the_next_one(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    builds = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    for build in builds:
        build.stdout.readline()
    (tmp_path / "mine-by-name").mkdir()  # another program's: it has no lock
    (tmp_path / "mine-link").symlink_to("/etc")
    builds[0].send_signal(signal.SIGKILL)
    builds[0].wait()
    assert len(list(tmp_path.glob("mine-*"))) == 4
    with scratch_folder("mine-", tmp_path) as folder:
        assert len(list(tmp_path.glob("mine-*"))) == 4 and folder.is_dir()
    builds[1].communicate()
    assert {path.name for path in tmp_path.iterdir()} == {"mine-by-name", "mine-link"}


def test_temporary_files_of_an_exporter_are_no_inputs(tmp_path, monkeypatch):
    outside, scratch = tmp_path / "outside", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(ForkWatch, "scratch", str(scratch))
    watch = FileAccessLog(lambda path: True, lambda kind, path: "")
    watch.look(str(scratch))
    watch.list(str(scratch))
    watch.open_to_write(str(scratch / "x"), os.O_WRONLY | os.O_CREAT)
    watch.look(str(scratch / "x"))
    watch.look(str(scratch / "none"))
    assert not watch.seen
    watch.link(str(scratch / "link"))
    (scratch / "link").symlink_to(outside)
    watch.look(str(scratch / "link" / "w.txt"))
    watch.look(str(scratch / "none"))
    assert {*watch.seen} == {("file", str(outside / "w.txt"))}  # nothing leads outside undetected


@pytest.mark.slow
def test_a_killed_build_leaves_nothing_for_long(tmp_path, temporary):
    """The next build removes its workers' folder."""
    code = (
        "from pipeline.run.executors.processes import WorkerProcesses\n"
        "import os, sys, tempfile\nfrom pathlib import Path\n"
        "processes = WorkerProcesses()\n"
        "print(processes.submit(Path(), tempfile.mkdtemp).result(), flush=True)\n"
        "sys.stdin.read()\n"
        "processes.close()\n"
    )
    kept = []
    for kills in (True, False):
        build = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        kept.append(build.stdout.readline().strip())
        assert os.path.isdir(kept[-1]) and os.path.isdir(kept[0]) == (len(kept) == 1)
        if kills:
            build.kill()
            time.sleep(0.5)  # until its workers are gone
        build.communicate(timeout=60)
    assert list(temporary.iterdir()) == []
