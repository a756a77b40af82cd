"""doit's own commands, with what this package adds to them: entry points of the group
`doit.COMMAND`, which doit looks up wherever it is started.

A dodo file can't add any of this, since it is about folders without one: `doit init`, `doit help`,
and doit in a folder below a workspace. Where the nearest dodo file is not ours, everything is as
doit does it, and nothing else of this package is imported: `pipeline` means the project's own.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from doit import cmd_clean, cmd_forget, cmd_help, cmd_info, cmd_list, cmd_run
from doit.exceptions import InvalidCommand, InvalidDodoFile

from pte_pipeline.name_conflict import NAME, claim_pipeline, is_package

_DODO = "dodo.py"
_print_usage = cmd_help.Help.print_usage


def nearest_dodo() -> Path | None:
    """Return the dodo file of this folder, or of the nearest one above that has one."""
    folder = Path.cwd()
    places = (each / _DODO for each in (folder, *folder.parents))
    return next((place for place in places if place.is_file()), None)


def is_ours(dodo: Path) -> bool:
    """Tell whether a dodo file takes the tasks of this package: by the public name, or from
    `pipeline.tasks` where no module beside the file is called so."""
    with suppress(OSError):
        text = dodo.read_bytes()
        folder = dodo.parent / NAME
        hidden = not is_package(folder) and any(folder.glob("tasks*"))
        return b"pte_pipeline.tasks" in text or (b"pipeline.tasks" in text and not hidden)
    return False


def _import(module: str) -> Any:
    """Import a module of this package, whatever else is called `pipeline` here."""
    claim_pipeline()
    return import_module(module)


class _Seeking:
    """A command of doit's that works in folders below a workspace too, and where the workspace has
    a module `pipeline` of its own."""

    def execute(self, params: Any, args: Any) -> Any:
        name = params.get("dodoFile", _DODO)
        dodo = nearest_dodo() if name == _DODO else Path.cwd() / name
        if dodo is None or not is_ours(dodo):
            return super().execute(params, args)  # type: ignore[misc]
        if not os.path.exists(name):
            params["seek_file"] = True
        claim_pipeline()
        try:
            return super().execute(params, args)  # type: ignore[misc]
        except (AttributeError, ImportError) as error:
            modules = _import("pipeline.program.workspace_modules")
            if hint := modules.explain_hidden_at_top(error, dodo.parent):
                raise InvalidDodoFile(f"{dodo.name}: {error}; {hint}") from None
            raise


class Run(_Seeking, cmd_run.Run):  # type: ignore[misc]
    """`doit run`, which is what `doit` alone and `doit TASK` are; and `doit init`, `doit
    verify`."""

    def parse_execute(self, in_args: Any) -> Any:
        """Let `-v` stand without the number that doit's own needs, and take `--allow`."""
        given = _take_allowed(list(in_args))
        for place, word in enumerate(given):
            if word == "-v" and not "".join(given[place + 1 : place + 2]).isdecimal():
                if (dodo := nearest_dodo()) is not None and is_ours(dodo):
                    given[place] = "-v2"
            elif not word.startswith("-"):
                break
        return super().parse_execute(given)

    def execute(self, params: Any, args: Any) -> Any:
        dodo = nearest_dodo()
        if args[:1] == ["init"] and (dodo is None or is_ours(dodo)):
            return _init(args[1:], dodo)
        if args and (dodo is None or is_ours(dodo)):
            verb = _import("pipeline.cli.commands").ANYWHERE.get(args[0])
            if verb is not None:
                return _run_anywhere(verb.run, args[1:], dodo)
        try:
            return super().execute(params, args)
        except InvalidDodoFile as error:
            if dodo is not None or params.get("dodoFile") != _DODO:
                raise
            hint = "`doit init` makes a workspace of ExecuTorch packages here"
            raise InvalidDodoFile(f"{str(error).strip()}\n{hint}, `doit help` says more") from error


