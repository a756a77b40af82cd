"""What can happen to a build from outside. Real processes, bounded in count and time."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Bench

from pipeline.digest import Digest
from pipeline.store import MissingBlobError, Store
from pipeline.upkeep import read_usage

SLOW = (
    "\nimport time\n_export_methods = export_methods\n"
    "def export_methods():\n    time.sleep(60)\n    return _export_methods()\n"
)


def descendants(pid: int) -> set[int]:
    """The living children of a process, and theirs."""
    found: set[int] = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    state, parent = stat.read().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(parent) == pid and state != "Z":
                found |= {int(entry)} | descendants(int(entry))
    return found


def gone(pids: set[int], within: float) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, within: float = 120) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


@pytest.fixture
def running(built):
    """A build that has linked what it could and now waits in an exporter that sleeps."""
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
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
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
    """The other worker goes on, and what was under way is tried again."""
    bench, process = running
    bench.edit("models/slow.py", "time.sleep(60)", "pass")
    log = bench.root / "build" / ".logs" / "models" / "export-slow.log"
    worker = next(pid for pid in descendants(process.pid) if _has_open(pid, log))
    os.kill(worker, signal.SIGKILL)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert bench.outcomes()["link slow"] == bench.outcomes()["link pair"] == "built"


def _has_open(pid: int, path) -> bool:
    try:
        return str(path) in {
            os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")
        }
    except OSError:
        return False


def test_two_runs_at_once_agree(built):
    before = built.bytes_of("pair", "pair.pte")
    shutil.rmtree(built.root / "build")
    shutil.rmtree(built.store)
    runs = [
        subprocess.Popen(
            built.command("lower"), cwd=built.root, env=built.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    outputs = [run.communicate(timeout=240)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert built.bytes_of("pair", "pair.pte") == before
    made = {kind: usage.misses for kind, usage in read_usage(Store(built.store)).items()}
    assert made == {"export": 1, "compile": 2, "preprocess": 1, "link": 1}  # each once, by either
    assert built.doit("lower") == 0
    assert built.outcomes()["link pair"] == "up-to-date"
    assert not list(built.store.rglob(".tmp-*"))


@pytest.mark.parametrize("where", ["store", "build"])
def test_folder_that_cannot_be_written_is_told_before_anything_is_compiled(built, where):
    shutil.rmtree(built.root / "build")
    if where == "build":
        (built.root / "build").write_text("a file where the folder should be")
        assert built.doit("lower") == 3
        assert "build/: File exists; it must be a folder that can be written" in built.output
    else:
        shutil.rmtree(built.store)
        built.store.write_text("a file where the folder should be")
        assert built.doit("lower") == 1
        assert f"{built.store}: " in built.output
        assert built.outcomes()["export pair"] == "failed"
    assert "Traceback" not in built.output


APART = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]


def _mounted(bench, command: str, *options: str) -> subprocess.CompletedProcess:
    """Runs doit in a mount namespace of its own, with a small or read-only folder in it."""
    script = f'{command} && exec "$@"'
    return subprocess.run(
        [*APART, script, "sh", *bench.command(*options)],
        cwd=bench.root, env=bench.environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def _read_only(folder) -> str:
    return f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"


@pytest.fixture
def mounts():
    probe = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("needs the right to mount; run as root where mount namespaces are allowed")


def test_full_disk_is_told_and_the_next_run_is_right(built, mounts):
    before = built.bytes_of("pair", "pair.pte")
    shutil.rmtree(built.root / "build")
    shutil.rmtree(built.store)
    built.store.mkdir()
    done = _mounted(built, f"mount -t tmpfs -o size=20k none {built.store}", "lower")
    assert done.returncode == 1
    assert "No space left on device" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert built.doit("lower") == 0
    assert built.bytes_of("pair", "pair.pte") == before


@pytest.mark.parametrize("where", [".store", "build"])
def test_read_only_folder_is_told(built, mounts, where):
    built.edit("models/pair.py", "- 1.0", "- 2.0")
    folder = built.root / where
    done = _mounted(built, _read_only(folder), "lower")
    assert done.returncode == 1
    assert "Read-only file system" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert built.doit("lower") == 0


def test_read_only_store_still_serves_hits(built, mounts):
    before = built.bytes_of("pair", "pair.pte")
    shutil.rmtree(built.root / "build")
    folder = built.store
    done = _mounted(built, _read_only(folder), "lower")
    assert done.returncode == 0, done.stdout
    assert built.bytes_of("pair", "pair.pte") == before


SABOTAGE = """
import shutil
from pipeline.tasks import *
from pipeline import pool

