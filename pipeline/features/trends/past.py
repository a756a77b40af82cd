"""Reads the figures accepted at earlier commits: the revisions of a baseline, from git."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline.moments import call_all
from pipeline.store.errors import PipelineError
from pipeline.store.git import run_git
from pipeline.store.workspace import Workspace

_MOST = 12  # commits: parsing a baseline takes some milliseconds


def read_accepted_figures(
    workspace: Workspace, package: str
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield the latest commits that changed a package's baseline, the oldest first.

    Each comes with its time in seconds and the figures that it accepted. Commits whose baseline
    can't be read are skipped.
    """
    path = workspace.baseline(package).relative_to(workspace.root).as_posix()
    words = ("log", "-n", str(_MOST), "--format=%H %ct", "--", path)
    try:
        log = run_git(workspace.root, *words).stdout.decode().split()
    except PipelineError:  # no git, or no repository that it trusts
        return
    commits = list(zip(log[::2], map(int, log[1::2]), strict=True))
    for commit, seconds in reversed(commits):
        try:
            blob = run_git(workspace.root, "show", f"{commit}:./{path}")
            if not blob.returncode:
                for figures in call_all("parse_baseline", blob.stdout, path):
                    yield commit, seconds, figures
        except PipelineError:  # an unknown form, or removed by that commit
            continue
