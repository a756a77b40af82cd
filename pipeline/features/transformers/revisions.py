"""Whether a folder is of the revision that a source names, as `hf download` notes it there."""

from __future__ import annotations

from pathlib import Path

from pipeline.store.errors import SourceError

# Of each file, its commit, its tag and when it came, a line each.
_NOTES = ".cache/huggingface/download"


def check_revision(folder: Path, revision: str) -> None:
    """Raise SourceError where a folder was downloaded at another revision, or where nothing in it
    says at which.

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
            f"{folder}: revision {revision}: nothing says at which revision it was downloaded; "
            f"{download} notes it"
        )
    for name, commit in commits.items():
        if commit != revision:
            raise SourceError(
                f"{folder}: revision {revision}: {name} is of {commit}; {download}, or name that "
                "one"
            )
