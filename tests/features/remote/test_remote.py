import base64
import errno
import io
import json
import multiprocessing
import os
import pickle
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from fsspec.implementations.local import LocalFileOpener, LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry as loaded_filesystems
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.features.remote import remote
from pipeline.features.remote.remote import Remote, RemoteSettings
from pipeline.store import digest
from pipeline.store.digest import canonical_json
from pipeline.store.errors import PipelineError
from pipeline.store.remote_tier import RemoteCounts
from pipeline.store.store import Store
from tests.support.sites import Site, s3_options

MIB = 1 << 20
KEY = {"kind": "compile", "method": "encode"}
ACTION = digest.hash_json(KEY)
RECORD = {"key": KEY, "result": {"object": [1, 2.5, "ü", None]}, "check": "x"}
CONTENT = b"some content of a blob"
BLOB = digest.hash_bytes(CONTENT)
RESULT_NAME = f"actions/{ACTION[:2]}/{ACTION[2:]}.json"
BLOB_NAME = f"blobs/{BLOB[:2]}/{BLOB[2:]}"


@pytest.fixture
def blob_file(tmp_path):
    path = tmp_path / "blob"
    path.write_bytes(CONTENT)
    return path


def fetched(remote: Remote, blob: str = BLOB) -> bytes | None:
    file = io.BytesIO()
    return file.getvalue() if remote.fetch_blob(blob, file) else None


def counted(remote: Remote) -> dict[str, int]:
    """Return the nonzero counts, without bytes."""
    counts = vars(remote.counts).items()
    return {name: count for name, count in counts if count and not name.startswith("bytes")}


# Pushed results can be fetched


def test_round_trip(site, blob_file):
    writer = site.remote()
    writer.push_blob(BLOB, blob_file)
    writer.push_result(ACTION, RECORD)
    assert counted(writer) == {"pushed": 2}
    assert site.names() == {BLOB_NAME, RESULT_NAME}
    assert site.read(BLOB_NAME) == CONTENT

    reader = site.remote()
    assert fetched(reader) == CONTENT
    assert reader.fetch_result(ACTION) == RECORD
    assert counted(reader) == {"hits": 2}
    assert reader.counts.bytes_fetched == writer.counts.bytes_pushed
    assert reader.problem == writer.problem == ""


