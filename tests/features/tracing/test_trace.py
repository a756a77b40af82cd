"""Everything that a process reads is detected, however it does so.

Each case is a function that reads something below a separate folder. One fork runs all of them, for
each view. `NATIVE` marks the cases that only the kernel view sees.
"""

import contextlib
import glob
import hashlib
import mmap
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.features.tracing.tracer import Tracer, has_kernel_view
from pipeline.plan.places import FOLDER
from pipeline.run.isolated import ChildError, ForkWatch, run_isolated
from pipeline.run.stages import Stages
from pipeline.store.errors import ConfigErrors, DeviceError, PipelineError, Problem, SourceError
from pipeline.store.store import MissingBlobError
from tests.support.processes import gone

NATIVE = {"from_file", "safetensors", "cat", "shell", "fork", "statx"}
CASES = {}


def observe(kind, path):
    """Return any value that changes with the content."""
    try:
        if kind == "link":
            return os.readlink(path)
        if kind == "listing":
            return ",".join(sorted(os.listdir(path)))
        if os.path.isdir(path):
            return FOLDER
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def make_watch(root, kernel=None):
    return Tracer(lambda path: path.startswith(str(root)), observe, kernel)


def run(root, function, kernel=True):
    watch = make_watch(root, kernel and has_kernel_view())
    return run_isolated(function, watch), watch


def case(*expected):
    """Register a case that must detect these things (`file:name`, `listing:name`, `link:name`)."""

    def register(function):
        CASES[function.__name__.rstrip("_")] = function, expected
        return function

    return register


def read(path):
    with open(path) as file:
        file.read()


@case("file:a")
def opened(d):
    read(d / "a")


@case("file:a")
def bytes_(d):
    read(os.fsencode(d / "a"))


@case("file:a")
def relative(d):
    os.chdir(d)
    read("./a")


@case("file:link/a", "file:link")
def dir_fd(d):
    """Uses the folder's name as given, which is a link."""
    folder = os.open(d / "link", os.O_RDONLY)
    os.close(os.open("a", os.O_RDONLY, dir_fd=folder))
    os.close(folder)


@case("file:none")
def absent(d):
    assert not (d / "none").exists()


@case("file:none")
def access(d):
    assert not os.access(d / "none", os.R_OK)


@case("file:none")
def opened_in_vain(d):
    with contextlib.suppress(OSError):
        read(d / "none")


@case("file:a")
def thread(d):
    reader = threading.Thread(target=(d / "a").read_text)
    reader.start()
    reader.join()


@case("listing:.")
def listdir(d):
    os.listdir(d)


@case("listing:.")
def listed_by_descriptor(d):
    folder = os.open(d, os.O_RDONLY)
    os.listdir(folder)
    os.close(folder)


@case("listing:.")
def scandir(d):
    list(os.scandir(d))


@case("listing:.")
def glob_(d):
    glob.glob(f"{d}/*.bin")


@case("listing:.", "listing:below")
def walk(d):
    list(os.walk(d))


@case("listing:below")
def rglob(d):
    list(d.rglob("*.bin"))


@case("link:to_a")
def readlink(d):
    os.readlink(d / "to_a")


@case("link:to_a", "file:to_a")
def resolved(d):
    (d / "to_a").resolve().read_text()
    (d / "to_a").read_text()


@case("file:a")
def mapped(d):
    with open(d / "a", "rb") as file:
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)[:]


@case("file:a")
def memmap(d):
    np.memmap(d / "a", mode="r", dtype="u1").sum()


@case("file:a")
def from_file(d):
    torch.from_file(str(d / "a"), size=4, dtype=torch.uint8)


@case("file:w.safetensors")
def safetensors(d):
    load_file(d / "w.safetensors")


@case("file:w.sqlite")
def sqlite(d):
    with sqlite3.connect(d / "w.sqlite") as connection:
        assert connection.execute("select * from t").fetchall() == [(1,)]


@case("file:w.zip")
def zipped(d):
    zipfile.ZipFile(d / "w.zip").read("a")


@case("file:a")
def cat(d):
    subprocess.run(["cat", d / "a"], check=True, stdout=subprocess.DEVNULL)


