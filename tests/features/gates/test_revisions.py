"""Revisions are read from git's objects, whatever git's environment says."""

import hashlib
import os
import stat
import subprocess
import sys

import pytest

from pipeline.features.gates.revisions import find_commit, read_revision
from pipeline.store.errors import PipelineError


def git(folder, *words, **more):
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, **more
    )
    return done.stdout.decode().strip()


def bytes_below(folder):
    """Return the bytes of every file below a folder."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder): path.read_bytes() for path in paths}


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A workspace in a subfolder of a repository with two commits and a staged change."""
    root = tmp_path / "repository"
    shop = root / "shop"
    (shop / "models").mkdir(parents=True)
    git(root, "init", "-q")
    (root / ".gitattributes").write_text("*.crlf eol=crlf\n*.big filter=big\n")
    git(root, "config", "filter.big.smudge", "sed s/pointer/weights/")
    git(root, "config", "filter.big.clean", "sed s/weights/pointer/")
    (root / "outside.txt").write_text("no part of the workspace")
    (shop / "a.crlf").write_bytes(b"1\r\n2\r\n")
    (shop / "models" / "net.big").write_bytes(b"weights\n")
    (shop / "models" / "new\nline \u00e9.py").write_bytes(b"\x00\xff old")
    (shop / "models" / "run.sh").write_bytes(b"")
    (shop / "models" / "run.sh").chmod(0o755)
    (shop / "link").symlink_to("models/run.sh")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    (shop / "models" / "new\nline \u00e9.py").write_text("new")
    git(root, "commit", "-qam", "two")
    (shop / "staged.py").write_text("staged")
    git(root, "add", "-A")
    return shop


def check_first_commit(shop):
    before = bytes_below(shop.parent)
    commit = find_commit(shop, "HEAD~1")
    with read_revision(shop, commit) as place:
        found = bytes_below(place)
        assert (place / "link").readlink() == (shop / "link").readlink()
        assert (place / "models" / "run.sh").stat().st_mode & stat.S_IXUSR
    assert {str(path): content for path, content in found.items()} == {
        "a.crlf": b"1\r\n2\r\n",
        "models/net.big": b"pointer\n",  # no filter runs
        "models/new\nline \u00e9.py": b"\x00\xff old",
        "models/run.sh": b"",
    }
    assert not place.exists()
    assert bytes_below(shop.parent) == before  # index, work tree and all other git files


def test_a_revision_is_what_a_checkout_would_be(repository):
    check_first_commit(repository)


def test_files_of_git_lfs_are_those_that_were_fetched(tmp_path):
    """Running git's LFS filter would query a server that the revision names."""
    (root := tmp_path / "repository").mkdir()
    git(root, "init", "-q")
    contents = {"here.pt2": b"weights", "damaged.pt2": b"other weights", "gone.pt2": b"no weights"}
    for name, content in contents.items():
        oid = hashlib.sha256(content).hexdigest()
        (root / name).write_text(
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n"
        )
        place = root / ".git" / "lfs" / "objects" / oid[:2] / oid[2:4] / oid
        place.parent.mkdir(parents=True)
        if name != "gone.pt2":
            place.write_bytes(content if name == "here.pt2" else b"x" * len(content))
    (root / ".gitattributes").write_text("*.pt2 filter=lfs\n")
    (root / ".lfsconfig").write_text("[lfs]\n\turl = http://127.0.0.1:9/\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    git(root, "config", "filter.lfs.smudge", f"touch {tmp_path}/ran")
    git(root, "config", "filter.lfs.required", "true")
    with read_revision(root, find_commit(root, "HEAD")) as place:
        assert (place / "here.pt2").read_bytes() == b"weights"
        for name in ("damaged.pt2", "gone.pt2"):
            assert (place / name).read_bytes() == (root / name).read_bytes()
        assert len([*place.iterdir()]) == 5
    assert not (tmp_path / "ran").exists()


def commit_of(root, entries):
    """Return a commit whose top folder has these entries, which git itself refuses to write."""
    tree = b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(d) for mode, name, d in entries)
    words = ("hash-object", "-t", "tree", "-w", "--literally", "--stdin")
    return git(root, "commit-tree", "-m", "hostile", git(root, *words, input=tree))