@pytest.mark.parametrize("size", [0, 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 9 * MIB, 16 * MIB])
def test_blobs_of_any_size(site, tmp_path, size):
    content = bytes(range(251)) * (size // 251 + 1)
    path = tmp_path / "large"
    path.write_bytes(content[:size])
    blob = digest.hash_file(path)
    site.remote().push_blob(blob, path)
    assert fetched(site.remote(), blob) == content[:size]


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_any_record_and_any_bytes(tmp_path, scheme):
    numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    values = st.recursive(
        st.none() | st.booleans() | numbers | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )

    @settings(max_examples=40)
    @given(record=st.dictionaries(st.text(), values), content=st.binary())
    def check(record, content):
        path = tmp_path / "content"
        path.write_bytes(content)
        root = tmp_path / secrets.token_hex(8)
        site = Site(root.as_uri() if scheme == "file" else f"memory:/{root}")
        action, blob = digest.hash_json([record]), digest.hash_bytes(content)
        site.remote().push_result(action, record)
        site.remote().push_blob(blob, path)
        assert site.remote().fetch_result(action) == record
        assert fetched(site.remote(), blob) == content

    check()


def test_absent_is_asked_for_once(site, blob_file):
    reader = site.remote()
    for _ in range(2):
        assert fetched(reader) is None
        assert reader.fetch_result(ACTION) is None
    assert counted(reader) == {"misses": 2}
    site.remote().push_blob(BLOB, blob_file)
    assert fetched(reader) is None
    reader.push_blob(BLOB, blob_file)
    assert fetched(reader) == CONTENT
    assert counted(reader) == {"misses": 2, "hits": 1}


def test_whether_a_blob_is_there(site, blob_file, monkeypatch):
    reader = site.remote()
    assert not reader.has_blob(BLOB)
    site.remote().push_blob(BLOB, blob_file)
    assert not reader.has_blob(BLOB)  # queried a moment ago
    monkeypatch.setattr(remote, "REMEMBERED", 0.0)
    assert reader.has_blob(BLOB)
    assert counted(reader) == {"misses": 1}
    assert reader.counts.bytes_fetched == 0


def test_blob_that_is_there_is_not_pushed_again(site, blob_file):
    site.remote().push_blob(BLOB, blob_file)
    again = site.remote()
    again.push_blob(BLOB, blob_file)
    again.push_blob(BLOB, blob_file)
    assert counted(again) == {}
    assert again.counts.bytes_pushed == 0


def test_result_takes_the_place_of_another(site):
    site.remote().push_result(ACTION, {"old": 1})
    site.remote().push_result(ACTION, RECORD)
    assert site.remote().fetch_result(ACTION) == RECORD


def test_read_only_is_not_written(site, blob_file):
    reader = site.remote(writable=False)
    reader.push_blob(BLOB, blob_file)
    reader.push_result(ACTION, RECORD)
    assert site.names() == set()
    assert counted(reader) == {}


@pytest.mark.parametrize("size", [len(CONTENT), 17 * MIB])
def test_file_with_another_content_is_not_pushed(site, tmp_path, size):
    path = tmp_path / "wrong"
    path.write_bytes(bytes(size))
    pusher = site.remote()
    pusher.push_blob(BLOB, path)
    pusher.push_blob(BLOB, tmp_path / "gone")
    assert site.names() == set()
    assert counted(pusher) == {}


def test_threads(site, tmp_path):
    shared = site.remote()
    contents = [b"content %d" % number for number in range(6)]
    failures = []

    def work(content):
        path = tmp_path / digest.hash_bytes(content)
        path.write_bytes(content)
        shared.push_blob(path.name, path)
        shared.push_result(path.name, {"content": content.decode()})
        if fetched(shared, path.name) != content or not shared.fetch_result(path.name):
            failures.append(content)

    threads = [threading.Thread(target=work, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert counted(shared) == {"pushed": 12, "hits": 12}


# Lies


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "bit flipped": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "truncated": lambda data: data[:-1],
    "empty": lambda data: b"",
    "longer": lambda data: data + b"!",
    "much longer": lambda data: data + bytes(4 * MIB),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_lying_blob_is_refused_and_replaced(site, blob_file, damage):
    site.write(BLOB_NAME, damage(CONTENT))
    reader = site.remote()
    assert fetched(reader) is None
    assert fetched(reader) is None
    assert counted(reader) == {"corrupt": 1}
    reader.push_blob(BLOB, blob_file)
    assert fetched(site.remote()) == CONTENT


GARBAGE = {
    "empty": b"",
    "empty object": b"{}",
    "no JSON": b"{",
    "no UTF-8": b'{"record": "\xff"}',
    "list": b"[]",
    "text": b'"record"',
    "no record": b'{"record": null, "signature": null, "signer": null}',
    "NaN": b'{"record": {"a": NaN}, "signature": null, "signer": null}',
    "infinite": b'{"record": {"a": 1e999}, "signature": null, "signer": null}',
    "long number": b'{"record": {"a": %s}}' % (b"1" * 5000),
    "deep": b"[" * 200_000,
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("keys", ["keys", "no keys"])
def test_garbage_is_no_result(folder, tmp_path, content, keys):
    folder.write(RESULT_NAME, content)
    trusted = {"trusted_keys": (key_pair(tmp_path, "ci").public,)} if keys == "keys" else {}
    reader = folder.remote(**trusted)
    assert reader.fetch_result(ACTION) is None
    assert counted(reader) == {"corrupt": 1}


@pytest.mark.parametrize("content", [b"", b"<Error/>"])
def test_garbage_on_s3_is_no_result(s3, content):
    s3.write(RESULT_NAME, content)
    reader = s3.remote()
    assert reader.fetch_result(ACTION) is None
    assert counted(reader) == {"corrupt": 1}
    reader.push_result(ACTION, RECORD)
    assert s3.remote().fetch_result(ACTION) == RECORD


def test_huge_record_is_not_read(folder, tmp_path):
    folder.write(RESULT_NAME, b"")
    with open(tmp_path / "remote" / RESULT_NAME, "r+b") as file:
        file.truncate(remote.RESULT_LIMIT + 1)
    reader = folder.remote()
    assert reader.fetch_result(ACTION) is None
    assert counted(reader) == {"corrupt": 1}
    assert reader.counts.bytes_fetched <= 8 * MIB


def test_huge_record_is_not_pushed(folder, monkeypatch):
    monkeypatch.setattr(remote, "RESULT_LIMIT", 1000)
    folder.remote().push_result(ACTION, {"text": "x" * 1000})
    assert folder.names() == set()


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no /dev/zero")
def test_endless_file_is_refused(folder, tmp_path):
    for name in (BLOB_NAME, RESULT_NAME):
        folder.write(name, b"")
        (tmp_path / "remote" / name).unlink()
        (tmp_path / "remote" / name).symlink_to("/dev/zero")
    reader = folder.remote()
    assert fetched(reader) is None
    assert reader.fetch_result(ACTION) is None
    assert counted(reader) == {"corrupt": 2}


class EndlessFileSystem(MemoryFileSystem):
    protocol = "endless"
    size: Any = 1 << 50

    def info(self, path, **options):
        return {"name": path, "size": self.size, "type": "file"}

    def cat_file(self, path, start=None, end=None, **options):
        return bytes(end - start)


@pytest.mark.parametrize(
    ("size", "count"),
    [(1 << 50, "corrupt"), (1, "corrupt"), (-1, "corrupt"), (None, "errors"), ("x", "errors")],
)
def test_endless_content_of_any_announced_size_is_refused(monkeypatch, size, count):
    fsspec.register_implementation("endless", EndlessFileSystem, clobber=True)
    monkeypatch.setattr(EndlessFileSystem, "size", size)
    reader = Remote(RemoteSettings("endless://cache"))
    assert fetched(reader) is None
    assert reader.fetch_result(ACTION) is None
    assert counted(reader) == {count: 2}
    assert reader.counts.bytes_fetched <= 16 * MIB


class FullDisk(io.BytesIO):
    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_errors_of_the_own_disk_are_raised(site, blob_file):
    site.remote().push_blob(BLOB, blob_file)
    reader = site.remote()
    with pytest.raises(OSError, match="No space"):
        reader.fetch_blob(BLOB, FullDisk())
    assert "errors" not in counted(reader)


# Signatures


@dataclass(frozen=True)
class KeyPair:
    private: Path
    public: Path


def key_pair(folder: Path, name: str) -> KeyPair:
    pair = KeyPair(folder / f"{name}.pem", folder / f"{name}.pub")
    key = ed25519.Ed25519PrivateKey.generate()
    pair.private.write_bytes(private_pem(key))
    pair.public.write_bytes(public_pem(key))
    return pair


def private_pem(key: Any, encryption: Any = None) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        encryption or serialization.NoEncryption(),
    )


def public_pem(key: Any) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


@pytest.fixture
def ci(tmp_path):
    return key_pair(tmp_path, "ci")


@pytest.fixture
def stranger(tmp_path):
    return key_pair(tmp_path, "stranger")


def test_results_of_trusted_signers_are_fetched(site, ci, stranger):
    site.remote(signing_key=ci.private).push_result(ACTION, RECORD)
    for believer in (
        {"trusted_keys": (ci.public,)},
        {"trusted_keys": (stranger.public, ci.public)},
        {"signing_key": ci.private},
        {},
    ):
        assert site.remote(**believer).fetch_result(ACTION) == RECORD


def test_results_of_others_are_ignored(site, ci, stranger):
    site.remote(signing_key=stranger.private).push_result(ACTION, RECORD)
    site.remote().push_result(digest.hash_json(1), RECORD)
    for doubter in ({"trusted_keys": (ci.public,)}, {"signing_key": ci.private}):
        reader = site.remote(**doubter)
        for action in (ACTION, digest.hash_json(1)):
            assert reader.fetch_result(action) is None
            assert reader.fetch_result(action) is None
        assert counted(reader) == {"unsigned": 2}
        assert reader.problem == ""


def _tampered(envelope, other):
    return {**envelope, "record": {**envelope["record"], "check": "y"}}


def _swapped(envelope, other):
    return {**envelope, "signature": other["signature"]}


def _under_a_trusted_name(envelope, other):
    return {**other, "signer": envelope["signer"]}


TAMPERING: dict[str, Callable[[Any, Any], Any]] = {
    "record": _tampered,
    "signature of another record": _swapped,
    "name of a trusted signer": _under_a_trusted_name,
    "no signature": lambda envelope, other: {**envelope, "signature": None},
    "no signer": lambda envelope, other: {**envelope, "signer": None},
    "signer of another type": lambda envelope, other: {**envelope, "signer": [1]},
    "signature of another type": lambda envelope, other: {**envelope, "signature": {"a": 1}},
    "no base64": lambda envelope, other: {**envelope, "signature": "ü"},
    "short": lambda envelope, other: {**envelope, "signature": "AAAA"},
    "record only": lambda envelope, other: {"record": envelope["record"]},
}


@pytest.mark.parametrize("tamper", TAMPERING.values(), ids=TAMPERING)
def test_tampering_is_noticed(folder, ci, stranger, tamper):
    folder.remote(signing_key=ci.private).push_result(ACTION, RECORD)
    envelope = json.loads(folder.read(RESULT_NAME))
    signer = stranger if tamper is _under_a_trusted_name else ci
    folder.remote(signing_key=signer.private).push_result(ACTION, {"another": "record"})
    other = json.loads(folder.read(RESULT_NAME))

    folder.write(RESULT_NAME, canonical_json(envelope))
    assert folder.remote(trusted_keys=(ci.public,)).fetch_result(ACTION) == RECORD
    folder.write(RESULT_NAME, canonical_json(tamper(envelope, other)))
    reader = folder.remote(trusted_keys=(ci.public,))
    assert reader.fetch_result(ACTION) is None
    assert counted(reader) == {"unsigned": 1}


def test_signature_can_be_checked_by_others(folder, ci):
    folder.remote(signing_key=ci.private).push_result(ACTION, RECORD)
    envelope = json.loads(folder.read(RESULT_NAME))
    key = serialization.load_pem_public_key(ci.public.read_bytes())
    assert envelope["signer"] == digest.hash_bytes(key.public_bytes_raw())
    message = b"pte-pipeline result\n" + canonical_json(envelope["record"])
    key.verify(base64.b64decode(envelope["signature"]), message)


def test_who_cannot_sign_does_not_replace_signed_results(folder, ci, blob_file):
    reader = folder.remote(trusted_keys=(ci.public,))
    reader.push_result(ACTION, RECORD)
    reader.push_blob(BLOB, blob_file)
    assert folder.names() == set()


# Remotes that are down, slow or stuck


@contextmanager
def server(answer: Callable[[socket.socket], None]):
    """Run a server that treats every connection with `answer`; yield its URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=treat, args=(connection,), daemon=True).start()

    def treat(connection):
        with connection, suppress(OSError):  # the client has left
            answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    with closing(listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def black_hole(connection):
    while connection.recv(1 << 16):
        pass


def drip(connection):
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1000000\r\n\r\n")
    for _ in range(2000):
        connection.sendall(b"x")
        time.sleep(0.05)


def nonsense(connection):
    connection.recv(1 << 16)
    connection.sendall(b"220 mail.example.com ESMTP\r\n\r\n")


def failing(connection):
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize("answer", [black_hole, drip, nonsense, failing])
def test_server_that_does_not_serve_is_given_up(answer, blob_file):
    with server(answer) as endpoint:
        user = Site("s3://bucket", s3_options(endpoint)).remote(timeout=0.4)
        started = time.monotonic()
        assert fetched(user) is None
        assert user.fetch_result(ACTION) is None
        assert "s3://bucket: " in user.problem and "given up" not in user.problem
        user.push_blob(BLOB, blob_file)
        assert "s3://bucket: given up after 3 errors in a row: " in user.problem
        assert "\n" not in user.problem
        assert time.monotonic() - started < 60  # the drip lasts 100 s

        assert fetched(user) is None
        assert user.fetch_result(ACTION) is None
        user.push_result(ACTION, RECORD)
        assert counted(user) == {"errors": 3}


def test_server_that_is_down_is_given_up(blob_file):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    user = Site("s3://bucket", s3_options(f"http://127.0.0.1:{port}")).remote()
    started = time.monotonic()
    user.push_result(ACTION, RECORD)
    user.push_blob(BLOB, blob_file)
    assert user.fetch_result(ACTION) is None
    assert time.monotonic() - started < 60
    assert "Could not connect" in user.problem
    assert counted(user) == {"errors": 3}


def test_black_hole_does_not_keep_a_process(tmp_path):
    script = """
import io, sys, time
from pipeline.store.digest import hash_bytes
from pipeline.features.remote.remote import Remote, RemoteSettings

options = {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": sys.argv[1]}}
remote = Remote(RemoteSettings("s3://bucket", options=options, timeout=0.4))
for number in range(5):
    assert not remote.fetch_blob(hash_bytes(b"%d" % number), io.BytesIO())
print(remote.counts.errors, remote.problem)
"""
    with server(black_hole) as endpoint:
        done = subprocess.run(
            [sys.executable, "-c", script, endpoint], capture_output=True, text=True, timeout=100
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 s3://bucket: given up after 3 errors in a row")
    assert "no answer within 0.4 s" in done.stdout


class StuckFileSystem(MemoryFileSystem):
    """A synchronous file system, so that only its thread can be abandoned."""

    protocol = "stuck"
    stuck_in = ""
    may_go_on = threading.Event()
    gone_on: ClassVar[list[str]] = []

    def _stick(self, method):
        if method == self.stuck_in:
            gone_on = self.gone_on  # this test's, whichever test runs by then
            self.may_go_on.wait(30)
            gone_on.append(method)

    def info(self, path, **options):
        self._stick("info")
        return super().info(path, **options)

    def open(self, *args, **options):
        self._stick("open")
        return super().open(*args, **options)

    def mv(self, *args, **options):
        self._stick("mv")
        return super().mv(*args, **options)

    def __init__(self, *args, **options):
        self._stick("__init__")
        super().__init__(*args, **options)


@pytest.mark.parametrize("method", ["__init__", "info", "open", "mv"])
def test_every_step_has_a_limit(monkeypatch, blob_file, method):
    fsspec.register_implementation("stuck", StuckFileSystem, clobber=True)
    monkeypatch.setattr(StuckFileSystem, "stuck_in", method)
    monkeypatch.setattr(StuckFileSystem, "may_go_on", threading.Event())
    monkeypatch.setattr(StuckFileSystem, "gone_on", [])
    user = Remote(RemoteSettings(f"stuck://{secrets.token_hex(4)}", timeout=0.1))
    user.push_blob(BLOB, blob_file)
    assert counted(user) == {"errors": 1}
    monkeypatch.setattr(StuckFileSystem, "stuck_in", "")
    assert fetched(Remote(user.settings)) is None
    assert not StuckFileSystem.gone_on
    StuckFileSystem.may_go_on.set()


class CancelledFileSystem(MemoryFileSystem):
    protocol = "cancelled"
    error: BaseException

    def cat_file(self, *args, **options):
        raise self.error


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), MemoryError(), KeyError()])
def test_nothing_that_a_filesystem_raises_gets_out(error):
    fsspec.register_implementation("cancelled", CancelledFileSystem, clobber=True)
    CancelledFileSystem.error = error
    reader = Remote(RemoteSettings("cancelled://cache"))
    for number in range(4):
        assert fetched(reader, digest.hash_bytes(b"%d" % number)) is None
    assert counted(reader) == {"errors": 3}
    assert type(error).__name__ in reader.problem


def test_an_answer_ends_a_row_of_errors():
    fsspec.register_implementation("cancelled", CancelledFileSystem, clobber=True)
    reader = Remote(RemoteSettings("cancelled://cache"))
    for number in range(9):
        broken = number % 3 < 2
        CancelledFileSystem.error = OSError() if broken else FileNotFoundError()
        assert fetched(reader, digest.hash_bytes(b"%d" % number)) is None
    assert counted(reader) == {"errors": 6, "misses": 3}
    assert reader.problem == "cancelled://cache: OSError:"  # the first error, without giving up


@pytest.mark.parametrize("broken", [(LocalFileOpener, "write"), (LocalFileSystem, "mv")])
def test_push_that_fails_leaves_no_file(folder, monkeypatch, blob_file, broken):
    def fail(*args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(*broken, fail)
    pusher = folder.remote()
    pusher.push_blob(BLOB, blob_file)
    assert counted(pusher) == {"errors": 1}
    assert folder.names() == set()


class ReadableFileSystem(MemoryFileSystem):
    protocol = "readable"
    denied = False

    def open(self, path, mode="rb", **options):
        if self.denied and mode != "rb":
            raise PermissionError(errno.EACCES, "Permission denied")
        return super().open(path, mode, **options)


def test_denied_pushes_do_not_end_fetches(monkeypatch, blob_file):
    fsspec.register_implementation("readable", ReadableFileSystem, clobber=True)
    site = Site("readable://cache")
    site.remote().push_blob(BLOB, blob_file)
    monkeypatch.setattr(ReadableFileSystem, "denied", True)
    user = site.remote()
    for number in range(5):
        user.push_result(digest.hash_json(number), RECORD)
    assert counted(user) == {"errors": 1}
    assert user.problem == (
        "readable://cache: cannot be written: PermissionError: [Errno 13] Permission denied"
    )
    assert fetched(user) == CONTENT


# Processes


def test_a_pickled_store_has_the_same_remote(site, ci, tmp_path):
    settings = site.settings(signing_key=ci.private, timeout=9.0)
    copy = pickle.loads(pickle.dumps(Store(tmp_path / "store", settings)))
    assert copy.remote.settings == settings


def test_fork_after_use(site, blob_file, tmp_path):
    store = Store(tmp_path / "store", site.settings())
    user = store.remote
    user.push_blob(BLOB, blob_file)

    def child():
        user = store.remote
        assert counted(user) == {}
        assert fetched(user) == CONTENT
        user.push_result(ACTION, RECORD)
        assert counted(user) == {"hits": 1, "pushed": 1}

    with user._lock, user._files._connecting:  # as if another thread held them
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
    process.join(30)
    assert process.exitcode == 0
    assert user.fetch_result(ACTION) == RECORD
    assert counted(user) == {"hits": 1, "pushed": 1}


def test_counts_are_summed():
    counts = [
        RemoteCounts(hits=1, bytes_fetched=5),
        pickle.loads(pickle.dumps(RemoteCounts(hits=2, errors=1))),
    ]
    assert sum(counts, RemoteCounts()) == RemoteCounts(hits=3, errors=1, bytes_fetched=5)


def test_nothing_is_imported_before_the_first_use():
    script = """
import sys
from pipeline.features.remote.remote import Remote, RemoteSettings
Remote(RemoteSettings("s3://bucket", signing_key="key.pem"))
assert not {"fsspec", "s3fs", "cryptography", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


# Settings


def test_settings_hide_their_secrets_and_hash():
    settings = RemoteSettings("s3://bucket", options={"secret": "hunter2"})
    assert "hunter2" not in repr(settings)
    assert len({settings, RemoteSettings("s3://bucket", options={"secret": "hunter2"})}) == 1


def test_good_settings_pass(site, ci):
    site.remote(signing_key=ci.private, trusted_keys=(ci.public,)).check()


def refused(settings: RemoteSettings) -> str:
    """Return the message of `check`; using such a remote only gives the same message."""
    with pytest.raises(PipelineError) as caught:
        Remote(settings).check()
    user = Remote(settings)
    assert fetched(user) is None
    assert user.fetch_result(ACTION) is None
    user.push_result(ACTION, RECORD)
    assert user.problem == str(caught.value)
    assert "\n" not in user.problem
    assert counted(user) == {}
    return user.problem


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("/srv/cache", "is not a URL such as file:///srv/cache or s3://bucket/prefix"),
        ("", "is not a URL"),
        ("se://bucket", "remote se://bucket: se:// is not a known scheme, such as file://, s3://"),
        ("s4://user:password@host/x", "remote s4://host/x: s4:// is not a known scheme"),
    ],
)
def test_bad_url(url, what):
    assert what in refused(RemoteSettings(url))


def test_missing_packages(monkeypatch, ci):
    monkeypatch.delitem(loaded_filesystems, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    assert refused(RemoteSettings("s3://bucket")) == (
        "remote s3://bucket: s3:// needs s3fs: pip install 'pte-pipeline[remote]'"
    )
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    assert "need cryptography: pip install 'pte-pipeline[remote]'" in refused(
        RemoteSettings("memory://x", trusted_keys=(ci.public,))
    )


def test_bad_keys(tmp_path, ci):
    wrong = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    files = {
        "rsa.pem": private_pem(wrong),
        "rsa.pub": public_pem(wrong),
        "locked.pem": private_pem(
            ed25519.Ed25519PrivateKey.generate(), serialization.BestAvailableEncryption(b"x")
        ),
        "garbage": b"\xff\x00",
        "empty": b"",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    genpkey = "openssl genpkey -algorithm ed25519 -out key.pem"
    pubout = "openssl pkey -in key.pem -pubout -out key.pub"
    for name in ("rsa.pem", "locked.pem", "garbage", "empty", "ci.pub"):
        problem = refused(RemoteSettings("memory://x", signing_key=tmp_path / name))
        assert problem.startswith(f"{tmp_path / name}: is not an Ed25519 private key")
        assert problem.endswith(genpkey)
    for name in ("rsa.pub", "garbage", "empty", "ci.pem"):
        problem = refused(RemoteSettings("memory://x", trusted_keys=(ci.public, tmp_path / name)))
        assert problem.startswith(f"{tmp_path / name}: is not an Ed25519 public key")
        assert problem.endswith(pubout)
    for name in ("missing", ""):
        problem = refused(RemoteSettings("memory://x", signing_key=tmp_path / name))
        assert problem.startswith(f"{tmp_path / name}: cannot be read (")
        assert problem.endswith(genpkey)


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl")
def test_keys_are_made_as_the_messages_say(folder, tmp_path):
    for command in (
        "openssl genpkey -algorithm ed25519 -out key.pem",
        "openssl pkey -in key.pem -pubout -out key.pub",
    ):
        subprocess.run(command.split(), cwd=tmp_path, check=True, timeout=30)
    folder.remote(signing_key=tmp_path / "key.pem").push_result(ACTION, RECORD)
    assert folder.remote(trusted_keys=(tmp_path / "key.pub",)).fetch_result(ACTION) == RECORD


def test_half_written_files_of_killed_processes_go(folder, tmp_path):
    remote = folder.remote()
    remote.push_result(ACTION, RECORD)
    for name, age in (("dead", 2 * 86_400), ("alive", 60)):
        path = tmp_path / "remote" / "tmp" / f".tmp-1-{name}"
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    assert remote.sweep() == 1
    assert [path.name for path in (tmp_path / "remote" / "tmp").iterdir()] == [".tmp-1-alive"]
    assert folder.remote(writable=False).sweep() == 0


def test_sweeping_s3_or_nothing_does_nothing(s3, folder):
    assert s3.remote().sweep() == folder.remote().sweep() == 0
