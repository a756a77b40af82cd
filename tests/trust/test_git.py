"""An untrusted repository runs nothing, whatever its configuration names."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.store.git import GitError, run_git
from pipeline.store.revision import find_revision


def git(folder, *words):
    author = ("-c", "user.name=n", "-c", "user.email=n@example.org")
    command = ["git", *author, "-c", "protocol.file.allow=always", *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "ran"


@pytest.fixture
def payload(tmp_path, marker):
    """A program that records that it ran, whatever its arguments."""
    program = tmp_path / "payload"
    program.write_text(f"#!/bin/sh\necho x >> {marker}\ncat\n")
    program.chmod(0o755)
    return str(program)


def make_repository(root):
    root.mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    (root / "model.bin").write_text("weights")
    (root / "a.py").write_text("1")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    return root


def touch(root):
    """Make git check the content of each file again."""
    for path in root.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            os.utime(path, (1, 1))


def monitor(root, payload):
    git(root, "config", "core.fsmonitor", payload)


def hooks(root, payload):
    folder = root / ".git" / "hooks"
    folder.mkdir(exist_ok=True)
    for name in (
        "post-index-change",
        "post-checkout",
        "reference-transaction",
        "fsmonitor-watchman",
    ):
        shutil.copy(payload, folder / name)


def hooks_elsewhere(root, payload):
    hooks(root, payload)
    (root / ".git" / "hooks").rename(root / "hooks")
    git(root, "config", "core.hooksPath", str(root / "hooks"))


def filters(root, payload):
    """Set up filters as git-lfs does, one of them with a name that `git -c` can't express."""
    (root / ".gitattributes").write_text("*.bin filter=lfs\n*.py filter=odd=name.x\n")
    for driver in ("lfs", "odd=name.x"):
        for command in ("clean", "smudge"):
            git(root, "config", f"filter.{driver}.{command}", payload)
        git(root, "config", f"filter.{driver}.required", "true")


def filter_process(root, payload):
    (root / ".gitattributes").write_text("* filter=lfs\n")
    git(root, "config", "filter.lfs.process", payload)


def differences(root, payload):
    (root / ".gitattributes").write_text("* diff=odd\n")
    for name in ("diff.external", "diff.odd.textconv", "diff.odd.command", "core.pager"):
        git(root, "config", name, payload)


def submodule(root, payload):
    inner = make_repository(root.parent / "inner")
    git(root, "submodule", "add", "-q", str(inner), "part")
    git(root, "commit", "-qm", "two")
    git(root / "part", "config", "core.fsmonitor", payload)
    (root / "part" / "a.py").write_text("2")


def included(root, payload):
    (root / ".git" / "more").write_text(f"[core]\n\tfsmonitor = {payload}\n")
    git(root, "config", "include.path", "more")


def missing_objects(root, payload):
    """Set up a repository whose missing objects would be fetched by a command."""
    git(root, "config", "remote.origin.url", f"ext::{payload}")
    git(root, "config", "remote.origin.promisor", "true")
    git(root, "config", "remote.origin.partialclonefilter", "blob:none")
    git(root, "config", "extensions.partialClone", "origin")
    git(root, "config", "protocol.ext.allow", "always")
    git(root, "config", "core.repositoryFormatVersion", "1")
    tree = subprocess.run(
        ["git", "rev-parse", "HEAD^{tree}"], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()
    (root / ".git" / "objects" / tree[:2] / tree[2:]).unlink()


ATTACKS = (
    monitor,
    hooks,
    hooks_elsewhere,
    filters,
    filter_process,
    differences,
    submodule,
    included,
    missing_objects,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_no_command_of_a_repository_runs(tmp_path, payload, marker, attack):
    root = make_repository(tmp_path / "repository")
    attack(root, payload)
    marker.unlink(missing_ok=True)
    touch(root)
    assert find_revision(root) is not None
    run_git(root, "cat-file", "blob", "HEAD:model.bin")
    run_git(root, "checkout-index", "--all", "--force")
    assert not marker.exists()


def embed(root, payload, bare):
    """Make `root` a bare repository of plain files inside another one's work tree."""
    make_repository(root.parent)
    hidden = make_repository(root.parent.parent / "hidden")
    (hidden / ".git").rename(root)
    (root / "config").write_text(
        "[core]\n\trepositoryformatversion = 0\n"
        f"\tbare = {bare}\n\tworktree = .\n\tfsmonitor = {payload}\n"
    )


@pytest.mark.parametrize("bare", ["false", "true"])
@pytest.mark.parametrize("place", ["", "models"])
def test_plain_files_are_no_repository(tmp_path, payload, marker, bare, place):
    shop = tmp_path / "outer" / "shop"
    embed(shop, payload, bare)
    (shop / place).mkdir(exist_ok=True)
    assert find_revision(shop / place) is None
    with pytest.raises(GitError, match="shop/ looks like a bare repository, which is not read"):
        run_git(shop / place, "status")
    assert not marker.exists()


def test_a_revision_is_that_of_the_work_tree(tmp_path):
    root = make_repository(tmp_path / "repository")
    (root / "shop").mkdir()
    revision = find_revision(root / "shop")
    assert len(revision.commit) == 40 and not revision.changed
    (root / "a.py").write_text("2")
    assert find_revision(root).changed
    git(root, "worktree", "add", "-q", str(tmp_path / "tree"))
    assert find_revision(tmp_path / "tree") == revision
    assert find_revision(Path("/")) is None


def test_variables_name_no_other_repository(tmp_path, monkeypatch, payload, marker):
    root = make_repository(tmp_path / "repository")
    revision = find_revision(root)
    other = make_repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / "none"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", payload)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", payload)
    assert find_revision(root) == revision
    assert not marker.exists()


def test_git_of_the_workspace_is_not_run(tmp_path, monkeypatch, payload, marker):
    root = make_repository(tmp_path / "repository")
    shutil.copy(payload, root / "git")
    monkeypatch.chdir(root)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.pathsep}{os.environ['PATH']}")
    assert find_revision(root) is not None
    assert not marker.exists()


def test_a_call_that_hangs_ends_with_a_line(tmp_path, monkeypatch):
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 20\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(GitError, match=r"git config took longer than 0 s"):
        monkeypatch.setattr("pipeline.store.git.LIMIT", 0.2)
        run_git(tmp_path, "status")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(GitError, match="git is not installed"):
        run_git(tmp_path, "status")
