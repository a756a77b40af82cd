"""A model hub on loopback that serves a folder's files to huggingface_hub."""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

NAME, COMMIT = "team/tiny", "c0ffee" + "0" * 34
LARGE = (".safetensors", ".bin")  # files that a hub identifies by SHA-256


class Hub:
    """The files of one model, as bytes keyed by name, and the requests received.

    Attributes:
        status: answered to all requests in place of content, with the hub's error code `code`.
        cut: names of files of which only half is sent.
        forged: names of files whose content doesn't match their digest.
    """

    def __init__(self, files):
        self.files = files
        self.asked = []
        self.status, self.code = 200, ""
        self.cut, self.forged = set(), set()
        self.commit = COMMIT

    def digest(self, name):
        content = self.files[name]
        if name.endswith(LARGE):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def entry(self, name):
        digest = self.digest(name)
        entry = {"type": "file", "path": name, "size": len(self.files[name]), "oid": digest}
        if name.endswith(LARGE):
            entry["oid"] = "0" * 40
            entry["lfs"] = {"oid": digest, "size": entry["size"], "pointerSize": 130}
        return entry


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        hub = self.server.hub
        path = unquote(urlsplit(self.path).path)
        hub.asked.append(f"{self.command} {path}")
        if hub.status != 200:
            return self._send(b"", status=hub.status, **{"X-Error-Code": hub.code})
        if path.startswith(f"/api/models/{NAME}/tree/{COMMIT}"):
            return self._send(json.dumps([hub.entry(name) for name in hub.files]).encode())
        if path == f"/api/models/{NAME}/revision/main":
            return self._send(json.dumps({"id": NAME, "sha": COMMIT, "siblings": []}).encode())
        if path.startswith(f"/{NAME}/resolve/{COMMIT}/"):
            return self._send_file(path.rpartition("/")[2])
        missing = "RevisionNotFound" if path.startswith(f"/api/models/{NAME}/") else "RepoNotFound"
        return self._send(b"", status=404, **{"X-Error-Code": missing})

    do_HEAD = do_GET  # noqa: N815

    def _send_file(self, name):
        hub = self.server.hub
        content = hub.files[name]
        headers = {"ETag": f'"{hub.digest(name)}"', "X-Repo-Commit": hub.commit}
        if name in hub.forged:
            content = content[::-1]
        if name in hub.cut and self.command == "GET":
            length = len(content)
            content, self.close_connection = content[: length // 2], True
            return self._send(content, length, **headers)
        return self._send(content, **headers)

    def _send(self, content, length=None, status=200, **headers):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content) if length is None else length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextmanager
def serving(files):
    """Serve the files of one model; yield the hub and its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.hub = Hub(files)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.hub, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
