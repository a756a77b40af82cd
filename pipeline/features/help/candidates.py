"""Finds the words that complete a command line, for the Tab key of a shell.

The shell blocks on it at each Tab, so it imports neither doit nor pydantic unless a config has
changed since the last run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from pipeline.cli.commands import ANYWHERE, GROUPS, VERBS, Command
from pipeline.features.help.error_codes import read_errors
from pipeline.features.help.pages import DOIT_COMMANDS, find_options, read_keys
from pipeline.plan.config_cache import ConfigCache
from pipeline.plan.export_parameters import parse_export
from pipeline.store.errors import PipelineError
from pipeline.store.workspace import open_workspace

COMMANDS = {**GROUPS, **VERBS, **ANYWHERE, **DOIT_COMMANDS}


def print_candidates(words: Sequence[str], root: Path | None) -> None:
    """Print each word that can complete the last one, followed by a tab and its meaning.

    Args:
        words: the command line without the program; the last word may be empty.
        root: the workspace's folder, or None outside a workspace.
    """
    *before, last = words or [""]
    for word, meaning in find_candidates(before, last, root).items():
        if word.startswith(last):
            print(f"{word}\t{meaning}")


def find_candidates(
    before: Sequence[str], last: str, root: Path | None
) -> dict[str, str]:
    """Return the words that can follow `before`, with their meanings.

    Args:
        last: the prefix of the next word, as typed so far.
    """
    names = [word for word in before if word.partition(":")[0] in COMMANDS]
    command = COMMANDS[names[0].partition(":")[0]] if names else None
    if last.startswith("-"):
        return _options_of(command or GROUPS["lower"])
    words = {}
    if command is None:
        words = {name: command.summary for name, command in COMMANDS.items()}
    elif command.name == "help":
        keys = {path: facts["meaning"] for path, facts in read_keys().items()}
        codes = {code: facts["title"] for code, facts in read_errors().items()}
        summaries = {name: command.summary for name, command in COMMANDS.items()}
        return {**summaries, **keys, **codes}
    elif command.name == "completion":
        return {shell.strip(): "a shell" for shell in command.words.split("|")}
    if root is not None and (command is None or _takes_packages(command)):
        words |= _names_of_workspace(root, command, last)
    return words


def _options_of(command: Command) -> dict[str, str]:
    options = dict.fromkeys(("-h", "--help"), "show the help of this command")
    for label, text in find_options(command).items():
        for option in label.split(", "):  # -q, --quiet
            options[option.split()[0]] = text
    return options


def _takes_packages(command: Command) -> bool:
    return "package" in command.words or "model" in command.words


def _names_of_workspace(
    root: Path, command: Command | None, last: str
) -> Mapping[str, str]:
    """Return packages, the methods of one after a slash, and the models that can be exported."""
    try:
        configs = ConfigCache(open_workspace(root))
        if "/" in last and (command is None or "/method" in command.words):
            return dict(_methods_of(configs, last.partition("/")[0]))
        names = dict.fromkeys(configs.packages, "a package")
        if command is not None and command.name == "export":
            for package in configs.packages:
                summary = configs.summary(package)
                if summary is not None:
                    names[parse_export(summary.export)[0]] = "a model"
    except (OSError, PipelineError):  # the command itself reports it
        return {}
    return names


def _methods_of(configs: ConfigCache, package: str) -> Iterator[tuple[str, str]]:
    if package in configs.packages:
        summary = configs.summary(package)
        for method in chain.from_iterable(summary.units) if summary else ():
            yield f"{package}/{method}", f"a method of {package}"