@case("file:a", "file:none", "listing:.")
def shell(d):
    subprocess.run(f"cd {d}; ls >/dev/null; cat <a >/dev/null; [ -e none ]", shell=True)


@case("file:a")
def fork(d):
    if (child := os.fork()) == 0:
        (d / "a").read_text()
        os._exit(0)
    os.waitpid(child, 0)


@case("file:a")
def statx(d):
    subprocess.run(["stat", d / "a"], stdout=subprocess.DEVNULL)


@case("file:a")
def appended_then_read(d):
    with open(d / "a", "a") as file:
        file.write("more")
    (d / "a").read_text()


@case("file:a")
def read_by_a_link_of_its_own(d):
    (d / "own").symlink_to(d / "a")
    (d / "own").read_text()


@case("file:a")
def read_through_a_folder_of_links(d):
    """In the layout of model caches."""
    (d / "cache").mkdir()
    assert not (d / "cache" / "here").exists()
    (d / "cache" / "here").symlink_to(d)
    (d / "cache" / "here" / "a").read_text()


@case("file:a")
def moved(d):
    (d / "a").rename(d / "b")
    (d / "b").read_text()


@case("file:a")
def through_proc(d):
    os.chdir(d)
    read("/proc/self/cwd/a")


@case("listing:.")
def listed_after_writing(d):
    """The listing before the write counts, without the exporter's own file."""
    (d / "own").write_text("x")
    os.listdir(d)


def writes_only(d):
    (d / "out").write_text("1")
    (d / "out").read_text()
    (d / "made").mkdir()
    (d / "made" / "a").write_text("1")
    assert (d / "made" / "a").exists()
    (d / "made" / "a").rename(d / "made" / "b")
    (d / "made" / "b").read_text()
    shutil.rmtree(d / "made")
    (d / "a").write_text("2")
    (d / "a").read_text()


@pytest.fixture(scope="module", params=["kernel", "audit"])
def view(request):
    if request.param == "kernel" and not has_kernel_view():
        pytest.skip("the kernel can't be asked here")
    return request.param


@pytest.fixture(scope="module")
def seen(view, tmp_path_factory):
    """Return what each case detected, and what existed before."""
    root = tmp_path_factory.mktemp(view)
    expected = {}
    for name, (_, things) in CASES.items():
        prepare(root / name)
        for thing in things:
            kind, _, path = thing.partition(":")
            expected[name, thing] = observe(kind, root / name / path)

    def run_all():
        for name, (function, _) in CASES.items():
            if view == "kernel" or name not in NATIVE:
                function(root / name)

    result, watch = run(root, run_all, kernel=view == "kernel")
    assert result is None and watch.view == view
    return root, watch, expected


def prepare(folder):
    (folder / "below").mkdir(parents=True)
    (folder / "a").write_text("text")
    (folder / "to_a").symlink_to("a")
    (folder / "link").symlink_to(".")
    with zipfile.ZipFile(folder / "w.zip", "w") as members:
        members.writestr("a", "text")
    save_file({"w": torch.ones(2)}, folder / "w.safetensors")
    with sqlite3.connect(folder / "w.sqlite") as connection:
        connection.execute("create table t (x)")
        connection.execute("insert into t values (1)")


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_read_is_seen_as_it_was(seen, name):
    root, watch, expected = seen
    if watch.view == "audit" and name in NATIVE:
        pytest.skip("native")
    for thing in CASES[name][1]:
        kind, _, path = thing.partition(":")
        whole = str((root / name / path) if path != "." else root / name)
        assert watch.seen[kind, whole] == expected[name, thing]


def test_processes_that_python_cannot_follow_are_named(tmp_path):
    _, watch = run(tmp_path, lambda: subprocess.call(["true"]), kernel=False)
    assert watch.unfollowed == ["a process (true)"]


def test_what_a_process_makes_is_no_input(tmp_path, view):
    (tmp_path / "a").write_text("1")
    _, watch = run(tmp_path, lambda: writes_only(tmp_path), view == "kernel")
    there = {path for (kind, path), value in watch.seen.items() if value not in (None, FOLDER)}
    assert {Path(path).name for path in there} <= {tmp_path.name}  # the folder's names before
    assert str(tmp_path / "out") in watch.written


