"""A loopback proxy in front of a remote's server that fails all writes after the first few.

Later writes are refused or cut off; reads always pass.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from tests.support.sites import Site, read_body

_HOST = re.compile(r"127\.0\.0\.1:(\d+)")
_HUB = re.compile(r"^/(api/models|lfs)/|\.git/info/lfs/")
_READS = ("GET", "HEAD", "OPTIONS", "PROPFIND")
_WRITES = ("COPY", "DELETE", "MKCOL", "MOVE", "PATCH", "POST", "PUT")
_HOP_BY_HOP = ("connection", "content-length", "transfer-encoding")


class WeakLink:
    """The number of writes that still pass, and how later ones fail.

    Later writes are cut off before or after the server gets them, or answered with a status.
    """

    def __init__(self, writes: float, fault: str | int) -> None:
        self.writes = writes
        self.fault = fault

    def count(self, method: str, path: str) -> bool:
        """Count a request and return whether it passes."""
        writes = method not in _READS
        if _HUB.search(path):  # only commits show what they name; the rest is retried over and over
            writes = "/commit/" in path
        self.writes -= writes
        return not writes or self.writes >= 0


class _Handler(BaseHTTPRequestHandler):
    link: ClassVar[WeakLink]
    server_port: ClassVar[int]
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        body = b"".join(read_body(self))
        passes = self.link.count(self.command, self.path)
        fault = self.link.fault
        if passes or fault == "cut after":
            answer, content = self._ask(body)
        if passes:
            self._answer(answer, content)
        elif isinstance(fault, int):
            self._answer(None, b"", fault)
        else:
            self.close_connection = True

    def _ask(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=20)
        headers = {k: v for k, v in self.headers.items() if k.lower() != "transfer-encoding"}
        if body or "Content-Length" in headers:
            headers["Content-Length"] = str(len(body))
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer, content

    def _answer(self, answer: Any, content: bytes, status: int = 0) -> None:
        self.send_response(status or answer.status)
        length = str(len(content))
        for name, value in answer.headers.items() if answer else ():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
            elif name.lower() == "content-length" and self.command == "HEAD":
                length = value
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        pass


for _method in (*_READS, *_WRITES):
    setattr(_Handler, f"do_{_method}", _Handler._pass_on)


@contextmanager
def weak_link(site: Site, writes: float, fault: str | int = "cut before") -> Iterator[Site]:
    """Put a proxy in front of a site.

    Args:
        writes: how many writes pass.
        fault: how later writes fail: "cut before" or "cut after" the server gets them, or the
            status to answer with.
    """
    where = json.dumps([site.url, site.options])
    (port,) = {int(port) for port in _HOST.findall(where)}
    members = {"link": WeakLink(writes, fault), "server_port": port}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OfThisTest", (_Handler,), members))
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield at_port(site, server.server_port)
    finally:
        with suppress(OSError):
            server.shutdown()
            server.server_close()


def at_port(site: Site, port: int) -> Site:
    """Return the site with its server at another loopback port."""
    where = json.dumps([site.url, site.options])
    url, options = json.loads(_HOST.sub(f"127.0.0.1:{port}", where))
    return replace(site, url=url, options=options)
