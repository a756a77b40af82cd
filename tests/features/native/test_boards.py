"""Boards reached by ssh and adb, and what can go wrong: a real sshd on loopback with the real
client, and the real `adb` with a stand-in for its server."""

import os
import shutil
import struct
import time
from pathlib import Path

import pytest
import torch

from pipeline.devices.interface import PackageFiles
from pipeline.features.native.addresses import BoardAddress
from pipeline.features.native.board import Board
from pipeline.features.native.build import find_command
from pipeline.features.native.device import NativeDevice
from pipeline.features.native.process import RunnerProcess
from pipeline.features.native.setups import find_setup
from pipeline.store.errors import DeviceError, PipelineError
from tests.devices.test_bindings import X, package_file
from tests.features.native.boards import AdbServer, SshServer, make_aarch64, write_program

pytestmark = pytest.mark.slow

# Answers like a runner that opens a package in 0 ns, then hangs.
_HANGING = """#!/bin/sh
[ $# = 0 ] && { echo 'usage: hanging'; exit 2; }
printf '\\002\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0'
exec "${0%/*}/sleeper" 47
"""
_SETTINGS = """[tool.pte-pipeline]
{sdk}
[tool.pte-pipeline.native_boards]
pi5 = "{address}"
"""
FILES = PackageFiles("some.pte", b"program", (b"data",))


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Start an sshd, and put a client that has its keys on the PATH."""
    servers = []

    def start(command="", key="client"):
        server = SshServer(tmp_path, command)
        servers.append(server)
        server.make_client(tmp_path / "bin", key)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        return server

    yield start
    for server in servers:
        server.stop()


def open_board(server, wait_seconds=1, cache_size=10**8):
    return Board("pi5", BoardAddress(server.address), wait_seconds, cache_size)


def install_runner(board, folder, text=_HANGING):
    """Install a stand-in for the runner, along with the program next to it that it executes."""
    write_program(folder / "pte_runner", text)
    shutil.copy(shutil.which("sleep"), folder / "sleeper")
    board.install_runner(folder / "pte_runner", [folder / "sleeper"])


def is_running(words):
    """Return whether a process has these words in its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if words in path.read_bytes().replace(b"\0", b" ").decode():
                return True
        except OSError:
            continue  # the process has ended
    return False


def wait_for(words, running):
    """Wait until a process with these words exists, or none does."""
    for _ in range(200):
        if is_running(words) == running:
            return
        time.sleep(0.05)
    raise AssertionError(f"{words}: running is not {running}")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_package_runs_on_a_board(machine, serve, tmp_path):
    """QEMU runs the programs of the aarch64 board."""
    names = {"x86_64": "native", "aarch64": "qemu:cortex-a72"}
    problem = find_setup(names[machine], tmp_path).problem
    if problem:
        pytest.skip(problem)
    server = serve(make_aarch64(tmp_path) if machine == "aarch64" else "")
    text = _SETTINGS.format(sdk="", address=server.address)
    (tmp_path / "pyproject.toml").write_text(text)
    files = PackageFiles.of(package_file())
    for _ in range(2):
        device = NativeDevice("pi5", tmp_path, 60)
        loaded = device.load(files, "count")
        for total in (2, 4):
            assert torch.equal(device.call(loaded, (X,))[0], total * X)
        device.close(files)
        [runner] = server.folder.glob("runner-*/pte_runner")
        sent = runner.stat().st_ctime_ns
    assert runner.stat().st_ctime_ns == sent
    names = sorted(path.name.partition("-")[0] for path in server.folder.iterdir())
    assert names == ["data", "holder", "lock", "runner"]
    wait_for(f"{server.folder}/runner", False)


