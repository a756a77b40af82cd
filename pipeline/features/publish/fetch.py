"""`doit fetch`: downloads the best release for a target from a published index, and checks it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3

from pipeline.cli.commands import usage
from pipeline.features.publish import FETCH
from pipeline.features.publish.index import read_index
from pipeline.features.publish.release import CARD
from pipeline.features.publish.upload import INDEX, open_address
from pipeline.moments import show_error
from pipeline.store.digest import hash_file
from pipeline.store.errors import (
    PipelineError,
    describe_error,
    did_you_mean,
    listed,
)
from pipeline.store.files import replacing

Json = Mapping[str, Any]


def run(words: Sequence[str], root: Path) -> int:
    """Fetch a package and print the path of its `.pte`; return the exit status.

    Args:
        words: the address and the target; optionally the model, required if the index has several
            for the target; and the folder.
        root: the workspace's folder, whose settings the address may need.
    """
    if not 2 <= len(words) <= 4 or words[0].startswith("-"):
        raise PipelineError(f"usage: {usage(FETCH)}")
    address, target, model, folder = [*words, *("", ".")[len(words) - 2 :]]
    try:
        print(fetch_package(address, target, model, Path(folder), root))
    except (PipelineError, OSError) as error:
        print(f"fetch: {show_error(describe_error(error))}", file=sys.stderr)
        return 1
    return 0


def fetch_package(
    address: str,
    target: str,
    model: str = "",
    folder: Path | str = ".",
    root: Path | None = None,
) -> Path:
    """Download the best published package for a target, and return the path of its `.pte`.

    Its `.ptd` files, manifest and contract are written next to it.

    Args:
        address: address of a published index, without its file name: `s3://bucket/models`.
        model: required if the index has several models for the target.
        folder: the files go to `<folder>/<package>/<digest>/`. Files that already exist there with
            the right content are not downloaded again.
        root: a workspace whose settings `remote_options` and `remote_timeout` apply.

    Raises:
        PipelineError: there is no such package, the address can't be read, or a downloaded file is
            not the one that the index names; in that case this file is not written, though others
            may be.
    """
    files = open_address(address, root or Path.cwd())
    try:
        release = _choose(files, read_index(files), target, model)
        place = Path(folder) / release["path"]
        for file in release["files"]:
            if file["name"] != CARD:  # attestations don't name the card
                _download(files, release, file, place / file["name"])
    except files.error as error:
        raise PipelineError(f"{files.shown}: can't be read ({error})") from error
    (program,) = (
        file["name"] for file in release["files"] if file["kind"] == "program"
    )
    return place / program


def _choose(files: Any, index: Json, target: str, model: str) -> Json:
    """Return the release of an index for a target and a model. Raises PipelineError."""
    models = index["targets"].get(target)
    if not index["releases"]:
        raise PipelineError(
            f"{files.shown}: has no {INDEX} with packages; check the address"
        )
    if models is None:
        known = did_you_mean(target, index["targets"])
        raise PipelineError(f"{files.shown}: {INDEX} has no target '{target}'; {known}")
    if not model and len(models) > 1:
        raise PipelineError(
            f"{files.shown}: {INDEX} has several models for {target}; name one of "
            f"{listed(sorted(models))}"
        )
    path = models.get(model) if model else next(iter(models.values()), None)
    for release in index["releases"]:
        if release["path"] == path:
            return dict(release)
    known = did_you_mean(model, models)
    raise PipelineError(
        f"{files.shown}: {INDEX} has no model '{model}' for {target}; {known}"
    )


def _download(files: Any, release: Json, file: Json, path: Path) -> None:
    """Write a file of a release to a path, unless it is already there.

    Raises PipelineError if the content differs from the index, and RemoteError.
    """
    # A file from an earlier run, perhaps an interrupted one, is judged by its content.
    if path.is_file() and hash_file(path) == file["blake3"]:
        return
    name = f"{release['path']}/{file['name']}"
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = blake3()
    with replacing(path, size=file["size"]) as target:
        try:
            for piece in files.read(name, file["size"]):
                digest.update(piece)
                target.write(piece)
        except files.error as error:
            if error.count != "corrupt":  # more bytes than the index says
                raise
        if digest.hexdigest() != file["blake3"]:
            raise PipelineError(
                f"{files.shown}: {name} does not match {INDEX}: its digest differs; remove "
                f"{release['path']} there, and publish the package again"
            )
