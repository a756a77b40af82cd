"""The commands of doit in a workspace: doit's own with our loader and runner, and our verbs.

doit looks up its commands before it imports a dodo file, and commands installed as plugins exist in
every project of an environment. Our verbs are therefore not plugins: `pte_pipeline.doit_commands`
passes a workspace's command line to `run_command`, which has its own table of commands. Nothing in
doit is replaced: its commands, loader and state file are subclassed, as its API intends for
applications.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from json import dumps
from pathlib import Path
from typing import Any, TextIO

from doit import cmd_clean, cmd_forget, cmd_help, cmd_info, cmd_list, cmd_run
from doit.action import PythonAction
from doit.cmd_base import Command as DoitCommand
from doit.cmdparse import CmdParseError
from doit.control import TaskControl
from doit.doit_cmd import DoitMain
from doit.exceptions import InvalidCommand
from doit.plugin import PluginDict
from doit.task import Stream

from pipeline.cli import tasks
from pipeline.cli.ahead import check_command, prefetch_exports
from pipeline.cli.commands import ANYWHERE, VERBS, Command
from pipeline.cli.doit_link import UpToDate
from pipeline.cli.doit_states import States, StatesToRead
from pipeline.cli.grammar import take_flags
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.run_options import (
    drop_database,
    number_verbosity,
    take_allowed,
    take_option,
)
from pipeline.cli.runner import BatchRunner
from pipeline.cli.workspace_loader import WorkspaceLoader
from pipeline.moments import call_all, find_features, find_functions, load, show_error
from pipeline.store.errors import PipelineError, describe_error, did_you_mean
from pipeline.store.visible import one_line

_HELP = ("-h", "--help")
_FORETELLING = ("plan", "explain")  # the verbs that predict a run


def run_command(door: Any, words: list[str], dodo: Path | None) -> Any:
    """Run a command line in a workspace; return the exit status.

    Args:
        door: doit's command that was called, with all that doit gave it.
        words: the words after its name.
        dodo: the dodo file of the workspace, or None in a folder without one.
    """
    command = [] if door.name == "run" else [door.name]
    root = dodo.parent if dodo else Path.cwd()
    if any(word in _HELP for word in words):
        names = [word for word in (*command, *words) if not word.startswith("-")]
        return _run_command(door, names, dodo, "help")
    try:
        words = _take_options(command, words, root)
        for parts in filter(None, call_all("split_command", [*command, *words], root)):
            return _run_parts(door, dodo, len(command), *parts)
        return _run_command(door, words, dodo, door.name)
    except PipelineError as error:
        raise InvalidCommand(show_error(str(error))) from error
    except CmdParseError as error:  # doit would print all options
        text = str(error).removeprefix("Error parsing Command: ")
        text = text.partition(" (parsing")[0]
        raise InvalidCommand(show_error(f"{text}; see `doit help`")) from error


def _take_options(command: list[str], words: list[str], root: Path) -> list[str]:
    """Return the words without the options of features, each of which is applied here."""
    for option, reference in find_functions("options").items():
        words, values = take_option(words, f"--{option}")
        for value in values[-1:]:
            load(reference)(value, [*command, *words], root)
    name = next(iter(command), "run")
    for feature in find_features():
        if feature.rewrite_words:
            words = load(feature.rewrite_words)(name, words, root)
    return words


def _run_parts(
    door: Any,
    dodo: Path | None,
    skipped: int,
    words: list[str] | None,
    run_others: Callable[[], int],
) -> int:
    """Run this process's part of a command line, then the parts that others run.

    The others are skipped if this part could not start or was interrupted. Returns the worst exit
    status.
    """
    status = 0
    if words is not None:
        status = _run_command(door, words[skipped:], dodo, door.name) or 0
    if status > 1:
        return status
    return max(status, run_others())


def _run_command(door: Any, words: list[str], dodo: Path | None, name: str) -> Any:
    """Run a command in this process; if the words of `doit run` name a command, run that one."""
    commands = make_commands(door)
    if name == "run":
        words = take_allowed(words)
        names = drop_database(words)
        if names and names[0] in commands:
            name = names[0]
            words.remove(name)
    command = commands[name](
        task_loader=WorkspaceLoader(door, dodo, [*VERBS]),
        config=door.config,
        bin_name=door.bin_name,
        cmds=PluginDict(commands),
        opt_vals=door.opt_vals,
    )
    return command.parse_execute(words)


def make_commands(door: Any) -> dict[str, type[DoitCommand]]:
    """Return all commands of a workspace by name; `door` may know some from other plugins."""
    commands = dict(getattr(door, "cmds", {}))
    for command in (*DoitMain.DOIT_CMDS, Run, List, Info, Forget, Clean, Help):
        commands[command.get_name()] = command
    for name, verb in {**VERBS, **ANYWHERE}.items():
        base = VerbAnywhere if name in ANYWHERE else Verb
        commands[name] = type(name, (base,), {"name": name, "verb": verb})
    return commands


# doit's commands


class _States:
    """A doit command that repairs doit's state file if it is damaged."""

    states: type[States] = StatesToRead

    def get_backends(self) -> Any:
        find_plugins = super().get_backends  # type: ignore[misc]

        class Backends(dict[str, Any]):  # looks up others if they are used
            def get(self, name: str) -> Any:  # type: ignore[override]
                return super().get(name) or find_plugins().get(name)

        return Backends(sqlite3=self.states)


