"""A batch on a board: its lock, its cache folder, and the runners that run there.

A session is one ssh or adb process that holds the board's lock. When it ends, for whatever reason,
the shell at its other end kills the runners and removes incomplete files. All that remains on the
board is one folder of packages and runners, named by digest, with a bounded size.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import shlex
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from pipeline.features.native.adb import AdbLink
from pipeline.features.native.addresses import SSH, BoardAddress
from pipeline.features.native.board_cache import choose_evictions
from pipeline.features.native.links import Link
from pipeline.features.native.ssh import SshLink
from pipeline.store.errors import DeviceError
from pipeline.store.sizes import human_size

_CONNECT_SECONDS = 30.0
_COMMAND_SECONDS = 60.0
_LEAST_RATE = 200_000  # bytes per second; sending a file is given up below this rate
_HEARTBEAT_SECONDS = 15.0  # a session ends if it receives nothing for 60 s
_END_SECONDS = 5.0
_LOST = "the connection was lost"
_KILLED = 128  # a shell reports a process that a signal ended as 128 plus the signal
_USAGE = "usage:"  # printed by every runner that gets no arguments
# The lines before this script set HOLDER, LIMIT and FOLDER.
_SESSION = r"""
umask 077
mkdir -p "$FOLDER" && cd "$FOLDER" || exit 73
here=$(pwd -P)
for tool in flock timeout head sha256sum du; do
  command -v $tool >/dev/null || { echo "lacks $tool"; exit 69; }
done
exec 9>>lock || exit 73
waited=0
until flock -n 9; do
  [ $waited = 0 ] && echo "waits $(cat holder)"
  [ $waited -ge $LIMIT ] && { echo "held $(cat holder)"; exit 75; }
  sleep 1
  waited=$((waited + 1))