@pytest.mark.parametrize("names", [("..",), ("../outside.txt",), ("link", "folder")])
def test_a_hostile_revision_writes_nothing_outside_of_its_folder(tmp_path, monkeypatch, names):
    """A name leads out of the folder, or a link does and a folder of the same name follows."""
    (places := tmp_path / "places").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(places))
    (root := tmp_path / "repository").mkdir()
    git(root, "init", "-q")
    blob = git(root, "hash-object", "-w", "--stdin", input=b"hostile")
    folder = git(root, "mktree", input=f"100644 blob {blob}\toutside.txt".encode())
    target = git(root, "hash-object", "-w", "--stdin", input=str(tmp_path).encode())
    entries = {
        "..": ("40000", "..", folder),
        "../outside.txt": ("100644", "../outside.txt", blob),
        "link": ("120000", "link", target),
        "folder": ("40000", "link", folder),
    }
    commit = commit_of(root, [entries[name] for name in names])
    try:
        with read_revision(root, commit) as place:
            assert {path.parents[1] for path in tmp_path.rglob("outside.txt")} <= {place}
    except PipelineError as error:
        assert "can't be read: invalid path '../outside.txt'" in str(error)
    else:
        assert names == ("link", "folder")  # git accepts one of them
    assert not [*tmp_path.rglob("outside.txt")]


def test_what_a_hook_inherits_changes_nothing(repository, monkeypatch):
    other = repository.parent.parent / "other"
    other.mkdir()
    git(other, "init", "-q")
    for name, value in {
        "GIT_DIR": other / ".git",
        "GIT_WORK_TREE": other,
        "GIT_INDEX_FILE": repository.parent / ".git" / "index",
        "GIT_PREFIX": "elsewhere/",
    }.items():
        monkeypatch.setenv(name, str(value))
    check_first_commit(repository)


def test_it_works_in_a_hook(repository):
    """A pre-commit hook reads a revision; the commit then contains just the staged changes."""
    root = repository.parent
    hook = root / ".git" / "hooks" / "pre-commit"
    code = (
        "from pathlib import Path; from pipeline.features.gates.revisions import *; "
        "root = Path.cwd() / 'shop'; commit = find_commit(root, 'HEAD~1')\n"
        "with read_revision(root, commit) as place: print(sorted(place.iterdir()))"
    )
    python = f'{sys.executable} -c "{code}"'
    hook.write_text(f"#!/bin/sh\nset -e\n{python}\n")
    hook.chmod(0o755)
    where = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
    git(root, "commit", "-qm", "three", env={**os.environ, "PYTHONPATH": where})
    assert git(root, "show", "--stat", "--format=", "HEAD").splitlines()[0].split()[0] == (
        "shop/staged.py"
    )
    assert git(root, "status", "--porcelain") == ""


def test_what_is_no_revision(repository, tmp_path):
    assert find_commit(repository, "nonsense") is None
    assert find_commit(repository, "--help") is None
    assert find_commit(tmp_path, "HEAD") is None
    shallow = tmp_path / "shallow"
    url = f"file://{repository.parent}"
    git(tmp_path, "clone", "-q", "--depth", "1", url, str(shallow))
    with pytest.raises(PipelineError, match="shallow and has no 'HEAD~1'; fetch it first"):
        find_commit(shallow, "HEAD~1")


def test_a_revision_without_the_folder(repository):
    (repository.parent / "later").mkdir()
    with (
        pytest.raises(PipelineError, match="can't be read: "),
        read_revision(repository.parent / "later", find_commit(repository, "HEAD")),
    ):
        pass
