"""Identifies installed distributions by version, and by content that differs from RECORD.

A version alone doesn't reveal that a file was patched in place, that a folder is installed
editable, or that another folder on the path is imported instead. A file counts as unmodified if its
digest is the one in the distribution's RECORD; every other file counts by its content. The result
is cached: it stays valid as long as no file's ctime changes, which takes one `stat` per file to
check. Nothing is imported.
"""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import all_suffixes
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.store.digest import canonical_json, hash_bytes, hash_file, hash_json
from pipeline.store.file_digests import RACY_NS
from pipeline.store.files import read_record, write_atomically

_DESCRIBING = (
    "METADATA",
    "RECORD",
    "direct_url.json",
    "top_level.txt",
    "entry_points.txt",
)
NOT_INSTALLED = "not installed"
CHANGED = ", changed: "  # between a version and a digest
# Files that Python neither imports nor reads: headers, native sources, stubs, documentation.
_NATIVE = (
    ".a",
    ".c",
    ".cc",
    ".cmake",
    ".cpp",
    ".cu",
    ".cuh",
    ".f",
    ".f90",
    ".h",
    ".hpp",
)
_UNREAD = (*_NATIVE, ".md", ".pxd", ".pyi", ".pyx", ".rst", ".typed")
# [name, path of the folder or file that is imported by it, whether it is where RECORD lists it].
_Place = list[Any]


# A file as RECORD lists it: its checksum, `sha256=...`, and its size in bytes.
_Listed = tuple[str, int]
Record = dict[str, Any]


@cache
def identity(name: str) -> str:
    """Return the version of an installed distribution, or "not installed".

    If some files differ from its wheel, a digest of these files follows the version.
    """
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return NOT_INSTALLED
    info = getattr(installed, "_path", None)
    if not isinstance(info, Path):  # inside an archive, which nobody edits in place
        return installed.version
    return _cached(info, lambda: _identify(installed, info))


@cache
def module_identity(name: str) -> str:
    """Return a digest of all files that a top-level module is imported from."""
    return _cached(_NOWHERE / name, lambda: _look(_NOWHERE / name, [name], {}))


def find_folders(name: str) -> list[str]:
    """Return the folders, or the file, that a top-level module is imported from."""
    return [path for _, path, _ in _find_places(_NOWHERE / name, [name])]


def find_installations(names: Iterable[str]) -> list[str]:
    """Return the folders into which the wheels of these distributions are installed.

    Distributions that are missing, or not installed from a wheel, are skipped.
    """
    folders = []
    for name in names:
        with suppress(PackageNotFoundError):
            info = getattr(distribution(name), "_path", None)
            if isinstance(info, Path) and info.suffix == ".dist-info":
                folders.append(str(info.parent))
    return list(dict.fromkeys(folders))


_NOWHERE = Path(os.sep)  # a place that no RECORD covers


def _cached(info: Path, compute: Callable[[], Record]) -> str:
    """Return the `identity` from `compute`, or the cached one if no file behind it has changed."""
    stamps = _own_stamps(info)

    def is_current(record: Record) -> bool:
        return (
            record["own"] == stamps
            and record["places"] == _find_places(info, record["names"])
            and record["stamp"]
            == stamp_files(info.parent, os.fsencode(record["files"]).split(b"\n"))
            and isinstance(record["identity"], str)
        )

    record = cached_record(info, is_current, lambda: {"own": stamps, **compute()})
    return str(record["identity"])


def cached_record(
    place: Path, is_current: Callable[[Record], bool], compute: Callable[[], Record]
) -> Record:
    """Return a record about a place from `compute`, or the cached one if it is current.

    The `stamp` of the record is from `stamp_files`.
    """
    path = cache_path(place)
    record = read_record(path) or {}
    # Not a record that this function wrote.
    with suppress(LookupError, TypeError, ValueError, AttributeError, OSError):
        if is_current(record):
            return record
    started = time.time_ns()  # before anything is read
    record = compute()
    if started - record["stamp"][-1] > RACY_NS:
        with suppress(OSError):  # recomputed each time if the cache can't be written
            write_atomically(path, canonical_json(record))
    return record


def _identify(installed: Distribution, info: Path) -> Record:
    """Return the identity of a distribution, with the facts by which `_cached` validates it."""
    listed = _read_listed(installed)
    description = _look(info, _top_level(installed, listed), listed)
    changes = description["identity"]
    return {
        **description,
        "identity": installed.version + (f"{CHANGED}{changes}" if changes else ""),
    }


def cache_path(place: Path) -> Path:
    """Return the path of the record of what is installed at a place."""
    from pipeline.store.places import default_root

    name = f"{place.stem}-{hash_bytes(os.fsencode(place))[:16]}.json"
    return default_root() / "distributions" / name


def _own_stamps(info: Path) -> list[Any]:
    """Return this module's digest, and the stamp of the files that describe an installation."""
    files = [f"{info.name}/{name}" for name in _DESCRIBING]
    return [hash_file(Path(__file__)), stamp_files(info.parent, files)]