done
echo "$HOLDER since $(date +%H:%M:%S)" > holder
clean_up() {
  ls -l /proc/[0-9]*/exe 2>/dev/null | grep -F -- "-> $here/" |
    sed 's|.*/proc/\([0-9]*\)/exe.*|\1|' | while read pid; do kill -9 $pid; done
  rm -rf -- *.part *.pid
}
clean_up
echo "ready $(uname -m) $here"
while [ -n "$(timeout 60 head -c 1 9>&-)" ]; do :; done
clean_up
: > holder
"""


class Board:
    """A board whose lock this process holds until `close`.

    Attributes:
        name: its name in the settings.
        machine: its processor, as printed by `uname -m`.
        problem: why the board can't be used any more, or "" while it can.
    """

    def __init__(
        self, name: str, address: BoardAddress, wait_seconds: float, cache_size: int
    ) -> None:
        """Connect, and wait for the lock. Raises DeviceError if either fails.

        Args:
            wait_seconds: how long to wait for another build that holds the lock.
            cache_size: the maximum size of the folder on the board, in bytes.
        """
        self.name = name
        self.machine = ""
        self._cache_size = cache_size
        self._folder = ""
        self._runner = ""
        self._entries: set[str] = set()  # entries that this batch uses, which must stay
        self.problem = ""
        self._started = 0
        self._is_closed = threading.Event()
        self._scratch = TemporaryDirectory(prefix="pte-board-")
        self._stderr = TemporaryFile()  # noqa: SIM115 - open as long as the session
        self._link = _make_link(address, Path(self._scratch.name))
        folder = address.folder or self._link.default_folder
        settings = f'HOLDER="{_describe_holder()}"\nLIMIT={wait_seconds:.0f}\nFOLDER="{folder}"'
        self._session = self._start_session(settings + _SESSION)
        try:
            self._wait_until_ready(wait_seconds)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._send_heartbeats, daemon=True).start()

    def install_runner(self, program: Path, libraries: Sequence[Path]) -> None:
        """Copy a runner and the libraries that it needs to the board, and check that it starts.
        Raises DeviceError if it can't be copied or doesn't start."""
        files = [program, *libraries]
        digests = [(file.name, _hash(file)) for file in files]
        identity = hashlib.sha256(json.dumps(digests).encode()).hexdigest()
        folder = f"runner-{identity[:32]}"
        paths = {f"{folder}/{file.name}": file for file in files}
        self._keep(
            folder,
            paths,
            dict(zip(paths, [digest for _, digest in digests], strict=True)),
        )
        self._runner = f"{folder}/{program.name}"
        answer = self._try(f"./{self._runner} 2>&1", _COMMAND_SECONDS)
        if _USAGE in answer.stdout:
            return
        lines = answer.stdout.strip().splitlines() or [
            f"exit status {answer.returncode}"
        ]
        if self.explain(answer.returncode, answer.stderr.splitlines()):
            raise self._error(self.problem)
        reason = _describe_start(lines, program, self.machine)
        raise self._error(reason)

    def place(self, file: Path) -> str:
        """Copy a file to the board unless it is already there, and return its path on the board.
        Raises DeviceError if it can't be copied."""
        digest = _hash(file)
        name = f"data-{digest[:32]}{file.suffix}"
        if name not in self._entries:
            self._keep(name, {name: file}, {name: digest})
        return name

    def make_command(self, paths: Sequence[str]) -> tuple[list[str], int]:
        """Return the command that runs the runner on the board, and a number for `kill_runner`.

        The runner reads files on the board; `kill_runner` ends it by the number. Raises DeviceError
        if the board can't be used any more.
        """
        self._check()
        self._started += 1
        # In the background, since ssh doesn't forward signals. A background process would read
        # /dev/null, so it gets a copy of the input.
        script = (
            f"exec 3<&0; ./{self._runner} {' '.join(paths)} <&3 3<&- & exec 3<&- </dev/null; "
            f"echo $! > {self._started}.pid; wait $!"
        )
        return self._link.run(self._in_folder(script)), self._started

    def kill_runner(self, number: int) -> None:
        """End a runner that doesn't answer."""
        with suppress(DeviceError):
            self._try(f"kill -9 $(cat {number}.pid)", _COMMAND_SECONDS)

    def explain(self, status: int, lines: Sequence[str]) -> str:
        """Return why a command lost the board, or "" if the command failed for another reason.

        Args:
            status: the exit status of the command.
            lines: what the command wrote to its stderr.
        """
        reason = self._link.explain(status, lines)
        if not reason and not lines:
            with suppress(subprocess.TimeoutExpired):  # it may be about to end
                self._session.wait(1)
        if self._session.poll() is not None:
            reason = reason or _LOST
        self.problem = self.problem or reason
        return reason

    def close(self) -> None:
        """Release the lock and end the runners."""
        self._is_closed.set()
        with suppress(OSError):
            self._pipe.close()
        try:
            self._session.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._session.kill()
            self._session.wait()
        assert self._session.stdout is not None
        self._session.stdout.close()
        self._stderr.close()
        self._scratch.cleanup()

    def _start_session(self, script: str) -> subprocess.Popen[bytes]:
        command = self._link.open_session(f"exec sh -c {shlex.quote(script)}")
        try:
            session = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=0,
            )
        except OSError as error:
            raise self._error(
                f"{command[0]} does not start: {error.strerror}"
            ) from error
        assert session.stdin is not None
        self._pipe = session.stdin
        return session

    def _wait_until_ready(self, wait_seconds: float) -> None:
        """Read the output of the session until it has the lock."""
        timer = self._start_timer(_CONNECT_SECONDS)
        assert self._session.stdout is not None
        try:
            for line in self._session.stdout:
                word, _, rest = line.decode(errors="replace").strip().partition(" ")
                if word == "waits":
                    timer.cancel()
                    timer = self._start_timer(_CONNECT_SECONDS + wait_seconds)
                    print(f"{self.name}: is in use by {rest}; waiting", flush=True)
                elif word == "held":
                    raise self._error(
                        f"another build is measuring on it: {rest}; waited {wait_seconds:g} s "
                        "(native_board_wait)"
                    )
                elif word == "lacks":
                    raise self._error(
                        f"it has no `{rest}`; install coreutils and util-linux there"
                    )
                elif word == "ready":
                    self.machine, _, self._folder = rest.partition(" ")
                    return
        finally:
            timer.cancel()
        raise self._error(self._describe_session())

    def _start_timer(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self._session.kill)
        timer.daemon = True
        timer.start()
        return timer

    def _describe_session(self) -> str:
        """Return why the session ended before it was ready."""
        status = self._session.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        if status < 0:
            return f"no answer within {_CONNECT_SECONDS:g} s"
        last = lines[-1] if lines else f"its shell ended (exit status {status})"
        return self._link.explain(status, lines) or last

    def _send_heartbeats(self) -> None:
        while not self._is_closed.wait(_HEARTBEAT_SECONDS):
            try:
                self._pipe.write(b".")
            except (OSError, ValueError):
                return

    def _keep(
        self, entry: str, files: Mapping[str, Path], digests: Mapping[str, str]
    ) -> None:
        """Bring a cache entry up to date; `files` and `digests` are keyed by path on the board."""
        script = f"touch -c {entry}; sha256sum {' '.join(files)} 2>/dev/null; :"
        sizes = {path: file.stat().st_size for path, file in files.items()}
        seconds = _COMMAND_SECONDS + sum(sizes.values()) / _LEAST_RATE
        lines = self._run(script, seconds).splitlines()
        present = {line.partition("  ")[2]: line.partition("  ")[0] for line in lines}
        missing = [path for path in files if present.get(path) != digests[path]]
        if missing:
            self._make_room(entry, sum(sizes[path] for path in missing))
        for path in missing:
            self._send(path, files[path], sizes[path])
        self._entries.add(entry)

    def _make_room(self, entry: str, size: int) -> None:
        """Remove the least recently used entries until a new entry fits into the cache."""
        listing = self._run(
            "ls -1t | while read name; do du -sk $name; done", _COMMAND_SECONDS
        )
        evictions = choose_evictions(
            listing, {*self._entries, entry}, size, self._cache_size
        )
        if evictions is None:
            room = human_size(self._cache_size)
            raise self._error(
                f"its cache of {room} has no room for another {human_size(size)} "
                "(native_board_cache)"
            )
        if evictions:
            self._run(f"rm -rf {' '.join(evictions)}", _COMMAND_SECONDS)

    def _send(self, path: str, file: Path, size: int) -> None:
        part = f"{path.replace('/', '-')}.part"
        # The size is compared, since a lost connection looks like the end of the file.
        script = (
            f"mkdir -p $(dirname {path}); cat > {part} && [ $(wc -c < {part}) = {size} ] && "
            f"chmod 700 {part} && mv -f {part} {path} || {{ rm -f {part}; exit 74; }}"
        )
        self._run(script, _COMMAND_SECONDS + size / _LEAST_RATE, file)

    def _run(self, script: str, seconds: float, source: Path | None = None) -> str:
        """Return the output of a command. If it fails, end the batch and raise DeviceError."""
        answer = self._try(script, seconds, source)
        if not answer.returncode:
            self._check()  # adb exits with 0 even if it lost the device
            return answer.stdout
        lines = answer.stderr.strip().splitlines()
        reason = self.explain(answer.returncode, lines)
        if not reason:
            last = lines[-1].rpartition(": ")[2] if lines else ""
            last = last or f"exit status {answer.returncode}"
            reason = f"{self._folder} there can't be written: {last}"
        self.problem = reason
        raise self._error(reason)

    def _try(
        self, script: str, seconds: float, source: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the cache folder, with the file `source` as its input.

        Raises DeviceError if the command doesn't start or doesn't end in time.
        """
        self._check()
        command = self._link.run(self._in_folder(script))
        try:
            with open(source or os.devnull, "rb") as content:
                return subprocess.run(
                    command,
                    stdin=content,
                    capture_output=True,
                    encoding="utf-8",
                    errors="replace",
                    check=False,
                    timeout=seconds,
                )
        except subprocess.TimeoutExpired:
            self.problem = f"no answer within {seconds:.0f} s"
        except OSError as error:
            self.problem = f"{command[0]} or {source}: {error.strerror}"
        raise self._error(self.problem)

    def _in_folder(self, script: str) -> str:
        words = f"umask 077; cd {shlex.quote(self._folder)} || exit 73; {script}"
        return f"exec sh -c {shlex.quote(words)}"

    def _check(self) -> None:
        """Raise DeviceError if the board can't be used any more."""
        if self._session.poll() is not None:
            self.problem = self.problem or _LOST
        if self.problem:
            raise self._error(self.problem)

    def _error(self, reason: str) -> DeviceError:
        return DeviceError(f"{self.name}: ", reason)


def find_signal(status: int) -> int:
    """Return a process's status from a shell's exit status: negative if a signal ended it."""
    return _KILLED - status if _KILLED < status < 2 * _KILLED - 1 else status


def _make_link(address: BoardAddress, folder: Path) -> Link:
    if address.scheme == SSH:
        return SshLink(address, folder)
    return AdbLink(address)


def _describe_holder() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        user = str(os.getuid())
    holder = f"{user}@{socket.gethostname()} (process {os.getpid()})"
    return re.sub(r"[^\w@.() -]", "_", holder)


def _describe_start(lines: Sequence[str], program: Path, machine: str) -> str:
    """Return why the runner doesn't start."""
    last = lines[-1]
    # A 64-bit kernel may run 32-bit programs, and a shell reads a file that it can't run as a
    # script.
    if re.search(
        r"Exec format|[Ss]yntax error|cannot execute|not found|not executable", last
    ):
        return (
            f"its programs are for a different processor than {program.name} ({last.strip()}); "
            f"its kernel says {machine}"
        )
    return f"the runner does not start: {last.strip()}"


def _hash(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
