"""The commit that a workspace is checked out at, to record where a build came from."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pipeline.store.git import GitError, run_git


class Revision(NamedTuple):
    """A commit, and whether tracked files of the workspace differ from it."""

    commit: str
    changed: bool


def find_revision(root: Path) -> Revision | None:
    """Return the revision checked out around a folder, or None if there is none or git fails."""
    # For a submodule, only its commit counts; asking about its work tree would run git inside it.
    status = "status --porcelain --untracked-files=no --ignore-submodules=dirty -- ."
    try:
        commit = run_git(root, "rev-parse", "--verify", "HEAD")
        changes = run_git(root, *status.split())
    except GitError:
        return None
    if commit.returncode:
        return None
    changed = not changes.returncode and bool(changes.stdout.strip())
    return Revision(commit.stdout.decode().strip(), changed)
