"""Revisions of git's, read from its objects: no index, work tree or hook has a part in it.

Inside a hook, git's environment names the index of the commit under way, and every command of git's
would work on that. So none of it is passed on.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pipeline.store.errors import PipelineError

_LINK, _EXECUTABLE, _SUBMODULE = "120000", "100755", "160000"
# Attributes for which a checkout writes other bytes than the object has, unless they have one of
# these values. Git LFS is a filter.
_CONVERTING = ("filter", "eol", "ident", "working-tree-encoding")
_AS_IT_IS = (b"unspecified", b"unset", b"lf")


class _File(NamedTuple):
    """A file of a revision; `path` is from the folder that is read."""

    mode: str
    blob: str
    path: str


def find_commit(root: Path, revision: str) -> str | None:
    """Return the commit that a revision names in the repository around `root`, None where it names
    none or there is no repository.

    Raises:
        PipelineError: there is no git, it refuses the repository, or the clone is shallow, so that
            most of its revisions are not there.
    """
    asked = ("--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    found = _git(root, "rev-parse", *asked)
    if not found.returncode:
        return found.stdout.decode().strip()
    if found.stderr and b"not a git repository" not in found.stderr:
        raise PipelineError(f"git: {_last_line(found.stderr)}")
    if _git(root, "rev-parse", "--is-shallow-repository").stdout.strip() == b"true":
        remedy = "fetch it first (`git fetch --unshallow`; in a workflow, `fetch-depth: 0`)"
        raise PipelineError(f"this clone is shallow and has no '{revision}'; {remedy}")
    return None


@contextmanager
def read_revision(root: Path, commit: str) -> Iterator[Path]:
    """Yield a temporary folder that holds what a checkout of a commit would put into `root`,
    without submodules. Raises PipelineError."""
    listed = _git(root, "ls-tree", "-r", "-z", "--full-tree", f"{commit}:{_prefix(root)}")
    if listed.returncode:
        raise _unreadable(commit, listed.stderr)
    files = [_parse(line) for line in listed.stdout.split(b"\0") if line]
    files = [each for each in files if each.mode != _SUBMODULE]
    with tempfile.TemporaryDirectory(prefix="pte-pipeline-") as folder:
        place = Path(folder) / "revision"
        place.mkdir()
        converted = _find_converted(root, commit, files)
        for file, content in _read_objects(root, commit, files):
            if file.path in converted and file.mode != _LINK:
                content = _convert(root, commit, file)
            _write(place / file.path, file.mode, content)
        yield place


def _prefix(root: Path) -> str:
    """Return the path of `root` in its repository, with a slash at its end; "" at the top."""
    return os.fsdecode(_git(root, "rev-parse", "--show-prefix").stdout.removesuffix(b"\n"))


def _parse(line: bytes) -> _File:
    facts, _, path = line.partition(b"\t")
    mode, _, blob = facts.decode().split(" ")
    return _File(mode, blob, os.fsdecode(path))


def _find_converted(root: Path, commit: str, files: Sequence[_File]) -> set[str]:
    """Return the paths of files that are other bytes in a work tree."""
    prefix = _prefix(root)
    paths = b"\0".join(os.fsencode(prefix + file.path) for file in files)
    asked = ("check-attr", "-z", "--stdin", *_CONVERTING)
    found = _git(root, *asked, given=paths, attributes=commit, top=True).stdout.split(b"\0")
    triples = zip(found[::3], found[1::3], found[2::3], strict=False)
    named = {os.fsdecode(path) for path, _, value in triples if value not in _AS_IT_IS}
    return {path.removeprefix(prefix) for path in named}


def _read_objects(root: Path, commit: str, files: Sequence[_File]) -> Iterator[tuple[_File, bytes]]:
    """Yield each file with its object's content. Raises PipelineError."""
    with tempfile.TemporaryFile() as asked:
        asked.writelines(f"{file.blob}\n".encode() for file in files)
        asked.seek(0)
        command, environment = _command(root, "cat-file", "--batch"), _environment()
        with subprocess.Popen(
            command, stdin=asked, stdout=subprocess.PIPE, env=environment
        ) as reader:
            assert reader.stdout is not None
            for file in files:
                head = reader.stdout.readline().split()
                if len(head) != 3:  # "missing", as in a shallow or partial clone
                    raise _unreadable(commit, f"{file.path}: git has no such object".encode())
                yield file, reader.stdout.read(int(head[2]))
                reader.stdout.read(1)


def _convert(root: Path, commit: str, file: _File) -> bytes:
    """Return a file as a checkout would write it. Raises PipelineError."""
    asked = ("cat-file", "--filters", f"--path={_prefix(root)}{file.path}", file.blob)
    done = _git(root, *asked, attributes=commit)
    if done.returncode:
        raise _unreadable(commit, done.stderr)
    return done.stdout


def _write(path: Path, mode: str, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode == _LINK:
        path.symlink_to(os.fsdecode(content))
        return
    path.write_bytes(content)
    if mode == _EXECUTABLE:
        path.chmod(0o755)


def _unreadable(commit: str, said: bytes) -> PipelineError:
    return PipelineError(f"{commit[:12]} can't be read: {_last_line(said)}")


def _last_line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines() or ["git failed"]
    return lines[-1].removeprefix("fatal: ")


# Calling git


def _git(
    root: Path, *arguments: str, given: bytes = b"", attributes: str = "", top: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """Run git. `attributes` is the commit whose attributes count, where git can do that (2.43)."""
    more = {"GIT_ATTR_SOURCE": attributes} if attributes else {}
    place = (
        Path(os.fsdecode(_git(root, "rev-parse", "--show-toplevel").stdout[:-1])) if top else root
    )
    return subprocess.run(
        _command(place, *arguments),
        input=given,
        capture_output=True,
        check=False,
        env={**_environment(), **more},
    )


def _command(root: Path, *arguments: str) -> list[str]:
    return ["git", "-C", str(root), *arguments]


@cache
def _environment() -> dict[str, str]:
    """Return the environment without what names a repository, an index or a work tree. Raises
    PipelineError where there is no git."""
    asked = ["git", "rev-parse", "--local-env-vars"]
    try:
        names = subprocess.run(asked, capture_output=True, check=False, text=True).stdout.split()
    except FileNotFoundError as error:
        raise PipelineError("git is not installed, and a revision was asked for") from error
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return {**kept, "GIT_OPTIONAL_LOCKS": "0"}
