"""Runs git on a repository that a stranger may have made, without running any of its commands.

A repository can name commands to run: its configuration can set a file-system monitor, hooks,
filters, pagers and remote helpers, and a folder of plain files can pose as a bare repository with
its own configuration. The calls here run none of them: filter commands are emptied, every transport
is refused, and repositories without a `.git` that leads to them are left alone
(https://git-scm.com/docs/git-config, `safe.bareRepository`).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.store.errors import PipelineError

# The default time limit of a call in seconds.
LIMIT = 20
_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "core.sparseCheckout": "false",
    "credential.helper": "",
    "diff.external": "",
    "protocol.allow": "never",
    "safe.bareRepository": "explicit",
    "submodule.recurse": "false",
}
# The variables that tell git which repositories to trust, and where to look for one. No other git
# variables are passed on: in a hook, they name another index or work tree.
_PASSED_ON = frozenset(
    [
        "GIT_CEILING_DIRECTORIES",
        "GIT_CONFIG_GLOBAL",
        "GIT_CONFIG_NOSYSTEM",
        "GIT_CONFIG_SYSTEM",
        "GIT_DISCOVERY_ACROSS_FILESYSTEM",
        "GIT_EXEC_PATH",
        "HOME",
        "LANG",
        "LC_ALL",
        "PATH",
        "TMPDIR",
        "XDG_CONFIG_HOME",
    ]
)
_MEMBERS_OF_BARE = ("HEAD", "objects", "refs")
_FILTER_COMMANDS = ("clean", "smudge", "process")


class GitError(PipelineError):
    """Git is not installed, failed to run or timed out, or the repository is not safe to read."""


def run_git(
    root: Path,
    *arguments: str,
    text: bytes = b"",
    places: Mapping[str, str] | None = None,
    limit: float = LIMIT,
) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder, and return the completed process.

    Args:
        text: the standard input.
        places: variables that name git's index and work tree.
        limit: the time limit in seconds.

    Raises:
        GitError: git isn't installed or exceeds the limit, or the folder is inside one that poses
            as a repository.
    """
    if pretender := _find_pretender(root):
        raise GitError(
            f"git: {pretender.name}/ looks like a bare repository, which is not read"
        )
    settings = {**_SETTINGS, **_empty_filters(root)}
    return _run(root, settings, arguments, text, places or {}, limit)


def _find_pretender(root: Path) -> Path | None:
    """Return the innermost folder that git would take for a bare repository, or None.

    Only folders at or above `root` and below the work tree are considered. Releases of git before
    2.38 don't know `safe.bareRepository`.
    """
    folder = root.resolve()
    for place in (folder, *folder.parents):
        if (place / ".git").exists():
            return None
        if all((place / member).exists() for member in _MEMBERS_OF_BARE):
            return place
    return None


def _empty_filters(root: Path) -> dict[str, str]:
    """Return settings that keep filters of the repository and the user from running commands."""
    listing = ("config", "-z", "--name-only", "--get-regexp", r"^filter\.")
    names = _run(root, _SETTINGS, listing, b"", {}, LIMIT).stdout.split(b"\0")
    settings = {}
    for name in filter(None, names):
        driver = os.fsdecode(name).rpartition(".")[0]
        for command in _FILTER_COMMANDS:
            settings[f"{driver}.{command}"] = ""
        settings[f"{driver}.required"] = "false"
    return settings


def _run(
    root: Path,
    settings: Mapping[str, str],
    arguments: tuple[str, ...],
    text: bytes,
    places: Mapping[str, str],
    limit: float,
) -> subprocess.CompletedProcess[bytes]:
    environment = {**_environment(), **dict(_number(settings)), **places}
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments],
            input=text,
            capture_output=True,
            check=False,
            env=environment,
            timeout=limit,
        )
    except FileNotFoundError as error:
        raise GitError("git is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git {arguments[0]} took longer than {limit:.0f} s") from error
    except OSError as error:
        raise GitError(f"git can't be run: {error.strerror or error}") from error


def _number(settings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the environment variables that pass these settings to git.

    The name of a filter may contain any character, even `=`, at which `git -c` would end the name.
    """
    yield "GIT_CONFIG_COUNT", str(len(settings))
    for number, (name, value) in enumerate(settings.items()):
        yield f"GIT_CONFIG_KEY_{number}", name
        yield f"GIT_CONFIG_VALUE_{number}", value


def _environment() -> dict[str, str]:
    environment = {
        name: value for name, value in os.environ.items() if name in _PASSED_ON
    }
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    environment["PATH"] = os.pathsep.join(filter(os.path.isabs, folders))
    return {
        **environment,
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
    }
