"""The commands of the command line."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.cli.commands import ANYWHERE, GROUPS, VERBS, Command, usage
from tools.reference.markdown import plain


def verbs() -> Iterator[str]:
    """Yield every command, with a heading for each."""
    commands = {"init": ANYWHERE["init"], **GROUPS, **VERBS, **ANYWHERE}
    for command in commands.values():
        yield from _describe(command)


def _describe(command: Command) -> Iterator[str]:
    summary = command.summary[0].upper() + command.summary[1:]
    yield from [
        f"## `doit {command.name}`",
        "",
        f"`{usage(command)}`",
        "",
        f"{plain(summary)}.",
        "",
    ]
    if command.more:
        yield from [plain(command.more), ""]
    for name, meaning in command.options.items():
        yield f"- `--{name}`: {plain(meaning)}"
    if command.options:
        yield ""
    if command.examples:
        longest = max(len(line) for line, _ in command.examples)
        yield from ["```sh", *(f"{a:<{longest}}  # {b}" for a, b in command.examples), "```", ""]
