"""The store: blobs by content digest, action results by action digest, under one folder.

Nothing in it is trusted because of its name: a blob is hashed again when it is read, and an action
result carries a digest of itself. What is bad is dropped and then simply not there, so corruption,
a torn write or a concurrent eviction are misses, never errors. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from pipeline import digest
from pipeline.digest import Digest
from pipeline.errors import PipelineError
from pipeline.files import publish, replacing, temporary

ENVIRONMENT_VARIABLE = "PTE_PIPELINE_STORE"
_PIECE = 1 << 22  # bytes
_README = """\
This folder is the store of pte-pipeline: compiled methods and linked packages, by content.
It can be deleted at any time; what is needed again is built again.
"""


class MissingBlobError(PipelineError):
    """A blob that is not in the store, or no longer has the content that its name promises."""


def default_root() -> Path:
    """`$XDG_CACHE_HOME/pte-pipeline`, shared by all checkouts of the user."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "pte-pipeline"


class BlobWriter:
    """A file that hashes what is written to it; `digest` holds once the block has ended."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hasher = blake3()
        self.size = 0

    def write(self, data: bytes | memoryview) -> int:
        self._hasher.update(data)
        self.size += len(data)
        return self._file.write(data)

    @property
    def digest(self) -> Digest:
        return Digest(self._hasher.hexdigest())


class Store:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._verified: set[Digest] = set()

    def blob_path(self, blob: Digest) -> Path:
        return self.root / "blobs" / blob[:2] / blob[2:]

    def blob_of(self, path: Path) -> Digest:
        """The inverse of `blob_path`."""
        return Digest(path.parent.name + path.name)

    def _action_path(self, action: Digest) -> Path:
        return self.root / "actions" / action[:2] / f"{action[2:]}.json"

    # Blobs

    def has(self, blob: Digest) -> bool:
        return self.blob_path(blob).is_file()

    def intact(self, blobs: Iterable[Digest]) -> bool:
        """Whether all are there with the right content; each is hashed once per process, and bad
        ones are dropped."""
        missing = False
        for blob in blobs:
            if blob not in self._verified or not self.has(blob):
                try:
                    self.verified_path(blob)
                except MissingBlobError:
                    missing = True
                else:
                    self._verified.add(blob)
        return not missing

    def put(self, data: bytes | memoryview) -> Digest:
        blob = digest.of_bytes(data)
        if not self.intact([blob]):
            self._prepare()
            with replacing(self.blob_path(blob), mode=0o444) as file:
                file.write(data)
        return blob

    @contextmanager
    def writer(self) -> Iterator[BlobWriter]:
        """Streams a blob whose digest is known only at its end."""
        self._prepare()
        with temporary(self.root / "blobs") as file:
            blob = BlobWriter(file)
            yield blob
            publish(file, self.blob_path(blob.digest), mode=0o444)

    def read(self, blob: Digest) -> bytes:
        """The content, verified. Raises MissingBlobError; a bad blob is dropped."""
        try:
            data = self.blob_path(blob).read_bytes()
        except OSError as error:
            raise MissingBlobError(
                f"store {self.root}: blob {blob} is missing ({error})"
            ) from error
        if digest.of_bytes(data) != blob:
            raise self._drop(blob)
        return data

    def stream(self, blob: Digest) -> Iterator[bytes]:
        """The content in pieces, verified when the last one has been read. Raises MissingBlobError,
        possibly after most of the content: what was made of it must then be thrown away."""
        hasher = blake3()
        try:
            with open(self.blob_path(blob), "rb") as file:
                while piece := file.read(_PIECE):
                    hasher.update(piece)
                    yield piece
        except OSError as error:
            raise MissingBlobError(
                f"store {self.root}: blob {blob} is missing ({error})"
            ) from error
        if hasher.hexdigest() != blob:
            raise self._drop(blob)

    def verified_path(self, blob: Digest) -> Path:
        """The path of a blob whose content was hashed just now. Raises MissingBlobError."""
        path = self.blob_path(blob)
        try:
            good = digest.of_file(path) == blob
        except OSError as error:
            raise MissingBlobError(
                f"store {self.root}: blob {blob} is missing ({error})"
            ) from error
        if not good:
            raise self._drop(blob)
        return path

    def _drop(self, blob: Digest) -> MissingBlobError:
        _forget(self.blob_path(blob))
        return MissingBlobError(f"store {self.root}: blob {blob} was corrupt and has been dropped")

    # Action results

    def result(self, action: Digest) -> dict[str, Any] | None:
        """What the action gave, or None where it is unknown, unreadable or damaged."""
        record = self._record(action)
        return None if record is None else record["result"]

    def result_of(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        return self.result(digest.of_json(key))

    def key(self, action: Digest) -> dict[str, Any] | None:
        record = self._record(action)
        return None if record is None else record["key"]

    def _record(self, action: Digest) -> dict[str, Any] | None:
        path = self._action_path(action)
        try:
            record = json.loads(path.read_bytes())
            checked = digest.of_json([record["key"], record["result"]])
            good = record["check"] == checked and digest.of_json(record["key"]) == action
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError):
            good = False
        if not good:
            _forget(path)
            return None
        return record

    def put_result(self, key: Mapping[str, Any], result: Mapping[str, Any]) -> Digest:
        action = digest.of_json(key)
        record = {"key": key, "result": result, "check": digest.of_json([key, result])}
        self._prepare()
        with replacing(self._action_path(action), mode=0o444) as file:
            file.write(digest.canonical_json(record))
        return action

    def _prepare(self) -> None:
        readme = self.root / "README"
        if not readme.exists():
            self.root.mkdir(parents=True, exist_ok=True)
            readme.write_text(_README)


def _forget(path: Path) -> None:
    """Removes what is bad; in a store that can't be written it stays, and stays a miss."""
    with suppress(OSError):
        path.unlink()