def test_a_later_change_does_not_count(tmp_path, view):
    """The recorded value is from the first access, before the process continues."""
    path = tmp_path / "a"
    path.write_text("1")

    def touch():
        path.read_text()
        path.write_text("2")
        path.read_text()

    before = observe("file", path)
    _, watch = run(tmp_path, touch, view == "kernel")
    assert watch.seen["file", str(path)] == before


class AsksTheEnvironment(torch.nn.Module):
    def forward(self, x):
        return x + 1 if os.environ.get("PTE_TRACED", "0") == "0" else x - 1


def test_environment_that_a_traced_model_reads(tmp_path, monkeypatch):
    """Dynamo follows the code of a model and of everything it calls."""
    monkeypatch.setenv("PTE_TRACED", "0")

    def export():
        torch.export.export(AsksTheEnvironment(), (torch.ones(2),), strict=True)

    _, watch = run(tmp_path, export)
    assert watch.environment["PTE_TRACED"] == "0"


def test_environment_that_is_read(tmp_path, view, monkeypatch):
    monkeypatch.setenv("PTE_ONE", "1")
    monkeypatch.setenv("PTE_BYTES", "2")

    def use():
        os.environ["PTE_OWN"] = "x"
        return [
            os.environ["PTE_ONE"],
            os.getenv("PTE_NONE"),
            os.environb.get(b"PTE_BYTES").decode(),
            "PTE_IN" in os.environ,
            os.environ["PTE_OWN"],
        ]

    result, watch = run(tmp_path, use, view == "kernel")
    assert result == ["1", None, "2", False, "x"]
    own = {name: value for name, value in watch.environment.items() if name.startswith("PTE_")}
    assert own == {"PTE_ONE": "1", "PTE_NONE": None, "PTE_BYTES": "2", "PTE_IN": None}
    _, watch = run(tmp_path, lambda: sorted(dict(os.environ))[:0], view == "kernel")
    assert watch.environment == dict(os.environ)
    assert type(os.environ) is os._Environ


def test_a_library_is_shown_the_variables_of_its_prefix_alone(tmp_path, view, monkeypatch):
    """On import, numba goes through all variables to find those that begin with `NUMBA_`."""
    monkeypatch.setenv("NUMBA_ONE", "1")
    module = {"__name__": "numba.core.config"}
    exec("import os\ndef read():\n    return dict(os.environ.items())", module)
    shown, watch = run(tmp_path, module["read"], view == "kernel")
    assert shown == {"NUMBA_ONE": "1"}
    assert watch.environment == {"NUMBA_ONE": "1", "NUMBA_*": None}


def connect_back():
    server = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(server.getsockname()).close()
    return server.getsockname()[1]


def send_datagram():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"x", ("127.0.0.1", 9))
    return 9


def send_message():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendmsg([b"x"], (), 0, ("127.0.0.1", 9))
    return 9


@pytest.mark.parametrize("use", [connect_back, send_datagram, send_message])
def test_network(tmp_path, view, use):
    port, watch = run(tmp_path, use, view == "kernel")
    assert watch.unfollowed == [f"the network (127.0.0.1:{port})"]


def test_program_of_another_architecture_is_named():
    from pipeline.features.tracing.seccomp import SystemCall
    from pipeline.features.tracing.supervise import Supervisor

    watch = make_watch("/")
    Supervisor(watch).see(SystemCall(1, os.getpid(), "", (0,) * 6))
    assert watch.unfollowed == ["a program of another architecture"]


