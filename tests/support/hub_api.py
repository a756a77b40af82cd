"""A stand-in for the part of Hugging Face's hub API that `HfFileSystem` calls.

It serves one repository of models: listings, downloads by range, and commits of small files and of
LFS objects. It knows no Xet, tokens, buckets or history, and accepts anything else that the real
hub would refuse.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from tests.support.sites import Site

REPOSITORY = "org/model"
_LARGE = 10_000_000  # bytes; the hub requires LFS for any file of this size or more
_LFS = (".pte", ".ptd")  # suffixes, as listed in a repository's .gitattributes


@dataclass
class _Files:
    by_path: dict[str, bytes] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # LFS objects, keyed by SHA-256
    commits: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Handler(BaseHTTPRequestHandler):
    files: ClassVar[_Files]
    protocol_version = "HTTP/1.1"

    def _route(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        for method, pattern, answer in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method == self.command:
                answer(self, body, *match.groups())
                return
        self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_GET = do_HEAD = do_POST = do_PUT = _route  # noqa: N815

    def _describe(self, body: bytes, *_: str) -> None:
        self._send_json({"id": REPOSITORY, "sha": f"{self.files.commits:040x}"})

    def _list(self, body: bytes, folder: str | None) -> None:
        prefix = f"{folder}/" if folder else ""
        below = {p: c for p, c in self.files.by_path.items() if p.startswith(prefix)}
        if prefix and not below:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            return
        recursive = "recursive=true" in self.path.lower()
        entries = {}
        for path, content in below.items():
            parts = path.removeprefix(prefix).split("/")
            for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
                name = prefix + "/".join(parts[:depth])
                entries[name] = {"type": "directory", "path": name, "oid": "0"}
            if recursive or len(parts) == 1:
                entries[path] = _describe_file(path, content)
        self._send_json([entries[path] for path in sorted(entries)])

    def _choose_modes(self, body: bytes) -> None:
        modes = []
        for file in json.loads(body)["files"]:
            is_lfs = file["size"] > _LARGE or file["path"].endswith(_LFS)
            mode = "lfs" if is_lfs else "regular"
            modes.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
        self._send_json({"files": modes})

    def _offer_uploads(self, body: bytes) -> None:
        objects = []
        for item in json.loads(body)["objects"]:
            href = f"http://{self.headers['Host']}/lfs/{item['oid']}"
            objects.append({**item, "actions": {"upload": {"href": href}}})
        self._send_json({"transfer": "basic", "objects": objects})

    def _take_object(self, body: bytes, oid: str) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            self._send(400, b"{}")
            return
        self.files.objects[oid] = body
        self._send(200, b"")

    def _commit(self, body: bytes) -> None:
        with self.files.lock:
            for line in body.splitlines():
                operation = json.loads(line)
                value = operation["value"]
                if operation["key"] == "file":
                    self.files.by_path[value["path"]] = base64.b64decode(value["content"])
                elif operation["key"] == "lfsFile":
                    self.files.by_path[value["path"]] = self.files.objects[value["oid"]]
                elif operation["key"] == "deletedFile":
                    del self.files.by_path[value["path"]]
            self.files.commits += 1
        oid = f"{self.files.commits:040x}"
        url = f"http://{self.headers['Host']}/{REPOSITORY}/commit/{oid}"
        self._send_json({"commitUrl": url, "commitOid": oid})

    def _download(self, body: bytes, path: str) -> None:
        content = self.files.by_path.get(path)
        if content is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        limits = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if limits is None:
            self._send(200, content)
            return
        start, end = int(limits[1]), int(limits[2] or len(content))
        if start >= len(content):
            self._send(416, b"")
        else:
            self._send(206, content[start : end + 1])

    def _send_json(self, document: Any) -> None:
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        pass


def _describe_file(path: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(content), "oid": "0"}


_API = f"/api/models/{REPOSITORY}"
_ROUTES = (
    ("GET", rf"{_API}(?:/revision/main)?", _Handler._describe),
    ("GET", rf"{_API}/tree/main(?:/(.+))?", _Handler._list),
    ("POST", rf"{_API}/preupload/main", _Handler._choose_modes),
    ("POST", rf"{_API}/commit/main", _Handler._commit),
    ("POST", rf"/{REPOSITORY}\.git/info/lfs/objects/batch", _Handler._offer_uploads),
    ("PUT", r"/lfs/(\w{64})", _Handler._take_object),
    ("GET", rf"/{REPOSITORY}/resolve/main/(.+)", _Handler._download),
    ("HEAD", rf"/{REPOSITORY}/resolve/main/(.+)", _Handler._download),
)


@contextmanager
def serve_hub() -> Iterator[Site]:
    """Serve a stand-in for the hub on loopback, with one empty repository."""
    handler = type("OfThisTest", (_Handler,), {"files": _Files()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        options = {"endpoint": endpoint, "token": False, "skip_instance_cache": True}
        yield Site(f"hf://{REPOSITORY}/team", options)
    finally:
        server.shutdown()
        server.server_close()
