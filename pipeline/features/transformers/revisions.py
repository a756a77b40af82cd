"""Finds the folder of a model at the revision that a source names.

It is a folder of the workspace, in which `hf download` recorded the revision, or one in
huggingface_hub's cache.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.features.transformers.hub import find_snapshot, is_commit, is_on_hub
from pipeline.store.errors import SourceError

# One note per file, with the commit, the tag and the time of the download on a line each.
_NOTES = ".cache/huggingface/download"


def find_folder(model: str | Path, revision: str) -> Path:
    """Return the folder of a model; for a hub's model, the snapshot that was downloaded already.

    Args:
        revision: a commit, as a hub spells it; "" accepts a folder of any revision.

    Raises:
        SourceError: a hub's model is not in the cache, or the folder is of another revision.
    """
    if not revision:
        return Path(model)
    if not is_on_hub(Path(), str(model)):
        _check_revision(Path(model), revision)
        return Path(model)
    folder = find_snapshot(str(model), revision) if is_commit(revision) else None
    if folder is None:
        raise SourceError(
            f"{model}: not in huggingface_hub's cache at revision {revision}; `hf download {model} "
            "--revision COMMIT` brings it there, and models/<model>.yaml does by itself"
        )
    return folder


def _check_revision(folder: Path, revision: str) -> None:
    """Raise SourceError if a folder was downloaded at another revision, or at an unknown one.

    Args:
        revision: a commit, as a hub spells it.
    """
    commits = {}
    for note in sorted((folder / _NOTES).rglob("*.metadata")):
        name = str(note.relative_to(folder / _NOTES)).removesuffix(".metadata")
        commits[name] = note.read_text(encoding="utf-8").partition("\n")[0].strip()
    download = f"`hf download NAME --revision {revision} --local-dir {folder}`"
    if not commits:
        raise SourceError(
            f"{folder}: revision {revision}: the downloaded revision is unknown; {download} "
            "records it"
        )
    for name, commit in commits.items():
        if commit != revision:
            raise SourceError(
                f"{folder}: revision {revision}: {name} is from {commit}; {download}, or set that "
                "revision"
            )