def test_modules_that_are_imported(tmp_path, monkeypatch):
    (tmp_path / "a_module_of_mine.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    _, watch = run(tmp_path, lambda: [__import__("a_module_of_mine")][:0])
    assert watch.modules["a_module_of_mine"] == str(tmp_path / "a_module_of_mine.py")
    assert "a_module_of_mine" not in sys.modules


def test_modules_that_are_imported_again(tmp_path, monkeypatch):
    """An exporter's module in place of a loaded one, including the module loaded last."""
    names = ["loaded_before", "loaded_last"]
    for name in names:
        (tmp_path / f"{name}.py").touch()
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.syspath_prepend(tmp_path)

    def import_again():
        for name in names:
            del sys.modules[name]
            __import__(name)

    _, watch = run(tmp_path, import_again)
    assert watch.modules == {name: str(tmp_path / f"{name}.py") for name in names}


# The process


def fail(error):
    raise error


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (SourceError("w.pt: is missing"), SourceError, "w.pt: is missing"),
        (MissingBlobError("gone"), MissingBlobError, "gone"),
        (ConfigErrors([Problem("a.yaml", "x", "is wrong")]), PipelineError, "a.yaml: x: is wrong"),
        (DeviceError("phone: ", "refused"), PipelineError, "phone: refused"),
        (ValueError("two\nlines"), ChildError, "ValueError: two; lines"),
        (MemoryError(), ChildError, "out of memory"),
        (SystemExit(3), ChildError, "SystemExit: 3"),
        (KeyError("x"), ChildError, "KeyError: 'x'"),
    ],
)
def test_errors_keep_class_and_text(error, kind, text):
    with pytest.raises(kind) as caught:
        run_isolated(lambda: fail(error))
    assert str(caught.value) == text


def test_child_that_dies_is_named():
    with pytest.raises(ChildError, match=r"its process died \(SIGTERM\)") as caught:
        run_isolated(lambda: [signal.raise_signal(signal.SIGTERM)])
    assert caught.value.signal == signal.SIGTERM
    with pytest.raises(ChildError, match=r"it ended its process \(exit status 0\)"):
        run_isolated(lambda: os._exit(0))


@pytest.mark.parametrize("watched", [True, False])
def test_nothing_outlives_a_child(tmp_path, watched):
    """It leaves a daemon that holds everything it inherited and keeps reading files."""

    def leave():
        if (child := os.fork()) == 0:
            if os.fork() == 0:
                os.setsid()
                while True:
                    os.path.exists(tmp_path)
            os._exit(0)
        os.waitpid(child, 0)
        started = subprocess.Popen(["sleep", "60"])
        return started.pid

    began = time.monotonic()
    pid = run_isolated(leave, make_watch(tmp_path) if watched else None)
    assert time.monotonic() - began < 50  # it does not wait for the end of the minute
    assert gone({pid}, within=2)


def test_child_dies_with_its_parent(tmp_path):
    def be_parent():
        (tmp_path / "ready").write_text("")
        run_isolated(lambda: [(tmp_path / "pid").write_text(str(os.getpid())), time.sleep(60)])

    if (parent := os.fork()) == 0:
        be_parent()
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.01)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert gone({int((tmp_path / "pid").read_text())}, within=2)


def test_child_changes_nothing_here_and_starts_alike(monkeypatch):
    def change():
        torch.set_default_dtype(torch.float64)
        os.environ["PTE_LEFT"] = "1"
        return [torch.rand(2).tolist(), np.random.rand(), str(torch.get_default_dtype())]

    first = run_isolated(change)
    torch.rand(3), np.random.rand()
    assert run_isolated(change) == first
    assert torch.get_default_dtype() == torch.float32 and "PTE_LEFT" not in os.environ


def test_stages_and_memory_come_back():
    stages = Stages()

    def work():
        with stages.stage("one"):
            bytearray(200 << 20)
        with stages.stage("two"):
            fail(SourceError("no"))

    with stages.stage("before"):
        pass
    with pytest.raises(SourceError):
        run_isolated(work, stages=stages)
    assert [name for name, _, _ in stages.spans] == ["before", "one"]
    assert stages.current == "two" and stages.peak_bytes > 200 << 20


class NestedRun(ForkWatch):
    """Runs another fork from this process during the first one."""

    def begin(self, line):
        self.line = line

    def attend(self, child, line):
        run_isolated(lambda: None)
        line.sendall(b".")


def test_a_run_within_a_run_leaves_orphans_to_the_outer_one():
    watch = NestedRun()

    def leave():
        watch.line.recv(1)
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            if (orphan := os.fork()) == 0:
                time.sleep(60)
            os.write(writing, orphan.to_bytes(4, "little"))
            os._exit(0)
        os.waitpid(child, 0)
        return int.from_bytes(os.read(reading, 4), "little")

    assert gone({run_isolated(leave, watch)}, within=1)