_run = pool.Pool.run
_done = []


def run(self, ready):
    if any(action.kind == "{kind}" for action in ready) and not _done:
        _done.append(True)
        shutil.rmtree(self._workspace.store.root / "{what}")
    return _run(self, ready)


pool.Pool.run = run
"""


PER_OPERATOR = (
    "partition_configs/pair.yaml",
    "[xnnpack]",
    "[{xnnpack: {per_op_mode: true}}]",
)


@pytest.fixture(scope="module")
def per_operator(_built, tmp_path_factory):
    """The package that a build with this change gives when nothing interferes."""
    root = tmp_path_factory.mktemp("per_operator") / "pair"
    bench = Bench(Path(shutil.copytree(_built.root, root)))
    bench.edit(*PER_OPERATOR)
    assert bench.doit("lower") == 0, bench.output
    return bench.bytes_of("pair", "pair.pte")


@pytest.mark.parametrize("what", ["blobs", "actions"])
@pytest.mark.parametrize("kind", ["compile", "link", "validate"])
def test_what_vanishes_between_check_and_read_is_a_miss_not_an_error(
    built, per_operator, kind, what
):
    """Whoever evicts it; the exported program, the objects, all of it, just before it is read."""
    built.edit(*PER_OPERATOR)
    if kind == "validate":
        built.edit("partition_configs/pair.yaml", "model: pair", "model: pair\nvalidate: {seed: 7}")
    (built.root / "dodo.py").write_text(SABOTAGE.format(kind=kind, what=what))
    assert built.doit() == 0, built.output
    assert built.outcomes()[f"{kind} pair" + "/decode" * (kind == "compile")] == "built"
    assert built.bytes_of("pair", "pair.pte") == per_operator
    (built.root / "dodo.py").write_text("from pipeline.tasks import *\n")
    assert built.doit() == 0, built.output
    assert built.outcomes()["link pair"] == "up-to-date"


def test_eviction_all_the_time_only_costs_time(built):
    """Another process evicts everything that is not in use, over and over, while two build."""
    before = built.bytes_of("pair", "pair.pte")
    shutil.rmtree(built.root / "build")
    shutil.rmtree(built.store)
    evicting = subprocess.Popen(
        [
            sys.executable, "-c",
            "import sys; from pathlib import Path; from pipeline.store import Store\n"
            "from pipeline.upkeep import evict\n"
            "while True: evict(Store(Path(sys.argv[1])), 0)",
            str(built.store),
        ],
    )  # fmt: skip
    try:
        assert built.doit("lower", timeout=300) == 0, built.output
    finally:
        evicting.kill()
        evicting.wait(10)
    assert built.bytes_of("pair", "pair.pte") == before


def test_kills_at_any_moment_leave_nothing_wrong_and_nothing_behind(built):
    """The whole process group, after several lengths of time, then one run to the end."""
    before = built.bytes_of("pair", "pair.pte")
    shutil.rmtree(built.root / "build")
    shutil.rmtree(built.store)
    for seconds in (0.6, 4.0, 7.5, 9.5, 11.0):
        run = subprocess.Popen(
            built.command("lower"), cwd=built.root, env=built.environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            run.wait(seconds)
        except subprocess.TimeoutExpired:
            children = descendants(run.pid)
            os.killpg(run.pid, signal.SIGKILL)
            run.wait(10)
            assert gone(children, 10)
    assert built.doit("lower") == 0, built.output
    assert built.bytes_of("pair", "pair.pte") == before
    assert built.doit("cache", "verify") == 0, built.output
    assert built.doit("cache", "gc") == 0
    left = [p for p in built.root.rglob(".tmp-*") if p.is_file()]
    assert left == []
    assert not list((built.store / "locks").iterdir())


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "bit flipped": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "swapped": None,
}


def _damage(path, how, other):
    content = other.read_bytes() if how == "swapped" else DAMAGE[how](path.read_bytes())
    path.chmod(0o644)
    path.write_bytes(content)


def stored(bench):
    """All but the empty blob, which has nothing to damage."""
    files = [*(bench.store / "blobs").rglob("*"), *(bench.store / "actions").rglob("*")]
    return sorted(path for path in files if path.is_file() and path.stat().st_size)


@pytest.mark.parametrize("how", DAMAGE)
def test_every_stored_file_damaged_is_never_served(built, how):
    """Each file alone, as the store's readers see it, then all of them at once in a build."""
    files = stored(built)
    assert len(files) > 15
    contents = {path: path.read_bytes() for path in files}
    for path, other in zip(files, files[1:] + files[:1], strict=True):
        _damage(path, how, other)
        store = Store(built.store)
        name = Digest(path.parent.name + path.name.removesuffix(".json"))
        if path.suffix == ".json":
            assert store.entry(name) is None
        else:
            assert not store.intact([name])
            with pytest.raises(MissingBlobError):
                store.read(name)
        assert not path.exists()
        store.put(contents[path]) if path.suffix != ".json" else path.write_bytes(contents[path])
    before = built.bytes_of("pair", "pair.pte")
    shutil.rmtree(built.root / "build")
    for path, other in zip(files, files[1:] + files[:1], strict=True):
        _damage(path, how, other)
    assert built.doit() == 0, built.output
    assert built.bytes_of("pair", "pair.pte") == before
    built.doit("cache", "verify")  # drops what was damaged and not needed
    assert built.doit("cache", "verify") == 0, built.output
    assert built.doit() == 0
    assert built.outcomes()["link pair"] == "up-to-date"