class Run(_States, cmd_run.Run):  # type: ignore[misc]
    """`doit run`, also called by `doit` alone and `doit TASK`, with our runner."""

    loader: WorkspaceLoader
    states = States

    def parse_execute(self, in_args: Sequence[str]) -> Any:
        return super().parse_execute(number_verbosity(in_args))

    def get_reporters(self) -> dict[str, Any]:
        # A run looks them up only if one is named, because that takes 4 ms.
        return {} if self.loader.door.name == "run" else super().get_reporters()

    def _execute(
        self,
        outfile: Any,
        verbosity: int | None,
        always: bool,
        continue_: bool,
        reporter: Any,
        num_process: int,
        single: bool,
        auto_delayed_regex: bool,
        force_verbosity: bool,
        failure_verbosity: int,
        pdb: bool,
    ) -> Any:
        """Run the selected tasks as doit does, but with our runner.

        doit offers no way to choose a runner. It matches the parameters by name.
        """
        PythonAction.pm_pdb = pdb
        self.control = TaskControl(
            self.task_list, auto_delayed_regex=auto_delayed_regex
        )
        self.control.process(self.sel_tasks)
        if single:
            _drop_dependencies(self.control)
        references = find_functions("reporters")
        if reporter in references:
            reporter = load(references[reporter])
        elif isinstance(reporter, str):
            reporter = super().get_reporters()[reporter]
        with _open_output(outfile) as self.outstream:
            if isinstance(reporter, type):
                reporter = reporter(
                    self.outstream, {"failure_verbosity": failure_verbosity}
                )
            stream = Stream(verbosity, force_verbosity)
            others = None
            if self.loader.has_foreign_tasks and not single:
                makers = call_all(
                    "other_tasks", tasks.current_plan(), tasks.make_tasks_again
                )
                others = next(makers, None)
            runner = BatchRunner(
                self.dep_manager,
                reporter,
                continue_,
                always,
                stream,
                jobs=num_process,
                options=self.loader.run_options,
                others=others,
            )
            return runner.run_all(self.control.task_dispatcher())


def _drop_dependencies(control: TaskControl) -> None:
    """Let selected tasks run without their dependencies, for `doit -s`."""
    for name in control.selected_tasks:
        task = control.tasks[name]
        if not task.has_subtask:
            task.task_dep = []
            continue
        for subtask in task.task_dep:
            control.tasks[subtask].task_dep = []


def _open_output(outfile: Any) -> AbstractContextManager[TextIO]:
    """Return the stream for `doit -o`, opening it if given a path."""
    if not isinstance(outfile, str):
        return nullcontext(outfile)
    try:
        return open(outfile, "w", encoding="utf-8")
    except OSError as error:
        raise PipelineError(
            f"-o {outfile}: can't be written: {error.strerror}"
        ) from error


class List(_States, cmd_list.List):  # type: ignore[misc]
    """`doit list`."""


