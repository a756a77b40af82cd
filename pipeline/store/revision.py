"""The commit that a workspace is checked out at, for records of where a build came from."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple


class Revision(NamedTuple):
    """A commit, and whether tracked files of the workspace differ from it."""

    commit: str
    changed: bool


def find_revision(root: Path) -> Revision | None:
    """Return the revision that is checked out around a folder; None where there is none, or no
    git."""
    # Variables such as GIT_INDEX_FILE, in a hook, name another repository or index.
    environment = {n: v for n, v in os.environ.items() if not n.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"

    def ask(*arguments: str) -> str | None:
        command = ["git", "-C", str(root), *arguments]
        try:
            run = subprocess.run(
                command,
                capture_output=True,
                check=False,
                text=True,
                env=environment,
                timeout=10,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return run.stdout.strip() if run.returncode == 0 else None

    if not (commit := ask("rev-parse", "--verify", "HEAD")):
        return None
    return Revision(
        commit, bool(ask("status", "--porcelain", "--untracked-files=no", "--", "."))
    )