def test_a_connection_that_is_lost(serve, tmp_path):
    server = serve()
    board = open_board(server)
    install_runner(board, tmp_path)
    process = RunnerProcess([], FILES, 30, board)
    wait_for("/sleeper 47", True)  # until then it is a shell, which isn't taken for ours
    started = time.monotonic()
    server.drop_connections()
    with pytest.raises(DeviceError, match=r"does not load: .*(lost|closed|broken|reset)"):
        process.load(["forward"])
    with pytest.raises(DeviceError, match=r"^pi5: "):
        RunnerProcess([], FILES, 30, board)
    process.close()
    board.close()
    assert time.monotonic() - started < 10
    wait_for("/sleeper 47", False)
    open_board(server, 10).close()


def test_a_runner_that_hangs_is_ended_there_too(serve, tmp_path):
    server = serve()
    board = open_board(server)
    install_runner(board, tmp_path)
    process = RunnerProcess([], FILES, 5, board)
    wait_for("/sleeper 47", True)
    with pytest.raises(DeviceError, match=r"does not load: no answer within 5 s"):
        process.load(["forward"])
    process.close()
    wait_for("/sleeper 47", False)
    board.close()


def test_a_runner_that_crashes_is_no_lost_connection(serve, tmp_path):
    text = _HANGING.replace('exec "${0%/*}/sleeper" 47', "kill -SEGV $$")
    board = open_board(serve())
    install_runner(board, tmp_path, text)
    process = RunnerProcess([], FILES, 30, board)
    with pytest.raises(DeviceError, match=r"the runner ended \(SIGSEGV\)"):
        process.load(["forward"])
    process.close()
    board.place(tmp_path / "pte_runner")
    board.close()


def make_bare_shell(folder):
    """Return a forced command whose shell has few programs."""
    (folder / "few").mkdir()
    for name in ("sh", "mkdir", "timeout"):
        (folder / "few" / name).symlink_to(shutil.which(name))
    text = f'#!/bin/sh\nPATH={folder}/few\neval "$SSH_ORIGINAL_COMMAND"\n'
    write_program(folder / "bare", text)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("stop", r"pi5: ssh: connect to host .* Connection refused; is its ssh server running"),
        ("key", r"pi5: .*Permission denied \(publickey\).*; add this user's public key"),
        ("host", r"pi5: Host key verification failed.; connect once manually"),
        ("tool", r"pi5: it has no `flock`; install "),
        ("folder", r"pi5: mkdir: cannot create directory"),
    ],
)
def test_a_board_that_can_not_be_used(damage, message, serve, tmp_path):
    command = ""
    if damage == "tool":
        make_bare_shell(tmp_path)
        command = str(tmp_path / "bare")
    server = serve(command, "stranger" if damage == "key" else "client")
    if damage == "stop":
        server.stop()
    if damage == "host":
        stranger = (tmp_path / "stranger.pub").read_text()
        (tmp_path / "known").write_text(f"[127.0.0.1]:{server.port} {stranger}")
    if damage == "folder":
        server.folder.write_text("a file")
    with pytest.raises(DeviceError, match=message):
        open_board(server)


def test_a_board_that_another_build_holds(serve, capfd):
    server = serve()
    first = open_board(server)
    with pytest.raises(
        DeviceError,
        match=r"another build is measuring on it: .*\(process \d+\) "
        "since",
    ):
        open_board(server)
    assert "; waiting" in capfd.readouterr().out
    first.close()
    second = open_board(server)
    assert (server.folder / "holder").read_text().count(str(os.getpid())) == 1
    second.close()


def test_the_cache_is_bounded_and_files_are_sent_once(serve, tmp_path):
    server = serve()
    packages = []
    for number in range(4):
        packages.append(tmp_path / f"{number}.pte")
        packages[-1].write_bytes(bytes([number]) * 40_000)
    for package in packages[:2]:
        board = open_board(server, cache_size=100_000)
        board.place(package)
        board.close()
    names = {path.name for path in server.folder.glob("data-*")}
    assert len(names) == 2
    board = open_board(server, cache_size=100_000)
    first = board.place(packages[0])  # used again, so the other one is evicted
    (server.folder / first).write_bytes(b"damaged")
    board.close()
    board = open_board(server, cache_size=100_000)
    assert board.place(packages[0]) == first
    assert (server.folder / first).read_bytes() == packages[0].read_bytes()
    second = board.place(packages[2])
    assert {path.name for path in server.folder.glob("data-*")} == {first, second}
    with pytest.raises(DeviceError, match=r"its cache of 100.0 kB has no room"):
        board.place(packages[3])
    board.close()