def _read_listed(installed: Distribution) -> dict[str, _Listed]:
    """Return the files in RECORD, by their paths relative to the folder of the installation.

    Returns {} for an editable installation, whose RECORD lists none of its code.
    """
    with suppress(ValueError, AttributeError):
        about = json.loads(installed.read_text("direct_url.json") or "{}")
        if about.get("dir_info", {}).get("editable"):
            return {}
    listed = {}
    for row in csv.reader((installed.read_text("RECORD") or "").splitlines()):
        path, checksum, size = (*row, "", "", "")[:3]
        if _counts(path):
            listed[path] = checksum, int(size) if size.isdigit() else -1
    return listed


def _top_level(installed: Distribution, listed: Mapping[str, _Listed]) -> list[str]:
    """Return the top-level names that a distribution is imported by."""
    names = {path.split("/")[0] for path in listed}
    names = {
        name
        for name in names
        if not name.endswith((".dist-info", ".data")) and name != ".."
    }
    if not listed:
        names |= set((installed.read_text("top_level.txt") or "").split())
        names |= {
            entry_point.module.split(".")[0] for entry_point in installed.entry_points
        }
    return sorted(names or {installed.metadata["Name"].replace("-", "_")})


def _find_places(info: Path, names: Sequence[str]) -> list[_Place]:
    """Find where these names are imported from: the folder of the installation, or elsewhere."""
    base, places = str(info.parent), []
    for name in names:
        installed_path = os.path.join(base, name)
        module = (
            name.partition(".")[0] if name.endswith(tuple(all_suffixes())) else name
        )
        paths = [installed_path]
        if module.isidentifier():  # unlike `numpy.libs`
            spec = None
            with suppress(ImportError, ValueError):
                spec = find_spec(module)
            if spec is not None and spec.submodule_search_locations is not None:
                paths = [
                    os.fspath(location) for location in spec.submodule_search_locations
                ]
            elif spec is not None and spec.origin is not None:
                paths = [spec.origin]
        # Modules that Python's own library provides instead, such as `test`, go with its version.
        paths = [
            path
            for path in paths
            if os.path.dirname(path) != os.path.dirname(os.__file__)
        ]
        for number, path in enumerate(paths):
            shown = f"{name}#{number}" if number else name
            places.append([shown, path, path == installed_path])
    return places


def _look(info: Path, names: Sequence[str], listed: Mapping[str, _Listed]) -> Record:
    """Examine all files of some modules.

    `identity` is the digest of the files that differ from RECORD, or "" if none do; `_cached`
    compares the other fields.
    """
    files: list[str] = []
    changes: list[list[str | None]] = []
    places = _find_places(info, names)
    installed = {name for name, _, is_own in places if is_own}
    missing = {name for name in listed if name.split("/")[0] in installed}
    for top, start, is_own in places:
        for path, is_file in _walk(start):
            files.append(path.removeprefix(f"{info.parent}/"))
            if not is_file:
                continue
            name = top + path[len(start) :].replace(os.sep, "/")
            entry = listed.get(name) if is_own else None
            if entry is not None:
                missing.discard(name)
            if entry is None or not _is_vouched(path, entry):
                changes.append([name, hash_file(Path(path))])
    changes += [[name, None] for name in missing]
    return {
        "names": names,
        "places": places,
        "files": "\n".join(files),
        "stamp": stamp_files(info.parent, files),
        "identity": hash_json(sorted(changes, key=str))[:32] if changes else "",
    }


def _walk(top: str) -> Iterator[tuple[str, bool]]:
    """Yield the relevant files below a folder, or the file itself, and their folders.

    The flag is True for a file.
    """
    if not os.path.isdir(top):
        if os.path.isfile(top):
            yield top, True
        return
    waiting, visited = [top], set()
    while waiting:
        folder = waiting.pop()
        about = os.stat(folder)
        if (about.st_dev, about.st_ino) in visited:  # a link to a folder above it
            continue
        visited.add((about.st_dev, about.st_ino))
        any_file = folder == top
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_symlink() and not os.path.exists(entry.path):
                    continue  # a dangling or circular link
                if entry.is_dir():
                    if entry.name[0] != "." and entry.name != "__pycache__":
                        waiting.append(entry.path)
                elif _counts(entry.name) and entry.is_file():
                    any_file = True
                    yield entry.path, True
        if any_file:
            yield folder, False


def _counts(path: str) -> bool:
    return not path.endswith(_UNREAD) and "__pycache__/" not in path


def _is_vouched(path: str, listed: _Listed) -> bool:
    """Return whether a file has the size and checksum that RECORD lists."""
    checksum, size = listed
    if os.stat(path).st_size != size:
        return False
    import hashlib
    from base64 import urlsafe_b64encode

    algorithm, _, digest = checksum.partition("=")
    # Times prove nothing: a copied environment is as old as its RECORD.
    try:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, algorithm).digest()
    except ValueError:  # an unknown algorithm
        return False
    return urlsafe_b64encode(content).rstrip(b"=").decode() == digest


def stamp_files(base: Path, files: Iterable[str | bytes]) -> list[int]:
    """Return the number of files and folders, the sum of their ctimes, and the latest ctime, in ns.

    The kernel sets a ctime on every write, rename or change of mode, whatever the file's mtime is
    then set to. It resolves the paths, relative to `base`, in a fifth less time than whole paths.
    """
    times, stat = [], os.stat
    folder = os.open(base, os.O_RDONLY)
    for name in files:
        try:
            times.append(stat(name, dir_fd=folder).st_ctime_ns)
        except OSError:
            continue
    os.close(folder)
    return [len(times), sum(times), max(times, default=0)]