class Info(_States, cmd_info.Info):  # type: ignore[misc]
    """`doit info`, with our reasons."""

    @staticmethod
    def get_reasons(reasons: Mapping[str, Any]) -> str:
        lines = []
        for check, *_ in reasons["uptodate_false"]:
            if isinstance(check, UpToDate):
                lines += check.reason.splitlines()
        if lines:
            return "\n".join(f" * {line}" for line in lines)
        text: str = cmd_info.Info.get_reasons(reasons)
        return text


class Forget(_States, cmd_forget.Forget):  # type: ignore[misc]
    """`doit forget`."""

    states = States


class Clean(_States, cmd_clean.Clean):  # type: ignore[misc]
    """`doit clean`, with an option for packages that no config makes any more."""

    cmd_options = (
        *cmd_clean.Clean.cmd_options,
        {
            "name": "orphans",
            "long": "orphans",
            "type": bool,
            "default": False,
            "help": "remove the output of packages that no longer have a config",
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
        if orphans:
            self.dep_manager.close()
            status = tasks.clean_orphans(dryrun)
        else:
            status = super()._execute(dryrun, cleandep, cleanall, cleanforget, pos_args)
        if not dryrun:
            tasks.renew_overview()
        return status


class Help(_States, cmd_help.Help):  # type: ignore[misc]
    """`doit help`: the page of a feature if one has it, else doit's."""

    def execute(self, params: Any, args: Sequence[str]) -> Any:
        for lines in filter(None, call_all("help_pages", args, self.bin_name)):
            print(*lines, sep="\n")
            return 0
        word = " ".join(args[:1])
        try:
            if self.loader.dodo is None and args and word not in self.cmds:
                hint = did_you_mean(word, self.cmds)
                raise PipelineError(f"no command '{word}'; {hint}")
            return super().execute(params, args)
        except PipelineError:
            for hint in filter(None, call_all("suggest_page", word)):
                raise PipelineError(f"no help on '{word}'; {hint}") from None
            raise


# Our verbs


class Verb(DoitCommand):  # type: ignore[misc]
    """A verb of ours that needs the plan of the workspace, but no tasks."""

    verb: Command

    def __init__(
        self, task_loader: WorkspaceLoader, cmds: Any = None, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        # For the options about settings and variables.
        self.cmd_options = task_loader.cmd_options
        self.loader = task_loader

    def parse_execute(self, in_args: Sequence[str]) -> int:
        return self.run(in_args)

    def run(self, words: Sequence[str]) -> int:
        options, _ = self.cmdparser.parse([])
        self.loader.setup({**options, **self.opt_vals})
        words, flags = take_flags(self.verb, drop_database(words))
        with Interrupts() as interrupts:
            try:
                if self.verb.name in (*_FORETELLING, "check"):
                    plan = tasks.current_plan()
                    for pending in call_all("pending_tasks", plan, self.loader):
                        plan.pending = pending
                status = run_verb(self.verb, words, flags)
            except KeyboardInterrupt:
                status = 0
        return interrupts.status or status


class VerbAnywhere(Verb):
    """A verb of ours that needs no workspace."""

    def run(self, words: Sequence[str]) -> int:
        dodo = self.loader.dodo
        root = dodo.parent if dodo else Path.cwd()
        return int(_find_function(self.verb)(words, root))


def run_verb(
    verb: Command, words: Sequence[str], flags: Mapping[str, bool | str]
) -> int:
    """Print the lines of a verb, or only its record with `--json`; return the exit status."""
    as_json = flags.get("json")
    plan = tasks.current_plan()
    prefetch_exports(plan, plan.packages)
    if verb.name not in _FORETELLING:
        plan.trust_last_exports()
    try:
        check_command(plan.workspace, builds=verb.builds)
        for line in _find_function(verb)(plan, words, **flags):
            print(dumps(line) if as_json else one_line(line), flush=True)
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except (PipelineError, OSError) as error:
        text = f"{verb.name}: {show_error(describe_error(error))}"
        print(text, file=sys.stderr if as_json else None, flush=True)
        return 1
    finally:
        plan.remember()
    return 0


def _find_function(verb: Command) -> Any:
    """Import the function of a verb, and modules that other commands don't need."""
    return load(verb.run)
