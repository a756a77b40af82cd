"""Revisions of git, checked out into a separate folder by git's plumbing.

The repository's index, work tree, hooks and filters aren't used (`store.git`); files of Git LFS are
filled in from fetched objects. Git itself refuses names that lead out of the folder, and doesn't
write through links in the revision.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.features.gates.lfs import fill_pointers
from pipeline.store.errors import PipelineError
from pipeline.store.git import run_git
from pipeline.store.scratch import scratch_folder

_LIMIT = 600.0  # seconds, to write all files of a large repository


class MissingFolderError(PipelineError):
    """A commit has no folder at the place of the workspace."""


def find_commit(root: Path, revision: str) -> str | None:
    """Return the commit that a revision names in the repository around `root`.

    Returns None if it names none or there is no repository.

    Raises:
        PipelineError: git is missing, it refuses the repository, or the clone is shallow and so
            lacks most of its revisions.
    """
    words = ("--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    answer = run_git(root, "rev-parse", *words)
    if not answer.returncode:
        return answer.stdout.decode().strip()
    if answer.stderr and b"not a git repository" not in answer.stderr:
        raise PipelineError(f"git: {_last_line(answer.stderr)}")
    if run_git(root, "rev-parse", "--is-shallow-repository").stdout.strip() == b"true":
        remedy = (
            "fetch it first (`git fetch --unshallow`; in a workflow, `fetch-depth: 0`)"
        )
        raise PipelineError(f"this clone is shallow and has no '{revision}'; {remedy}")
    return None


@contextmanager
def read_revision(root: Path, commit: str) -> Iterator[Path]:
    """Yield a temporary folder with the files of a commit.

    These are the files that a checkout would put into `root`, without submodules. Raises
    PipelineError, or MissingFolderError if the commit has no such folder.
    """
    prefix = os.fsdecode(
        run_git(root, "rev-parse", "--show-prefix").stdout.removesuffix(b"\n")
    )
    with scratch_folder("pte-pipeline-diff-") as folder:
        tree = folder / "revision"
        tree.mkdir()
        places = {"GIT_INDEX_FILE": str(folder / "index"), "GIT_WORK_TREE": str(tree)}

        def run(*arguments: str, text: bytes = b"") -> bytes:
            answer = run_git(root, *arguments, text=text, places=places, limit=_LIMIT)
            if answer.returncode:
                raise PipelineError(_unreadable(commit, _last_line(answer.stderr)))
            return answer.stdout

        # The whole commit, since attributes of parent folders determine how a file is written.
        run("read-tree", commit)
        names = run("ls-files", "-z", "--", f":(top,literal){prefix}")
        if prefix and not names:
            raise MissingFolderError(_unreadable(commit, f"it has no folder {prefix}"))
        run("checkout-index", "-z", "--stdin", text=names)
        fill_pointers(tree, _find_lfs(root))
        yield tree / prefix


def _find_lfs(root: Path) -> Path:
    """Return the folder of fetched Git LFS objects, whether it exists or not."""
    answer = run_git(root, "rev-parse", "--git-common-dir")
    common = os.fsdecode(answer.stdout.removesuffix(b"\n"))
    return root / common / "lfs" / "objects"


def _unreadable(commit: str, why: str) -> str:
    return f"{commit[:12]} can't be read: {why}"


def _last_line(message: bytes) -> str:
    lines = message.decode(errors="replace").strip().splitlines() or ["git failed"]
    return lines[-1].removeprefix("fatal: ").removeprefix("error: ")