def _take_allowed(words: list[str]) -> list[str]:
    """Take `--allow VERDICTS` out of a command line of ours, wherever it stands: it is the setting
    of this name, for this run."""
    dodo = nearest_dodo()
    if not any(word.startswith("--allow") for word in words) or not (dodo and is_ours(dodo)):
        return words
    rest: list[str] = []
    verdicts: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name == "--allow":
            verdicts.append(value if equals else next(remaining, ""))
        else:
            rest.append(word)
    os.environ["PTE_PIPELINE_ALLOW"] = ",".join(verdicts)
    return rest


class List(_Seeking, cmd_list.List):  # type: ignore[misc]
    """`doit list`."""


class Info(_Seeking, cmd_info.Info):  # type: ignore[misc]
    """`doit info`."""


class Forget(_Seeking, cmd_forget.Forget):  # type: ignore[misc]
    """`doit forget`."""


class Clean(_Seeking, cmd_clean.Clean):  # type: ignore[misc]
    """`doit clean`, also of packages that no config makes any more."""

    cmd_options = (
        *cmd_clean.Clean.cmd_options,
        {
            "name": "orphans",
            "long": "orphans",
            "type": bool,
            "default": False,
            "help": "remove what builds left of packages that no config makes any more",
        },
    )

    def _execute(
        self,
        dryrun: bool,
        cleandep: bool,
        cleanall: bool,
        cleanforget: bool,
        orphans: bool,
        pos_args: Any = None,
    ) -> Any:
        if not orphans:
            return super()._execute(dryrun, cleandep, cleanall, cleanforget, pos_args)
        self.dep_manager.close()
        if not is_ours(Path(_DODO)):
            raise InvalidCommand("--orphans is for a workspace of pte-pipeline, which this is not")
        return _import("pipeline.cli.tasks").clean_orphans(dryrun)


class Help(_Seeking, cmd_help.Help):  # type: ignore[misc]
    """`doit help`, with our commands in a workspace of ours and where there is no dodo file."""

    def execute(self, params: Any, args: Any) -> Any:
        dodo = nearest_dodo()
        if len(args) == 1 and (dodo is None or is_ours(dodo)):
            texts = _import("pipeline.cli.help")
            if args[0] in texts.COMMANDS:
                print(*texts.describe(args[0]), sep="\n")
                return 0
        return super().execute(params, args)


def _usage(help_command: Any, commands: Any) -> None:
    """Print our overview, or doit's where the nearest dodo file is not ours."""
    dodo = nearest_dodo()
    if dodo is not None and not is_ours(dodo):
        _print_usage(help_command, commands)
        return
    print(*_import("pipeline.cli.help").overview(), sep="\n")


# `doit --help` makes doit's own Help, whatever entry points say.
cmd_help.Help.print_usage = _usage


def _init(words: list[str], dodo: Path | None) -> int:
    folder = Path.cwd() / (words[0] if words else "")
    if len(words) > 1 or folder.name.startswith("-"):
        raise InvalidCommand("usage: doit init [folder]")
    if dodo is not None and dodo.parent != folder and folder.is_relative_to(dodo.parent):
        raise InvalidCommand(f"{dodo.parent} is a workspace already, and this is a folder in it")
    try:
        print(*_import("pipeline.cli.init").make_workspace(folder), sep="\n")
    except _import("pipeline.store.errors").PipelineError as error:
        raise InvalidCommand(str(error)) from error
    return 0


def _run_anywhere(function: str, words: list[str], dodo: Path | None) -> int:
    """Run a verb that needs no workspace, from the folder of the dodo file if there is one."""
    run = _import("pipeline.moments").load(function)
    try:
        status: int = run(words, dodo.parent if dodo else Path.cwd())
        return status
    except _import("pipeline.store.errors").PipelineError as error:
        raise InvalidCommand(str(error)) from error
