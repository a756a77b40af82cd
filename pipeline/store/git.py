"""Run git on a repository that a stranger may have made, so that nothing of it runs.

What a repository holds can name commands: its configuration a file-system monitor, hooks, filters,
pagers and remote helpers, and a folder of plain files can pose as a bare repository with a
configuration of its own. A call here takes none of them: commands of filters are emptied, every
transport is refused, and repositories that no `.git` leads to are left alone
(https://git-scm.com/docs/git-config, `safe.bareRepository`).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.store.errors import PipelineError

# Seconds of a call that is not said to take longer.
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
# Variables of git's that say whose repositories are trusted, and where to look for one. No other
# is passed on: in a hook, they name another index or work tree.
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
    """Git is not there, or took too long."""


def run_git(
    root: Path,
    *arguments: str,
    text: bytes = b"",
    places: Mapping[str, str] | None = None,
    limit: float = LIMIT,
) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder, and return what came of it.

    Args:
        text: its standard input.
        places: variables that name its index and work tree.
        limit: in seconds.

    Raises:
        GitError: there is no git, it took longer, or the folder is inside of what poses as a
            repository.
    """
    if pretender := _find_pretender(root):
        raise GitError(
            f"git: {pretender.name}/ looks like a bare repository, which is not read"
        )
    settings = {**_SETTINGS, **_empty_filters(root)}
    return _run(root, settings, arguments, text, places or {}, limit)


def _find_pretender(root: Path) -> Path | None:
    """Return the innermost folder that git would take for a bare repository, if it is at or above
    `root` and below the work tree. Releases of git before 2.38 know no `safe.bareRepository`."""
    folder = root.resolve()
    for place in (folder, *folder.parents):
        if (place / ".git").exists():
            return None
        if all((place / member).exists() for member in _MEMBERS_OF_BARE):
            return place
    return None


def _empty_filters(root: Path) -> dict[str, str]:
    """Return settings by which no filter of the repository, nor of the user, runs a command."""
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
    """Yield the variables that give git these settings. Names of filters may hold any character,
    `=` too, which `git -c` ends a name at."""
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
