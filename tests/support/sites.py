"""Locations of a remote cache: a folder, or a real server or emulator on loopback.

The servers speak S3, WebDAV and plain HTTP with PUT; the emulators stand in for Google's and
Azure's storage.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec

from pipeline.features.remote.remote import Remote, RemoteSettings


@dataclass
class Site:
    """The location of a remote, as another party with write access sees it.

    That party writes to `folder` if a server on loopback has one.
    """

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    folder: str = ""

    def settings(self, **more: Any) -> RemoteSettings:
        return RemoteSettings(self.url, options=self.options, **{"unsigned": True, **more})

    def remote(self, **more: Any) -> Remote:
        return Remote(self.settings(**more))

    def _locate(self, name: str) -> tuple[Any, str]:
        options = {"use_listings_cache": False, **self.options}
        if self.folder:
            options = {}
        filesystem, root = fsspec.url_to_fs(self.folder or self.url, **options)
        return filesystem, f"{root}/{name}"

    def read(self, name: str) -> bytes:
        filesystem, path = self._locate(name)
        return filesystem.cat_file(path)

    def write(self, name: str, content: bytes) -> None:
        filesystem, path = self._locate(name)
        filesystem.makedirs(filesystem._parent(path), exist_ok=True)
        filesystem.pipe_file(path, content)

    def remove(self, name: str) -> None:
        filesystem, path = self._locate(name)
        filesystem.rm_file(path)

    def names(self) -> set[str]:
        filesystem, root = self._locate("")
        return {path.removeprefix(root).lstrip("/") for path in filesystem.find(root)}


def read_body(handler: BaseHTTPRequestHandler) -> Iterator[bytes]:
    """Yield the pieces of a request's body, sent with a length or in chunks."""
    if handler.headers.get("Transfer-Encoding") != "chunked":
        yield handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        return
    while size := int(handler.rfile.readline(), 16):
        yield handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()


class PutHandler(SimpleHTTPRequestHandler):
    """A handler that acts like nginx with `dav_methods PUT; create_full_put_path on;`."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        path = Path(self.translate_path(self.path))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.directory, delete=False) as file:
            for chunk in read_body(self):
                file.write(chunk)
        os.replace(file.name, path)
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def serve_put(folder: Path, handler: type = PutHandler) -> Iterator[Site]:
    """Serve a folder on loopback over plain HTTP that accepts PUT."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    with _running(server.serve_forever, server.shutdown):
        yield Site(f"http://127.0.0.1:{server.server_port}/team", {}, f"{folder.as_uri()}/team")
    server.server_close()


@contextmanager
def serve_webdav(folder: Path) -> Iterator[Site]:
    """Serve a folder on loopback over WebDAV, with WsgiDAV."""
    from cheroot.wsgi import Server
    from wsgidav.wsgidav_app import WsgiDAVApp

    config = {
        "provider_mapping": {"/": str(folder)},
        "simple_dc": {"user_mapping": {"*": True}},
        "logging": {"enable": False},
        "verbose": 0,
    }
    server = Server(("127.0.0.1", 0), WsgiDAVApp(config))
    server.prepare()
    with _running(server.serve, server.stop):
        address = f"webdav+http://127.0.0.1:{server.bind_addr[1]}/team"
        yield Site(address, {}, f"{folder.as_uri()}/team")


@contextmanager
def serve_gcs(bucket: str) -> Iterator[Site]:
    """Run gcp-storage-emulator, an emulator of Google's storage without gRPC, on loopback."""
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=bucket)
    server.start()
    try:
        host, port = server._api._httpd.server_address
        options = {"endpoint_url": f"http://{host}:{port}", "token": "anon", "project": "test"}
        yield Site(f"gs://{bucket}/team", options)
    finally:
        server.stop()


@contextmanager
def serve_azure(container: str) -> Iterator[Site]:
    """Run Azurite, the official emulator of Azure's storage, on loopback.

    It is `azurite-blob` of the npm package `azurite`.
    """
    from azure.storage.blob import BlobServiceClient

    key = base64.b64encode(secrets.token_bytes(64)).decode()
    command = ["azurite-blob", "--inMemoryPersistence", "--blobPort", "0", "--silent"]
    command.append("--disableTelemetry")
    command.append("--skipApiVersionCheck")  # azure-storage-blob is sometimes newer
    environment = {**os.environ, "AZURITE_ACCOUNTS": f"test:{key}"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            lines = (re.search(r"listens on (http\S+)", line) for line in server.stdout)
            endpoint = next(line[1] for line in lines if line)
            words = {"DefaultEndpointsProtocol": "http", "AccountName": "test", "AccountKey": key}
            words["BlobEndpoint"] = f"{endpoint}/test"
            connection = ";".join(f"{name}={word}" for name, word in words.items())
            with BlobServiceClient.from_connection_string(connection) as service:
                service.create_container(container)
            yield Site(f"abfs://{container}/team", {"connection_string": connection})
        finally:
            server.terminate()
            server.communicate()  # read its last output, since a closed pipe would make it fail


@contextmanager
def _running(serve: Callable[[], None], stop: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join()


def s3_options(endpoint: str) -> dict[str, Any]:
    return {
        "key": "test",
        "secret": "test",
        "client_kwargs": {"endpoint_url": endpoint, "region_name": "eu-west-1"},
    }
