"""Boards for tests: a real sshd on loopback, and a stand-in for adb's server that the real `adb`
connects to. Both run commands as the user who runs the tests."""

import getpass
import os
import shutil
import socket
import socketserver
import struct
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.features.native.setups import find_setup

_SERVER = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
# Acts as an aarch64 board: its kernel claims to be one, and QEMU starts the runner.
_EMULATED = """#!/bin/sh
PATH={folder}:$PATH
command=$(printf '%s' "$SSH_ORIGINAL_COMMAND" | sed 's|\\./runner-|{emulator} ./runner-|')
eval "$command"
"""
_UNAME = "#!/bin/sh\necho {machine}\n"


_VERSION = b"0029"  # of adb's protocol, 1.0.41; another client would start a new server
_STDIN, _STDOUT, _STDERR, _EXIT, _CLOSE_STDIN = range(5)  # packets of the protocol shell_v2
_HEAD = struct.Struct("<BI")


class SshServer:
    """An sshd on a free loopback port, with temporary keys.

    Attributes:
        port: the port that it listens on.
        folder: the cache folder of the board.
    """

    def __init__(self, folder, command=""):
        if _SERVER is None:
            pytest.skip("sshd is not installed; `apt install openssh-server`")
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.files = folder
        self.folder = folder / "board"
        self.command = command
        for name in ("host", "client", "stranger"):
            _make_key(folder / name)
        (folder / "authorized").write_text((folder / "client.pub").read_text())
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        host_key = (folder / "host.pub").read_text()
        (folder / "known").write_text(f"[127.0.0.1]:{self.port} {host_key}")
        self.start()

    @property
    def address(self):
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}{self.folder}"

    def start(self):
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.files}/host",
            f"AuthorizedKeysFile {self.files}/authorized",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            f"PidFile {self.files}/pid",
        ]
        if self.command:
            lines.append(f"ForceCommand {self.command}")
        (self.files / "server").write_text("\n".join(lines) + "\n")
        command = [_SERVER, "-D", "-f", str(self.files / "server"), "-E", str(self.files / "log")]
        self.process = subprocess.Popen(command)
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        pytest.skip(f"sshd does not start: {(self.files / 'log').read_text()[-300:]}")

    def make_client(self, folder, key="client"):
        """Write an `ssh` to a folder that uses the server's keys and not the user's files."""
        lines = [
            f"IdentityFile {self.files / key}",
            "IdentitiesOnly yes",
            "IdentityAgent none",
            f"UserKnownHostsFile {self.files}/known",
            "StrictHostKeyChecking yes",
        ]
        folder.mkdir(exist_ok=True)
        (folder / "config").write_text("\n".join(lines) + "\n")
        text = f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n'
        write_program(folder / "ssh", text)

    def drop_connections(self):
        """End the processes that serve connections, as if the board lost power."""
        numbers = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for number in numbers.split():
            with suppress(ProcessLookupError):
                os.kill(int(number), 9)

    def stop(self):
        if self.process.poll() is not None:
            return
        self.drop_connections()
        self.process.terminate()
        self.process.wait()


class AdbServer(socketserver.ThreadingTCPServer):
    """A stand-in for adb's server with one device, whose shell is this machine's.

    Attributes:
        serial: the serial number of the device.
        shells: the processes of its shells.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, serial):
        super().__init__(("127.0.0.1", 0), _AdbRequest)
        self.serial = serial
        self.shells = []
        self.connections = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def socket_name(self):
        """Return the value for ADB_SERVER_SOCKET."""
        return f"tcp:127.0.0.1:{self.server_address[1]}"

    def unplug(self):
        """End all shells and connections, and remove the device."""
        self.serial = ""
        for shell in self.shells:
            shell.stdin.close()
        for connection in self.connections:
            with suppress(OSError):  # its command has ended
                connection.shutdown(socket.SHUT_RDWR)


class _AdbRequest(socketserver.BaseRequestHandler):
    def handle(self):
        while True:
            size = self._receive(4)
            if not size:
                return
            service = self._receive(int(size, 16)).decode()
            name = service.split(":")[0]
            if service == "host:version":
                self._answer(_VERSION)
                return
            elif self.server.serial not in service and name.startswith("host"):
                text = f"device '{service.split(':')[1]}' not found".encode()
                self.request.sendall(b"FAIL" + b"%04x" % len(text) + text)
                return
            elif service.endswith(":features"):
                self._answer(b"shell_v2")
                return
            elif service.startswith("host:tport:"):
                self.request.sendall(b"OKAY" + struct.pack("<Q", 1))
            elif service.startswith("host:transport:"):
                self.request.sendall(b"OKAY")
            elif service.startswith("shell,v2"):
                self.request.sendall(b"OKAY")
                self._run_shell(service.partition(":")[2])
                return
            else:
                raise AssertionError(service)

    def _answer(self, text):
        self.request.sendall(b"OKAY" + b"%04x" % len(text) + text)

    def _receive(self, size):
        content = b""
        while len(content) < size:
            part = self.request.recv(size - len(content))
            if not part:
                return b""
            content += part
        return content

    def _run_shell(self, command):
        pipe = subprocess.PIPE
        shell = subprocess.Popen(
            ["sh", "-c", command], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0
        )
        self.server.shells.append(shell)
        self.server.connections.append(self.request)
        lock = threading.Lock()
        readers = []
        for number, stream in ((_STDOUT, shell.stdout), (_STDERR, shell.stderr)):
            arguments = (number, stream, lock)
            readers.append(threading.Thread(target=self._forward, args=arguments, daemon=True))
        writer = threading.Thread(target=self._feed, args=(shell,), daemon=True)
        for thread in (*readers, writer):
            thread.start()
        for thread in readers:
            thread.join()
        self._send(_EXIT, bytes([shell.wait() & 255]), lock)

    def _forward(self, number, stream, lock):
        while content := stream.read(1 << 16):
            self._send(number, content, lock)
        stream.close()

    def _send(self, number, content, lock):
        try:
            with lock:
                self.request.sendall(_HEAD.pack(number, len(content)) + content)
        except OSError:
            return  # unplugged

    def _feed(self, shell):
        try:
            while head := self._receive(_HEAD.size):
                number, size = _HEAD.unpack(head)
                content = self._receive(size)
                if number == _CLOSE_STDIN:
                    break
                if number == _STDIN:
                    shell.stdin.write(content)
        except (OSError, ValueError):
            pass  # unplugged, or the shell ended
        shell.stdin.close()


def make_aarch64(folder):
    """Return the forced command of a board that runs its programs under QEMU."""
    emulator = shutil.which("qemu-aarch64-static")
    text = _EMULATED.format(
        folder=folder, emulator=f"{emulator} -cpu cortex-a72 -L /usr/aarch64-linux-gnu"
    )
    write_program(folder / "uname", _UNAME.format(machine="aarch64"))
    write_program(folder / "emulated", text)
    return str(folder / "emulated")


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def _make_key(path):
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True)


@pytest.fixture(name="server")
def board_server(tmp_path):
    """Yield a board on loopback whose client comes first on PATH, if the runner can be built."""
    if problem := find_setup("native", tmp_path).problem:
        pytest.skip(problem)
    server = SshServer(tmp_path)
    server.make_client(tmp_path / "bin")
    yield server
    server.stop()