def test_a_full_disk(serve, tmp_path):
    """The shell's limit on file sizes stands in for it."""
    write_program(tmp_path / "small", '#!/bin/sh\nulimit -f 64\neval "$SSH_ORIGINAL_COMMAND"\n')
    server = serve(str(tmp_path / "small"))
    (tmp_path / "large.pte").write_bytes(bytes(200_000))
    board = open_board(server)
    with pytest.raises(DeviceError, match=r"board there can't be written: File (size|too)"):
        board.place(tmp_path / "large.pte")
    board.close()
    assert {path.name for path in server.folder.iterdir()} == {"lock", "holder"}


def test_programs_of_another_processor(serve, tmp_path):
    """Like a 32-bit system on an aarch64 kernel."""
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HHI", 2, 0xB7, 1)
    (tmp_path / "pte_runner").write_bytes(header.ljust(4096, b"\0"))
    board = open_board(serve())
    with pytest.raises(PipelineError, match="pi5: its programs are for a different processor than"):
        board.install_runner(tmp_path / "pte_runner", [])
    board.close()


@pytest.fixture
def phone(monkeypatch):
    """A device that the real adb reaches through a stand-in for its server."""
    if shutil.which("adb") is None:
        pytest.skip("adb is not installed; `apt install adb`")
    server = AdbServer("R5CT10")
    monkeypatch.setenv("ADB_SERVER_SOCKET", server.socket_name)
    yield server
    server.shutdown()
    server.server_close()


def open_phone(folder, serial="R5CT10"):
    return Board("pixel", BoardAddress(f"adb://{serial}{folder}"), 1, 10**8)


def test_a_package_runs_on_a_phone(phone, tmp_path):
    """Its setting names this machine's runner, which the stand-in runs."""
    setup = find_setup("native", tmp_path)
    if setup.problem:
        pytest.skip(setup.problem)
    [runner] = find_command(setup)
    text = f'native_runner_android = "{runner}"'
    text = _SETTINGS.format(sdk=text, address=f"adb://R5CT10{tmp_path}/phone")
    (tmp_path / "pyproject.toml").write_text(text)
    files = PackageFiles.of(package_file())
    device = NativeDevice("pi5", tmp_path, 60)
    loaded = device.load(files, "count")
    for total in (2, 4):
        assert torch.equal(device.call(loaded, (X,))[0], total * X)
    device.close(files)
    names = sorted(path.name.partition("-")[0] for path in (tmp_path / "phone").iterdir())
    assert names == ["data", "holder", "lock", "runner"]


def test_bytes_go_to_a_phone_as_they_are(phone, tmp_path):
    content = bytes(range(256)) * 1000
    (tmp_path / "all.pte").write_bytes(content)
    board = open_phone(tmp_path / "phone")
    name = board.place(tmp_path / "all.pte")
    board.close()
    assert (tmp_path / "phone" / name).read_bytes() == content


def test_a_phone_that_is_not_there(phone, tmp_path):
    with pytest.raises(DeviceError, match=r"^pixel: .*device 'other' not found; `adb devices`"):
        open_phone(tmp_path / "phone", "other")


def test_a_phone_that_is_unplugged(phone, tmp_path):
    board = open_phone(tmp_path / "phone")
    install_runner(board, tmp_path)
    process = RunnerProcess([], FILES, 30, board)
    wait_for("/sleeper 47", True)
    phone.unplug()
    with pytest.raises(DeviceError, match=r"does not load: the connection was lost"):
        process.load(["forward"])
    process.close()
    board.close()
    wait_for("/sleeper 47", False)
