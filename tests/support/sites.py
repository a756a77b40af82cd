"""Places where a remote tier is: a folder, and a real S3 server on loopback."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import fsspec

from pipeline.features.remote.remote import Remote, RemoteSettings


@dataclass
class Site:
    """Where remotes are, seen as by someone else who can write there."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)

    def settings(self, **more: Any) -> RemoteSettings:
        return RemoteSettings(self.url, options=self.options, **{"unsigned": True, **more})

    def remote(self, **more: Any) -> Remote:
        return Remote(self.settings(**more))

    def _locate(self, name: str) -> tuple[Any, str]:
        options = {"use_listings_cache": False, **self.options}
        filesystem, root = fsspec.url_to_fs(self.url, **options)
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


def s3_options(endpoint: str) -> dict[str, Any]:
    return {
        "key": "test",
        "secret": "test",
        "client_kwargs": {"endpoint_url": endpoint, "region_name": "eu-west-1"},
    }