NO_PICKLE = """
import pickle, sys
from pathlib import Path
from pipeline import perform as performing
from pipeline.perform import perform
from pipeline.plan import Plan
from pipeline.preprocess import counted_preprocess
from pipeline.stages import Stages
from pipeline.status import export_status
from pipeline.workspace import open_workspace

def refuse(*arguments, **options):
    raise AssertionError("unpickled")

import _pickle, torch
for module in (pickle, _pickle):
    module.load = module.loads = module.Unpickler = refuse
pickle._Unpickler = pickle._load = pickle._loads = refuse
torch.load = refuse

workspace = open_workspace(Path("."))
plan = Plan(workspace)
actions = [*plan.compiles("pair"), plan.link("pair")]
for action in actions:
    perform(action, workspace, Stages(), always=True)  # reads the exported program and partitions
for action in actions:
    assert perform(action, workspace, Stages(), always=False)  # reads objects and files
perform(plan.validate("pair"), workspace, Stages(), always=True)
assert export_status(plan, "pair").current
try:
    pickle.loads(b"")
except AssertionError:
    print("nothing was unpickled")
"""


def test_nothing_is_unpickled_where_store_and_artifacts_are_read(built):
    done = subprocess.run(
        [sys.executable, "-c", NO_PICKLE],
        cwd=built.root, env=built.environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.stdout.endswith("nothing was unpickled\n"), done.stderr


EDIT = """
from pathlib import Path
from pipeline.tasks import *
from pipeline import pool

_run = pool.Pool.run


def run(self, ready):
    if ready[0].kind == "compile":
        path = Path({name!r})
        path.write_bytes(Path({content!r}).read_bytes())
    return _run(self, ready)


pool.Pool.run = run
"""


def test_archive_edited_while_the_build_runs_is_not_recorded_for_either_content(bench):
    workspace = bench("archives")
    path = workspace.root / "models" / "one.pt2"
    first = path.read_bytes()
    other = workspace.root / "models" / "many" / "classify.pt2"
    (workspace.root / "edited").write_bytes(other.read_bytes())
    hooked = EDIT.format(name=str(path), content=str(workspace.root / "edited"))
    (workspace.root / "dodo.py").write_text(hooked)
    assert workspace.doit("lower:one") == 1
    assert "one.pt2: changed while the build ran; run again" in workspace.output
    assert b'"kind":"compile"' not in b"".join(p.read_bytes() for p in stored(workspace))
    path.write_bytes(first)
    (workspace.root / "dodo.py").write_text("from pipeline.tasks import *\n")
    assert workspace.doit("lower:one") == 0, workspace.output


def test_config_edited_while_the_build_runs_is_stale_in_the_next(built, per_operator):
    """What runs is what was read; it is never taken for what the file says now."""
    config = built.root / "partition_configs" / "pair.yaml"
    portable = config.read_text().replace("[xnnpack]", "[]")
    (built.root / "edited").write_text(portable)
    built.edit(*PER_OPERATOR)
    hooked = EDIT.format(name=str(config), content=str(built.root / "edited"))
    (built.root / "dodo.py").write_text(hooked)
    assert built.doit("lower") == 0, built.output
    assert built.bytes_of("pair", "pair.pte") == per_operator
    (built.root / "dodo.py").write_text("from pipeline.tasks import *\n")
    assert built.doit("plan") == 0
    assert "partitioners" in built.output and "1 waits" in built.output
