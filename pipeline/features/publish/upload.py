"""Uploads the files of a release, each once, and never over other content."""

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
RELEASE = "release.json"  # the record of a release, sent last


def open_address(address: str, root: Any) -> Any:
    """Return the files at an address, a `features.remote.files.RemoteFiles`.

    Raises PipelineError if nothing installed can reach the address.
    """
    for files in call_all("remote_files", address, root):
        return files
    raise PipelineError(
        "this installation has no feature that accesses addresses (remote)"
    )


@contextmanager
def explaining(
    files: Any, at: str = "", state: str = f"{INDEX} has nothing new"
) -> Iterator[None]:
    """Turn an address's refusal in this block into a PipelineError that explains it.

    Args:
        at: the name below the address, and the progress so far; "" for the address itself.
        state: the state of the address if this block is cut off.
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
    """Return the names of a release's files that are missing from an address.

    Raises:
        PipelineError: a file has the name of one of them but other content.
        RemoteError: the address can't be read.
    """
    # The record is sent last, so if it is there, all files were complete once.
    complete = files.size(f"{release['path']}/{RELEASE}") is not None
    missing = []
    for file in release["files"]:
        name = f"{release['path']}/{file['name']}"
        size = files.size(name)
        if size is None:
            missing.append(file["name"])
        elif size != file["size"] or not (complete or _holds(files, name, file)):
            raise PipelineError(
                f"{files.shown}: {name} has different content, which is never overwritten; remove "
                "it, or publish to another address"
            )
    return missing


def _holds(files: Any, name: str, file: Json) -> bool:
    """Return whether a file at an address has this content, by reading it.

    A file left by an interrupted upload may have the right size but other content.
    """
    digest: str = hash_pieces(files.read(name, file["size"]))
    return digest == file["blake3"]


def send(files: Any, release: Json, name: str, content: Content) -> None:
    """Send a file of a release.

    Raises:
        PipelineError: the local file is no longer the one that the release names.
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
    """Yield the content of a file in pieces.

    Raises PipelineError after the last piece, before the upload completes, if the content differs
    from the record.
    """
    digest = blake3()
    for piece in iter_pieces(content):
        digest.update(piece)
        yield piece
    if digest.hexdigest() != file["blake3"]:
        raise PipelineError(
            f"{file['name']}: changed while it was published; run again"
        )
