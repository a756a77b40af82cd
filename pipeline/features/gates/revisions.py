"""Revisions of git, checked out into a folder of their own by git's plumbing.

The repository's index, work tree and hooks have no part in it. Git itself refuses names that lead
out of the folder, and writes through no link of the revision's. Inside a hook, git's environment
names the index of the commit under way, so none of it is passed on.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from pipeline.store.errors import PipelineError

# Settings of the user's that would leave files out, or run programs beside the filters.
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.sparseCheckout=false",
    "core.fsmonitor=false",
)


class MissingFolderError(PipelineError):
    """A commit has no folder at the place of the workspace."""


def find_commit(root: Path, revision: str) -> str | None:
    """Return the commit that a revision names in the repository around `root`, None where it names
    none or there is no repository.

    Raises:
        PipelineError: there is no git, it refuses the repository, or the clone is shallow, so that
            most of its revisions are not there.
    """
    words = ("--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    answer = _git(root, "rev-parse", *words)
    if not answer.returncode:
        return answer.stdout.decode().strip()
    if answer.stderr and b"not a git repository" not in answer.stderr:
        raise PipelineError(f"git: {_last_line(answer.stderr)}")
    if _git(root, "rev-parse", "--is-shallow-repository").stdout.strip() == b"true":
        remedy = (
            "fetch it first (`git fetch --unshallow`; in a workflow, `fetch-depth: 0`)"
        )
        raise PipelineError(f"this clone is shallow and has no '{revision}'; {remedy}")
    return None


@contextmanager
def read_revision(root: Path, commit: str) -> Iterator[Path]:
    """Yield a temporary folder that holds what a checkout of a commit would put into `root`,
    without submodules. Raises PipelineError, and MissingFolderError where it has no such folder."""
    prefix = os.fsdecode(
        _git(root, "rev-parse", "--show-prefix").stdout.removesuffix(b"\n")
    )
    with tempfile.TemporaryDirectory(prefix="pte-pipeline-") as folder:
        tree = Path(folder) / "revision"
        tree.mkdir()
        places = {
            "GIT_INDEX_FILE": str(Path(folder) / "index"),
            "GIT_WORK_TREE": str(tree),
        }

        def run(*arguments: str, text: bytes = b"") -> bytes:
            answer = _git(root, *arguments, text=text, places=places)
            if answer.returncode:
                raise PipelineError(_unreadable(commit, _last_line(answer.stderr)))
            return answer.stdout

        # All of the commit, since attributes of folders above decide how a file is written.
        run("read-tree", commit)
        names = run("ls-files", "-z", "--", f":(top,literal){prefix}")
        if prefix and not names:
            raise MissingFolderError(_unreadable(commit, f"it has no folder {prefix}"))
        run("checkout-index", "-z", "--stdin", text=names)
        yield tree / prefix


def _unreadable(commit: str, why: str) -> str:
    return f"{commit[:12]} can't be read: {why}"


def _last_line(message: bytes) -> str:
    lines = message.decode(errors="replace").strip().splitlines() or ["git failed"]
    return lines[-1].removeprefix("fatal: ").removeprefix("error: ")


def _git(
    root: Path,
    *arguments: str,
    text: bytes = b"",
    places: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder; `places` are variables that name its index and work tree."""
    settings: list[str] = []
    for setting in _SETTINGS:
        settings += ["-c", setting]
    return subprocess.run(
        ["git", "-C", str(root), *settings, *arguments],
        input=text,
        capture_output=True,
        check=False,
        env={**_environment(), **(places or {})},
    )


@cache
def _environment() -> dict[str, str]:
    """Return the environment without what names a repository, an index or a work tree. Raises
    PipelineError where there is no git."""
    command = ["git", "rev-parse", "--local-env-vars"]
    try:
        names = subprocess.run(
            command, capture_output=True, check=False, text=True
        ).stdout.split()
    except FileNotFoundError as error:
        raise PipelineError(
            "git is not installed, and a revision was asked for"
        ) from error
    environment = {
        name: value for name, value in os.environ.items() if name not in names
    }
    return {**environment, "GIT_OPTIONAL_LOCKS": "0"}
