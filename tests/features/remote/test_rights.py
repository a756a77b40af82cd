"""A restricted remote: what looks absent without permission to list, or without any permission."""

import http.client
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from pipeline.features.remote.remote import MAX_DENIED
from pipeline.store.digest import hash_bytes
from tests.support.sites import Site, s3_options

CONTENT = b"content of a blob"
BLOB = hash_bytes(CONTENT)
DENIED = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n'
    b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
)


class Policy(BaseHTTPRequestHandler):
    """Forwards requests to an S3 server, like a bucket whose policy doesn't grant s3:ListBucket."""

    endpoint = ""
    may_read = True
    protocol_version = "HTTP/1.1"

    def _pass_on(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.endpoint)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=20)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        content, status = answer.read(), answer.status
        connection.close()
        reads = self.command in ("GET", "HEAD")
        lists = reads and "/" not in urlsplit(self.path).path.strip("/")
        if lists or (reads and (status == 404 or not self.may_read)):
            status, content = 403, DENIED
        self.send_response(status)
        for name, value in answer.headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = answer.headers["Content-Length"] if self.command == "HEAD" else len(content)
        self.send_header("Content-Length", str(length or 0))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815

    def log_message(self, *_):
        pass


@contextmanager
def forbidding(s3, endpoint, may_read=True):
    policy = type("OfThisTest", (Policy,), {"endpoint": endpoint, "may_read": may_read})
    server = ThreadingHTTPServer(("127.0.0.1", 0), policy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Site(s3.url, s3_options(f"http://127.0.0.1:{server.server_port}"))
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def blob_file(tmp_path):
    path = tmp_path / "blob"
    path.write_bytes(CONTENT)
    return path


def ask_for_absent(remote, number):
    return [remote.has_blob(hash_bytes(b"%d" % n)) for n in range(number)]


def test_what_is_forbidden_is_absent_where_other_files_can_be_read(s3, endpoint, blob_file):
    with forbidding(s3, endpoint) as site:
        writer = site.remote()
        assert not any(ask_for_absent(writer, 5))
        assert (writer.counts.misses, writer.counts.errors) == (5, 0)
        assert writer.problem.endswith(
            ": answers 'forbidden' for missing files, which counts as missing; s3:ListBucket is "
            "not granted"
        )
        writer.push_blob(BLOB, blob_file)
        assert writer.counts.pushed == 1
        assert s3.read(f"blobs/{BLOB[:2]}/{BLOB[2:]}") == CONTENT

        reader = site.remote(writable=False)
        assert not any(ask_for_absent(reader, MAX_DENIED + 5))
        assert reader.has_blob(BLOB)
        assert "given up" not in reader.problem


def test_a_reader_finds_what_is_there_before_anything_shows_that_it_can(s3, endpoint, blob_file):
    """The writer of the remote had all permissions, and left no probe file."""
    s3.remote().push_blob(BLOB, blob_file)
    with forbidding(s3, endpoint) as site:
        reader = site.remote(writable=False)
        assert not any(ask_for_absent(reader, MAX_DENIED - 1))
        assert reader.has_blob(BLOB)
        assert not any(ask_for_absent(reader, MAX_DENIED + 5))
        assert (reader.counts.errors, reader.problem.count("given up")) == (0, 0)


def test_a_remote_that_forbids_everything_is_given_up(s3, endpoint, blob_file):
    s3.remote().push_blob(BLOB, blob_file)
    with forbidding(s3, endpoint, may_read=False) as site:
        reader = site.remote(writable=False)
        assert not any(ask_for_absent(reader, MAX_DENIED + 5))
        assert not reader.has_blob(BLOB)
        assert reader.counts.errors == 3
        assert "grant the permission to read, or s3:ListBucket" in reader.problem
