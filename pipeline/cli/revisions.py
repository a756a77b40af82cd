"""The files of another revision of a workspace, for as long as they are looked at."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.store.errors import PipelineError


def commit_of(root: Path, revision: str) -> str | None:
    """The commit that a revision of git's names, in short; None where it names none."""
    asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    found = _git(root, *asked)
    return found.stdout.strip() if found.returncode == 0 else None


@contextmanager
def checked_out(root: Path, commit: str) -> Iterator[Path]:
    """The root of a workspace as it was at a commit, in a worktree of git's that goes at the end of
    the block. No hook runs. Raises PipelineError."""
    inside = _git(root, "rev-parse", "--show-prefix").stdout.strip()
    with tempfile.TemporaryDirectory(prefix="pte-pipeline-") as folder:
        place = Path(folder) / "checkout"
        quiet = ("-c", "core.hooksPath=/dev/null", "worktree")
        made = _git(root, *quiet, "add", "--quiet", "--detach", str(place), commit)
        if made.returncode:
            lines = made.stderr.strip().splitlines() or ["git worktree failed"]
            raise PipelineError(f"{commit[:12]} cannot be checked out: {lines[-1]}")
        try:
            yield place / inside
        finally:
            _git(root, *quiet, "remove", "--force", str(place))


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise PipelineError("git is not installed, and a revision was asked for") from error
