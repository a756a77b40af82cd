"""Checks that a package on disk is the one that its manifest and its source describe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.store import digest
from pipeline.store.digest import Digest

Json = Mapping[str, Any]


def check_integrity(
    folder: Path,
    manifest: Json | None,
    package: str,
    programs: Mapping[str, Digest],
    constant_methods: Mapping[str, object],
) -> Iterator[str]:
    """Yield a sentence for each mistake; every file that the manifest names is hashed.

    Args:
        programs: by method, the digest of the program that the source has now.
        constant_methods: those of the config.
    """
    if manifest is None:
        yield "manifest.json is missing, or can't be read"
        return
    if manifest["package"] != package:
        yield f"the manifest is that of package '{manifest['package']}'"
    for name, file in sorted(manifest["files"].items()):
        yield from _check_file(folder / name, file)
    if not any(name.endswith(".pte") for name in manifest["files"]):
        yield "the manifest names no .pte file"
    named = {name: facts["program"] for name, facts in manifest["methods"].items()}
    for name in sorted(named.keys() | programs.keys()):
        if name not in named:
            yield f"{name}: the manifest lacks this method of the source"
        elif name not in programs:
            yield f"{name}: the manifest has this method, the source has not"
        elif named[name] != programs[name]:
            yield f"{name}: the manifest names another program than the source's"
    constants = manifest["constant_methods"]
    for name in sorted(constants.keys() | constant_methods.keys()):
        ours = constant_methods.get(name)
        if constants.get(name) != ours or type(constants.get(name)) is not type(ours):
            yield f"{name}: the manifest says {constants.get(name)!r}, the config {ours!r}"


def _check_file(path: Path, facts: Json) -> Iterator[str]:
    try:
        size, content = path.stat().st_size, digest.hash_file(path)
    except OSError as error:
        yield f"{path.name}: {error.strerror}, and the manifest names it"
        return
    if size != facts["size"]:
        yield f"{path.name} has {size} bytes, {facts['size']} in the manifest"
    elif content != facts["digest"]:
        yield f"{path.name} has another content than the manifest says"
