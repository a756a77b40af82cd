"""The pages of `doit help`: an overview, and a page per command, config key and error."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from pipeline.cli.commands import ANYWHERE, GROUPS, VERBS, Command, usage
from pipeline.features.help.error_codes import describe_code
from pipeline.moments import find_functions

# The doit commands that a workspace needs, with the options that matter there.
DOIT_COMMANDS = {
    command.name: command
    for command in (
        Command(
            "list",
            "list the tasks",
            "[package | task ...]",
            {
                "all": "also list the tasks of packages and methods",
                "json": "list the packages instead, in one line of JSON",
            },
            examples=(("doit list --all", "every task of the workspace"),),
        ),
        Command(
            "info",
            "show whether one task is up to date, and why",
            "package | task",
            examples=(
                ("doit info lower:vision", "why the package would be lowered again"),
            ),
        ),
        Command(
            "clean",
            "remove the files that builds left in build/",
            "[package | task ...]",
            {
                "orphans": "remove the output of packages that no longer have a config",
                "dry-run": "print what would be removed",
            },
            examples=(("doit clean vision", "the files of one package"),),
        ),
        Command(
            "forget",
            "clear doit's records of when other tasks of dodo.py ran",
            "[task ...]",
        ),
        Command(
            "help",
            "show all commands, one of them, a config key, or an error",
            "[command | config key | error code]",
            examples=(
                ("doit help lower", "a command"),
                ("doit help validate.atol", "a key of package configs"),
                ("doit help PTE101", "an error, by the code at the end of its message"),
            ),
        ),
    )
}
_RUN_OPTIONS = {
    "-n NUMBER": "number of worker processes; by default one per core",
    "-a": "run the actions again, and ignore the store",
    "-v": "add a line for each method to the table",
    "--allow VERDICTS": "treat these verdicts as success: not-judged,not-run",
}
_WIDTH = 100
_PROGRAM = "pte"  # the command line's other name
_KEYS = Path(__file__).with_name("config_keys.json")
_DOIT = re.compile(r"\bdoit\b(?= |$)")  # as written in command lines


def find_page(words: Sequence[str], program: str) -> list[str] | None:
    """Return the lines of the help page that a command line asks for.

    Args:
        words: the command line, without options.
        program: the name that the program was started by, which the examples use.

    Returns:
        The overview of all commands if there are no words; None if no word is a command and the
        first one is neither a config key nor an error code.
    """
    commands = {**DOIT_COMMANDS, **GROUPS, **VERBS, **ANYWHERE}
    names = [word.partition(":")[0] for word in words]
    names = [name for name in names if name in commands]
    if names:
        lines = list(_describe(commands[names[0]]))
    elif words:
        key = find_key(words[0])
        if not key:
            return describe_code(words[0])
        lines = list(_describe_key(key))
    else:
        lines = list(_overview())
    if program != _PROGRAM:  # such as `python -m doit`
        return lines
    return [_DOIT.sub(program, line) for line in lines]


def suggest_page(word: str) -> str:
    """Return a hint that names the closest page to a word, or "" if none is close."""
    names = [*DOIT_COMMANDS, *GROUPS, *VERBS, *ANYWHERE, *read_keys()]
    endings = {path.rpartition(".")[2] for path in read_keys()}
    near = get_close_matches(word, names, n=1)
    near += get_close_matches(word, sorted(filter(find_key, endings)), n=1)
    return f"did you mean '{near[0]}'? `doit help` lists all commands" if near else ""


def _overview() -> Iterator[str]:
    """Yield the lines of `doit help`."""
    yield "doit builds ExecuTorch packages: each config in partition_configs/ makes one, in build/."
    yield ""
    yield "  doit                 lower and validate all packages"
    verbs = {**VERBS, **ANYWHERE}
    init = {name: verbs.pop(name) for name in ("init",) if name in verbs}
    groups = {
        "Build": GROUPS,
        "Inspect, tune and publish": verbs,
        "Workspace": {**init, **DOIT_COMMANDS},
    }
    for title, group in groups.items():
        yield ""
        yield f"{title}:"
        for command in group.values():
            yield f"  doit {command.name:<15} {command.summary}"
    yield ""
    yield "`doit COMMAND --help` shows its options and examples. A name is a package, or one of its"
    yield "methods (vision/classify), or a pattern ('vision*'). Other tasks of dodo.py work too."


def _describe(command: Command) -> Iterator[str]:
    """Yield the lines of a command's help page."""
    yield f"{command.name}: {command.summary}"
    yield ""
    words = f"usage: {usage(command)}"
    yield from textwrap.wrap(words, _WIDTH, subsequent_indent=" " * len("usage: "))
    options = find_options(command)
    if options:
        yield ""
        yield from _list_options(options)
    if command.more:
        yield ""
        yield from textwrap.wrap(command.more, _WIDTH)
    if command.examples:
        yield ""
        yield "examples:"
        width = max(len(line) for line, _ in command.examples)
        for line, meaning in command.examples:
            yield f"  {line:<{width}}  # {meaning}"


def read_keys() -> dict[str, dict[str, str]]:
    """Return the facts of each package config key, by its path."""
    keys: dict[str, dict[str, str]] = json.loads(_KEYS.read_text(encoding="utf-8"))
    return keys


def find_key(name: str) -> str:
    """Return the path of the config key that a name refers to, or "" if there isn't exactly one.

    A name may contain the name of a method, as in `methods.decode.emit`, or be the end of a path.
    Among several paths with that end the shortest is meant: `atol` is `validate.atol`.
    """
    paths = list(read_keys())
    if name in paths:
        return name
    general = re.sub(r"^methods\.[^.]+", "methods.<method>", name)
    general = re.sub(r"^validate\.methods\.[^.]+", "validate.methods.<method>", general)
    general = re.sub(r"^validate\.metrics\.[^.]+", "validate.metrics.<metric>", general)
    if general in paths:
        return general
    endings = [path for path in paths if path.endswith(f".{name}")]
    least = min((path.count(".") for path in endings), default=0)
    shortest = [path for path in endings if path.count(".") == least]
    return shortest[0] if len(shortest) == 1 else ""


def _describe_key(path: str) -> Iterator[str]:
    """Yield the lines of a config key's help page."""
    facts = read_keys()[path]
    yield f"{path}: {facts['values']}"
    yield ""
    yield from textwrap.wrap(facts["meaning"], _WIDTH)
    if facts["example"]:
        yield ""
        yield f"example: {facts['example']}"
    below = [key for key in read_keys() if key.startswith(f"{path}.")]
    if below:
        yield ""
        yield from textwrap.wrap(f"keys: {', '.join(below)}", _WIDTH)


def _list_options(options: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a two-column list of options, with the help text wrapped in the second."""
    width = max(map(len, options))
    for option, text in options.items():
        label = option
        for line in textwrap.wrap(text, _WIDTH - width - 4):
            yield f"  {label:<{width}}  {line}"
            label = ""


def find_options(command: Command) -> dict[str, str]:
    """Return the help of each option of a command, by the option as the user types it."""
    options = {f"--{name}": text for name, text in command.options.items()}
    if command.name in GROUPS:
        options |= _RUN_OPTIONS
    if command.name not in ANYWHERE:
        options |= find_functions("option_help")
    return options
