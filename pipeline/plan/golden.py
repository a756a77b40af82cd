"""Finds files of recorded outputs by method, `golden/<model>/<method>.npz` or `.safetensors`.

An export with parameters has a folder with the export's name, `golden/llama+max_seq_len~2048/`,
because its outputs differ. Nothing here parses the content of a file.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from pipeline.store.digest import Digest
from pipeline.store.errors import did_you_mean
from pipeline.store.workspace import Workspace

FOLDER = "golden"
SUFFIXES = (".npz", ".safetensors")


def find_golden(
    workspace: Workspace, export: str, methods: Collection[str]
) -> dict[str, tuple[str, Digest]]:
    """Return the path and digest of the recorded outputs of each method that has them."""
    files = {}
    for path in list_golden(workspace, export):
        name = str(path.relative_to(workspace.root))
        is_golden = path.suffix in SUFFIXES and path.stem in methods
        if is_golden and (content := workspace.find_data(name)) is not None:
            files[path.stem] = (name, content)
    return files


def find_golden_mistakes(
    workspace: Workspace, export: str, methods: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with each file that would otherwise be ignored silently, and what to do.

    These are files for a method that the model lacks, in an unsupported format, that can't be read,
    or in addition to another file for the same method.
    """
    paths: dict[str, str] = {}
    for path in list_golden(workspace, export):
        name = str(path.relative_to(workspace.root))
        if path.suffix not in SUFFIXES:
            remedy = f"recorded outputs are {' or '.join(SUFFIXES)} files"
            yield f"{name}: has an unsupported suffix", remedy
        elif path.stem not in methods:
            mistake = f"{name}: the model has no method '{path.stem}'"
            yield mistake, did_you_mean(path.stem, [*methods])
        elif path.stem in paths:
            mistake = (
                f"{name}: '{path.stem}' has recorded outputs in {paths[path.stem]}"
            )
            yield mistake, "keep one of them"
        elif workspace.find_data(name) is None:
            yield f"{name}: cannot be read", ""
        paths.setdefault(path.stem, name)


def list_golden(workspace: Workspace, export: str) -> list[Path]:
    """Return the files of an export's folder of recorded outputs, which few exports have."""
    folder = os.path.join(workspace.root, FOLDER, export)
    with suppress(OSError):  # usually, there is no such folder
        names = sorted(os.listdir(folder))
        return [Path(folder, name) for name in names if not name.startswith(".")]
    return []
