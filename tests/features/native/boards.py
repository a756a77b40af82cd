"""Boards for tests: a real sshd on loopback, as the user who runs the tests."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

_SERVER = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
# Plays an aarch64 board: its kernel says so, and QEMU starts the runner.
_EMULATED = """#!/bin/sh
PATH={folder}:$PATH
command=$(printf '%s' "$SSH_ORIGINAL_COMMAND" | sed 's|\\./runner-|{emulator} ./runner-|')
eval "$command"
"""
_UNAME = "#!/bin/sh\necho {machine}\n"


class SshServer:
    """An sshd on a free port of loopback, with keys of its own.

    Attributes:
        port: where it listens.
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
        """Put an `ssh` into a folder that goes by the server's keys, not by the user's files."""
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
        """End the processes that serve connections, as a board that loses its power does."""
        numbers = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for number in numbers.split():
            os.kill(int(number), 9)

    def stop(self):
        if self.process.poll() is not None:
            return
        self.drop_connections()
        self.process.terminate()
        self.process.wait()


def make_aarch64(folder):
    """Return the forced command of a board whose programs run under QEMU."""
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
