"""The link to doit: which action a task stands for, whether it is up to date, what runs it."""

from __future__ import annotations

import getopt
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from inspect import Signature
from typing import Any

from doit import cmd_info, cmd_run, loader
from doit.exceptions import InvalidCommand
from doit.task import Task

from pipeline.cli.commands import GROUPS, VERBS
from pipeline.cli.doit_states import mend_states
from pipeline.cli.grammar import check_words, describe_no_packages, empty_groups, rewrite
from pipeline.cli.selection import Selection, find_selection, own_tasks
from pipeline.plan.plan import Plan
from pipeline.plan.status import Status
from pipeline.plan.tasks import ActionTask
from pipeline.store.errors import PipelineError

_LONG_OPTIONS = ("process=", "always-execute", "verbose")

MakeTasks = Callable[[], Iterator[Task]]


class UpToDate:
    """doit's `uptodate` callable; `doit info` shows its `reason`. `setup` makes the tasks that come
    before this one where it is stale, if they were not made with it."""

    __signature__ = Signature()  # which doit asks for at each call

    def __init__(self, task: ActionTask, setup: MakeTasks | None = None) -> None:
        self.task = task
        self.setup = setup
        self.reason = ""
        self._found: Status | None = None

    def __call__(self) -> bool:
        try:
            status = self._found or self.status()
        except PipelineError as error:
            self.reason = str(error)
            return False
        self._found = None
        self.reason = status.reason
        return status.current

    def is_current(self) -> bool:
        """Return whether the task is up to date, by which doit's next question is answered too. One
        with mistakes is not: they are shown when its turn comes."""
        try:
            return (self._found or self.status()).current
        except PipelineError:
            return False

    def status(self) -> Status:
        """Return the task's status, by which doit's next question is answered too. Raises
        PipelineError."""
        self._found = self.task.status()
        return self._found


def up_to_date(task: Any) -> UpToDate | None:
    """Return the check of a doit task of ours; None for any other."""
    checks = (check for check, _, _ in task.uptodate)
    return next((check for check in checks if isinstance(check, UpToDate)), None)


def action_task(task: Any) -> ActionTask | None:
    """Return what a doit task stands for; None for a task that is not ours."""
    check = up_to_date(task)
    return check.task if check else None


def is_foreign(task: Any) -> bool:
    """Return whether a task is no action, no verb and no group of tasks, but the user's own."""
    is_verb = bool((task.meta or {}).get("command"))
    return bool(task.actions) and not is_verb and action_task(task) is None


def install_into_doit(
    runner: Any, select: Callable[[Selection], None], plan: Callable[[], Plan]
) -> None:
    """Give doit our runner, our grammar, and our reasons in `doit info`, for this process; `select`
    is told what a command line asks for, before tasks are made.

    doit lets a dodo file choose its reporter but not its runner, and a `run` command registered as
    a plugin would replace that of every doit project beside which this package is installed. So the
    dodo file's import does it; it can go when DOIT_CONFIG takes a runner.
    """
    mend_states()
    for name in ("Runner", "MRunner", "MThreadRunner"):
        setattr(cmd_run, name, runner)
    runner.available = staticmethod(lambda: True)
    make = getattr(loader.load_tasks, "original", loader.load_tasks)

    def load_tasks(
        namespace: Any, names: Any = (), allow_delayed: bool = False, args: Any = (), **more: Any
    ) -> Any:
        if {"--help", "-h"} & {*args}:
            _show_help(args[0])
        try:
            if allow_delayed and not set(own_tasks(namespace)) & {*args}:
                _take_options(runner, args)
                if not args or args[0].partition(":")[0] in GROUPS:
                    runner.start_ahead(plan().workspace, 1)
            _choose_rows(runner, args, plan())
            # doit selects tasks by the same list.
            args[:] = rewrite(args, plan, own_tasks(namespace), allow_delayed)
            select(find_selection(namespace, allow_delayed, args))
            made = make(namespace, names, allow_delayed=allow_delayed, args=args, **more)
            check_words(args, made, (*names, *plan().packages))
            if allow_delayed:
                _refuse_nothing(args, namespace, made, plan())
        except PipelineError as error:
            raise InvalidCommand(str(error)) from error
        if not allow_delayed:
            plan().remember()
        return made

    load_tasks.original = make  # type: ignore[attr-defined]
    loader.load_tasks = load_tasks
    original = cmd_info.Info.get_reasons
    if getattr(original, "ours", False):
        return

    def get_reasons(reasons: Any) -> str:
        checks = [entry[0] for entry in reasons["uptodate_false"]]
        ours = [check.reason for check in checks if isinstance(check, UpToDate)]
        if not ours:
            return original(reasons)
        return "\n".join(f" * {line}" for reason in ours for line in reason.splitlines())

    get_reasons.ours = True  # type: ignore[attr-defined]
    cmd_info.Info.get_reasons = staticmethod(get_reasons)


def _show_help(word: str) -> None:
    """Show the help on a command of ours and end; of anything else, doit says what it takes."""
    from pipeline.cli.help import COMMANDS, describe

    if word in COMMANDS:
        print(*describe(word), sep="\n")
        raise SystemExit


def _take_options(runner: Any, words: list[str]) -> None:
    """Take the options of a run out of the words, so that they may also stand where doit has none:
    `doit lower vision -n 4`. Raises PipelineError for others behind our groups."""
    if not words or words[0].startswith("-") or {*VERBS} & {*words}:
        words[:] = [word for word in words if word not in ("-v", "--verbose")]
        return
    command = words[0].partition(":")[0]
    try:
        found, words[:] = getopt.gnu_getopt(words, "n:av", _LONG_OPTIONS)
        given = {flag.replace("process", "n").strip("-")[0]: value for flag, value in found}
        if not given.get("n", "1").isdecimal():
            raise getopt.GetoptError(f"-n: '{given['n']}' is no number")
    except getopt.GetoptError as error:
        known = f"known: -n NUMBER, -a, -v, --allow VERDICTS; `doit help {command}` says more"
        raise PipelineError(f"{command}: {error}; {known}") from error
    runner.jobs, runner.always, runner.verbose = int(given.get("n", 0)), "a" in given, "v" in given


def _choose_rows(runner: Any, words: list[str], plan: Plan) -> None:
    """Tell a runner which packages have rows for their methods in the table."""
    named = [word.rpartition(":")[2].split("/")[0] for word in words if "/" in word]
    runner.methods_of = tuple(p for p in plan.packages if any(fnmatchcase(p, n) for n in named))


def _refuse_nothing(words: list[str], namespace: Any, tasks: Any, plan: Plan) -> None:
    """Say what a group has no task for. Raises PipelineError where packages are asked for and there
    are none."""
    asked = words or namespace.get("DOIT_CONFIG", {}).get("default_tasks", ())
    if not plan.packages and any(word in GROUPS for word in asked):
        raise PipelineError(describe_no_packages(plan.workspace))
    for line in empty_groups(asked, tasks):
        print(line)
