"""`doit help`: our commands with a line each, or one of them in full."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from pipeline.cli.commands import ANYWHERE, GROUPS, VERBS, Command, usage

COMMANDS = {**GROUPS, **VERBS, **ANYWHERE}
_RUN_OPTIONS = {
    "-n NUMBER": "worker processes; by default one for each core",
    "-a": "do it again, whatever the store holds",
    "-v": "a line for each method in the table",
}
_DOIT = {
    "list": "the tasks; `--all` with those of packages and methods",
    "info": "one task: whether it is up to date, and why",
    "clean": "remove what builds left in build/; `--orphans` of packages without a config",
}
_WIDTH = 100


def overview() -> Iterator[str]:
    """Yield the lines of `doit help`."""
    yield "doit builds ExecuTorch packages: each config in partition_configs/ makes one, in build/."
    yield ""
    yield "  doit                 lower and validate all packages"
    verbs = {**VERBS, **ANYWHERE}
    init = verbs.pop("init", None)
    for title, group in (("Build", GROUPS), ("See and decide", verbs)):
        yield ""
        yield f"{title}:"
        for command in group.values():
            yield f"  doit {command.name:<15} {command.summary}"
    yield ""
    yield "Workspace:"
    if init is not None:
        yield f"  doit {init.name:<15} {init.summary}"
    yield from (f"  doit {name:<15} {summary}" for name, summary in _DOIT.items())
    yield ""
    yield "doit help <command> shows its options and examples. A name is a package, or one of its"
    yield "methods (vision/classify), or a pattern ('vision*'). Other tasks of dodo.py run as ever."


def describe(name: str) -> Iterator[str]:
    """Yield the lines of the help on one of `COMMANDS`."""
    command = COMMANDS[name]
    yield f"{name}: {command.summary}"
    yield ""
    yield f"usage: {usage(command)}"
    options = _options(command)
    if options:
        yield ""
        width = max(map(len, options))
        yield from (f"  {flag:<{width}}  {text}" for flag, text in options.items())
    if command.more:
        yield ""
        yield from textwrap.wrap(command.more, _WIDTH)
    if command.examples:
        yield ""
        yield "examples:"
        width = max(len(line) for line, _ in command.examples)
        for line, meaning in command.examples:
            yield f"  {line:<{width}}  # {meaning}"


def _options(command: Command) -> dict[str, str]:
    if command.name in GROUPS:
        return _RUN_OPTIONS
    return {f"--{name}": text for name, text in command.options.items()}
