"""The index of published packages, `packages.json`: the best release per target and model.

The index is made from the records of releases, which never change, so nothing is lost if two
publishers run at once: after writing the index, each looks for further records and writes the index
again if there are any. This requires an address whose listings show what was written before, as
folders and S3 do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pipeline.features.publish.upload import INDEX, RELEASE
from pipeline.report.verdicts import VERDICTS
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError
from pipeline.store.files import record_bytes
from pipeline.store.forms import FileName, check_of
from pipeline.store.states import Verdict

Json = Mapping[str, Any]
_MOST_BYTES = 1 << 26
_MOST_ROUNDS = 50  # reached only if others keep publishing

_PART = {"offset": int, "size": int, "sha256": str}
_FILE = {
    "name": FileName,
    "kind": str,
    "size": int,
    "sha256": str,
    "blake3": Digest,
    "parts?": [_PART],
}
_RELEASE = {
    "package": FileName,
    "model": str,
    "target": str,
    "executorch": str,
    "verdict": Verdict,
    "devices": {str: Verdict},
    "files": [_FILE],
    "digest": Digest,
    "path": str,
}
# `targets` has the path of the best release by target and model.
_INDEX = {
    "format": Literal[1],
    "releases": [_RELEASE],
    "targets": {str: {str: str}},
}
_is_release = check_of(_RELEASE, open_fields=True)
_is_index = check_of(_INDEX, open_fields=True)


def read_index(files: Any) -> dict[str, Any]:
    """Return the index at an address, or an empty one if there is none.

    Raises:
        PipelineError: the file with the index's name is not an index that this version reads.
        RemoteError: the address can't be read.
    """
    if files.size(INDEX) is None:
        return {"format": 1, "releases": [], "targets": {}}
    record = _read(files, INDEX)
    if not _is_index(record) or not all(map(_is_in_place, record["releases"])):
        raise PipelineError(
            f"{files.shown}: {INDEX} is not an index that this version can read; publish to "
            "another address, or move it away"
        )
    return dict(record)


def write_index(files: Any, published: Iterable[Json]) -> None:
    """Bring the index at an address up to date with the records of releases there.

    The published releases come last. Raises PipelineError and RemoteError.
    """
    latest = [release["path"] for release in published]
    for _ in range(_MOST_ROUNDS):
        standing = read_index(files)
        index = _renew(files, standing, latest)
        if index == standing:
            return
        # Records don't tell the order of releases. An index that others wrote meanwhile does.
        if read_index(files) != standing:
            continue
        files.write(INDEX, [record_bytes(index)])
        latest = []  # others may have published since
    raise PipelineError(
        f"{files.shown}: {INDEX} keeps changing; run the same command again"
    )


def _renew(files: Any, index: Json, latest: Iterable[str]) -> dict[str, Any]:
    """Return an index of the releases at the address.

    Releases already in the index keep their order; the others follow, those of `latest` at the end.
    """
    known = {release["path"]: release for release in index["releases"]}
    ending = f"/{RELEASE}"
    paths = [
        name.removesuffix(ending) for name in files.names() if name.endswith(ending)
    ]
    order = [*(path for path in known if path in paths), *sorted({*paths} - {*known})]
    order = [*(path for path in order if path not in latest), *latest]
    releases = []
    for path in order:
        release = known.get(path) or _read(files, f"{path}{ending}")
        # Anything may lie at an address; files that aren't valid release records are left out.
        if _is_release(release) and _is_in_place(release) and release["path"] == path:
            releases.append(release)
    return {"format": 1, "releases": releases, "targets": find_best(releases)}


def _is_in_place(release: Json) -> bool:
    """Return whether a release has one program, and a path made of its package and digest.

    Such a path can't lead out of the address.
    """
    kinds = [file["kind"] for file in release["files"]]
    path = f"{release['package']}/{release['digest'][:12]}"
    return bool(release["path"] == path and kinds.count("program") == 1)


def find_best(releases: Iterable[Json]) -> dict[str, dict[str, str]]:
    """Return the path of the best release by target and model.

    The latest release of each package competes. The best verdict wins, then the most devices on
    which it passed, the fewest bytes, and the first name.
    """
    # Releases are listed in the order of publishing, so the last one of a package stays.
    latest = {release["package"]: release for release in releases}
    best: dict[str, dict[str, str]] = {}
    for release in sorted(latest.values(), key=_rank):
        models = best.setdefault(release["target"], {})
        models.setdefault(release["model"], release["path"])
    return best


def _rank(release: Json) -> tuple[int, int, int, str]:
    passed = [verdict for verdict in release["devices"].values() if verdict == "passed"]
    size = sum(file["size"] for file in release["files"])
    place = VERDICTS.index(release["verdict"])  # VERDICTS begins with the worst
    return -place, -len(passed), size, release["package"]


def _read(files: Any, name: str) -> Any:
    """Return the value of a JSON file at an address, or None if it isn't JSON."""
    try:
        return json.loads(b"".join(files.read(name, _MOST_BYTES)))
    except (ValueError, RecursionError):
        return None
