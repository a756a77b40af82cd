"""doit's way into this package: six of its commands, as entry points of `doit.COMMAND`.

doit looks up entry points wherever it is started, so each command here first asks whose command
line it is running. In one of our workspaces, or where there is no dodo file at all (for `doit init`
and `doit help`), `pipeline.cli.workspace_commands` takes over. In any other project the command is
doit's original and nothing else of this package is imported: there, `pipeline` means the project's
module of that name.

Entry points are the only way in: doit looks up commands and reads their options before it imports a
dodo file. A `COMMAND` section in a settings file would be one more file that each workspace needs,
and would not apply in subfolders.
"""

from __future__ import annotations

import atexit
import gc
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from io import BufferedRandom, BufferedWriter, TextIOWrapper
from pathlib import Path
from typing import Any

from doit import cmd_clean, cmd_forget, cmd_help, cmd_info, cmd_list, cmd_run
from doit.cmd_base import get_loader
from doit.cmdparse import CmdParseError

from pte_pipeline.bytecode import check_bytecode
from pte_pipeline.command_line import DODO, PROGRAM, find_dodo, is_ours
from pte_pipeline.import_path import is_untrusted, leave_workspace_out
from pte_pipeline.name_conflict import claim_pipeline

_TASKS = "pipeline.cli.tasks"
_INTERRUPTED = 128 + signal.SIGINT  # as shells report it
_TAKES_OVER = "pipeline.cli.workspace_commands"
_WRITERS = (BufferedRandom, BufferedWriter, TextIOWrapper)
_KEPT = {*sys.stdlib_module_names, "doit", "pipeline"}


def _heeds_interrupts() -> bool:
    """Return whether Ctrl-C raises KeyboardInterrupt in this thread, the default."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@contextmanager
def _ending_quietly() -> Iterator[None]:
    """Let Ctrl-C end the process at once during imports.

    There is nothing to close yet, and a traceback from the middle of an import helps nobody.
    """
    if not _heeds_interrupts():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Disable garbage collection during imports, which leave no garbage; saves 11 ms per no-op."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _keep_objects() -> None:
    """Let Python end without scanning and freeing all objects; saves 3 ms per no-op.

    What Python's own modules, doit's and ours hold is left to the system, at the end of the
    process. Files that a workspace's modules left open are flushed, as by freeing them.
    """
    kept: list[Any] = []
    for name, module in sys.modules.copy().items():
        values = [*getattr(module, "__dict__", {}).values()]
        if name.partition(".")[0] in _KEPT:
            kept.append(values)
            continue
        for value in values:
            if type(value) in _WRITERS:  # `isinstance` would ask proxies, which may warn
                with suppress(OSError, ValueError):  # it can't be written, or is closed
                    value.flush()
    kept.append(kept)  # only a collection could free a cycle
    gc.freeze()


class _Door:
    """A doit command that hands the command lines of workspaces over to this package."""

    bin_name: str
    cmdparser: Any
    loader: Any
    opt_vals: dict[str, Any]

    def __init__(self, **options: Any) -> None:
        loader = options.get("task_loader")
        if is_untrusted() and getattr(loader, "namespace", None) is None:
            # doit.cfg and [tool.doit] can name dodo files, loaders and reporters, all of them code.
            options["config"] = {}
            options["task_loader"] = get_loader({}, None, options.get("cmds"))
        super().__init__(**options)

    def parse_execute(self, in_args: Sequence[str]) -> Any:
        dodo = find_dodo(self._dodo_name(in_args))
        if is_untrusted():
            leave_workspace_out(dodo.parent if dodo else Path.cwd())
        if not self._leads_to_workspace(dodo):
            if self.bin_name != PROGRAM:
                self._look_up_plugins()
                return super().parse_execute(in_args)  # type: ignore[misc]
            dodo = None  # another project's: only commands that need no workspace work there
        try:
            with _ending_quietly(), _without_collection():
                atexit.unregister(_keep_objects)
                atexit.register(_keep_objects)
                check_bytecode()
                claim_pipeline()
                take_over = import_module(_TAKES_OVER)
            status = take_over.run_command(self, list(in_args), dodo)
        except KeyboardInterrupt:  # there was nothing to close
            status = _INTERRUPTED
        if status == _INTERRUPTED and _heeds_interrupts():
            # Everything is closed. A second Ctrl-C must not interrupt Python's own exit.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        return status

    def get_backends(self) -> dict[str, Any]:
        """Look up no plugins yet: doit searches all distributions for each kind of plugin, which
        takes 7 ms of a no-op run."""
        return {}

    get_reporters = get_backends

    def _look_up_plugins(self) -> None:
        self._backends = super().get_backends()  # type: ignore[misc]
        if isinstance(self, cmd_run.Run):
            self.reporters = super().get_reporters()  # type: ignore[misc]

    def _dodo_name(self, words: Sequence[str]) -> str:
        """Return the name of the dodo file, from the options, the settings or the environment."""
        try:
            options, _ = self.cmdparser.parse(words)
        except CmdParseError:  # options that only our commands know
            options, _ = self.cmdparser.parse([])
        name: str = {**options, **self.opt_vals}.get("dodoFile", DODO)
        return name

    def _leads_to_workspace(self, dodo: Path | None) -> bool:
        namespace = getattr(self.loader, "namespace", None)
        if namespace is None:
            return dodo is None or is_ours(dodo)
        # `doit.run(globals())` passes the tasks in without a file.
        return any(getattr(value, "__module__", "") == _TASKS for value in namespace.values())


class Run(_Door, cmd_run.Run):  # type: ignore[misc]
    """`doit run`, which `doit` alone and `doit TASK` stand for."""


class List(_Door, cmd_list.List):  # type: ignore[misc]
    """`doit list`."""


class Info(_Door, cmd_info.Info):  # type: ignore[misc]
    """`doit info`."""


class Forget(_Door, cmd_forget.Forget):  # type: ignore[misc]
    """`doit forget`."""


class Clean(_Door, cmd_clean.Clean):  # type: ignore[misc]
    """`doit clean`."""


def _help_purpose() -> str:
    """Return the line of `doit --help` about `doit help`.

    `doit --help` lists only doit's built-in commands, whatever the entry points say, so in a
    workspace this line points to the list of all commands.
    """
    dodo = find_dodo()
    if dodo is None or is_ours(dodo):
        return "show the commands of a workspace: lower, validate, plan, explain, ..."
    purpose: str = cmd_help.Help.doc_purpose
    return purpose


class Help(_Door, cmd_help.Help):  # type: ignore[misc]
    """`doit help`."""

    doc_purpose = _help_purpose()
