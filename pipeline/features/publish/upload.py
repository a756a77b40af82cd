"""Uploads: sends the files of a release, each once, and none over another content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from blake3 import blake3

from pipeline.features.publish.release import Content, iter_pieces
from pipeline.moments import call_all
from pipeline.store.digest import hash_pieces
from pipeline.store.errors import PipelineError
from pipeline.store.files import record_bytes

Json = Mapping[str, Any]
INDEX = "packages.json"
RELEASE = "release.json"  # the record of a release, the last of its files


def open_address(address: str, root: Any) -> Any:
    """Return the files at an address, a `features.remote.files.RemoteFiles`. Raises PipelineError
    for an address that nothing here can reach."""
    for files in call_all("remote_files", address, root):
        return files
    raise PipelineError(
        "this installation has no feature that accesses addresses (remote)"
    )


@contextmanager
def explaining(
    files: Any, at: str = "", state: str = f"{INDEX} has nothing new"
) -> Iterator[None]:
    """Raise PipelineError with a line of its own for what an address refuses in this block.

    Args:
        at: the name below the address, and what was done so far; "" for the address itself.
        state: of the address where this block was cut off.
    """
    try:
        yield
    except files.error as error:
        where = f"{files.shown}: {at}".rstrip(": ")
        if error.denied:
            raise PipelineError(
                f"{where} can't be written ({error}); check the credentials and their permissions"
            ) from error
        if error.count == "misses":
            raise PipelineError(
                f"{files.shown} is not there ({error}); create the bucket or repository first"
            ) from error
        raise PipelineError(
            f"{where} can't be reached ({error}); {state}; run the same command again to continue"
        ) from error


def find_missing(files: Any, release: Json) -> list[str]:
    """Return the names of the files of a release that are not at an address; none where its record
    is there too, which is sent when all others are.

    Raises:
        PipelineError: another content has the name of one.
        RemoteError: the address can't be read.
    """
    # The record is sent last, so where it is, all files were complete once.
    complete = files.size(f"{release['path']}/{RELEASE}") is not None
    missing = []
    for file in release["files"]:
        name = f"{release['path']}/{file['name']}"
        size = files.size(name)
        if size is None:
            missing.append(file["name"])
        elif size != file["size"] or not (complete or _holds(files, name, file)):
            raise PipelineError(
                f"{files.shown}: {name} has other content, which is never overwritten; remove "
                "it, or publish to another address"
            )
    return missing


def _holds(files: Any, name: str, file: Json) -> bool:
    """Tell whether a file at an address has this content, by reading it: what an interrupted
    upload left may have the size alone."""
    digest: str = hash_pieces(files.read(name, file["size"]))
    return digest == file["blake3"]


def send(files: Any, release: Json, name: str, content: Content) -> None:
    """Send a file of a release.

    Raises:
        PipelineError: the file here is no longer the one that the release names.
        RemoteError: the address refuses it, or can't be reached.
    """
    (file,) = (file for file in release["files"] if file["name"] == name)
    files.write(f"{release['path']}/{name}", _checked_pieces(file, content))


def send_record(files: Any, release: Json) -> None:
    """Send the record of a release, by which indexes find it. Raises RemoteError."""
    name = f"{release['path']}/{RELEASE}"
    if files.size(name) is None:
        files.write(name, [record_bytes(release)])


def _checked_pieces(file: Json, content: Content) -> Iterator[bytes]:
    """Yield a content in pieces. Raises PipelineError at its end, before the upload is complete,
    where it is another one than the record's."""
    digest = blake3()
    for piece in iter_pieces(content):
        digest.update(piece)
        yield piece
    if digest.hexdigest() != file["blake3"]:
        raise PipelineError(
            f"{file['name']}: changed while it was published; run again"
        )
