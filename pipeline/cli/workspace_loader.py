"""doit's task loader in a workspace.

It finds the dodo file from any subfolder, and makes the tasks that a command line selects in our
grammar.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from doit.cmd_base import DodoTaskLoader
from doit.exceptions import InvalidDodoFile

from pipeline.cli import tasks
from pipeline.cli.ahead import start_ahead
from pipeline.cli.commands import GROUPS
from pipeline.cli.grammar import (
    check_words,
    describe_no_packages,
    empty_groups,
    rewrite,
)
from pipeline.cli.run_options import RunOptions, take_options
from pipeline.cli.selection import find_foreign_tasks, find_selection
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError
from pipeline.store.remedies import explain_error
from pte_pipeline.import_path import is_untrusted, leave_workspace_out

_NO_DODO = (
    "no workspace here: no dodo.py with `from pte_pipeline.tasks import *` in this folder or "
    "above; `doit init` creates a workspace for ExecuTorch packages here, see `doit help`"
)


class WorkspaceLoader(DodoTaskLoader):  # type: ignore[misc]
    """Loads the tasks that a command line selects, and interprets its words.

    Attributes:
        door: doit's own command, which has looked up its plugins.
        dodo: the dodo file, or None in a folder without one.
        run_options: the options after the names of tasks.
        has_foreign_tasks: whether the dodo file makes tasks other than ours.
    """

    def __init__(self, door: Any, dodo: Path | None, verbs: Sequence[str]) -> None:
        super().__init__()
        self.door = door
        self.dodo = dodo
        self.run_options = RunOptions()
        self.has_foreign_tasks = False
        self.config = door.loader.config
        self.task_opts = door.loader.task_opts
        # No task may have the name of a command. `dumpdb` can't read our file of states.
        self.cmd_names = sorted({*door.loader.cmd_names, *verbs} - {"dumpdb"})
        self.namespace: Mapping[str, Any] | None = getattr(
            door.loader, "namespace", None
        )

    def setup(self, opt_values: Mapping[str, Any]) -> None:
        """Import the dodo file, unless its tasks were passed in."""
        if self.namespace is not None:
            return
        if self.dodo is None:
            raise PipelineError(_NO_DODO)
        seek = opt_values["seek_file"] or not os.path.exists(opt_values["dodoFile"])
        try:
            super().setup({**opt_values, "seek_file": seek})
            if is_untrusted():  # doit added the dodo file's folder
                leave_workspace_out(Path.cwd())
        except (InvalidDodoFile, PipelineError):
            raise
        except Exception as error:
            raise _explain_dodo_error(error, self.dodo) from None

    def load_doit_config(self) -> dict[str, Any]:
        """Return the dodo file's `DOIT_CONFIG`, with our defaults for missing keys."""
        config = super().load_doit_config()
        defaults = dict(tasks.DOIT_CONFIG)
        if "backend" in config:  # another backend can't read our file
            defaults.pop("dep_file")
        return {**defaults, **config}

    def load_tasks(self, cmd: Any, pos_args: list[str]) -> Any:
        """Make the tasks that a command line selects.

        `pos_args` is rewritten in place to the names of the tasks, since doit selects tasks by the
        same list. Raises PipelineError for unknown words.
        """
        plan = tasks.current_plan()
        if cmd.execute_tasks:
            tasks.make_build_folder(plan)
        foreign_tasks = find_foreign_tasks(self.namespace or {})
        self.has_foreign_tasks = bool(foreign_tasks)
        if cmd.execute_tasks and not {*foreign_tasks} & {*pos_args}:
            pos_args[:], self.run_options = take_options(pos_args)
            if not pos_args or pos_args[0].partition(":")[0] in GROUPS:
                start_ahead(plan.workspace, 1, self.run_options.always)
        packages = _packages_with_rows(pos_args, plan)
        self.run_options = self.run_options._replace(methods_of=packages)
        pos_args[:] = rewrite(
            pos_args, tasks.current_plan, foreign_tasks, cmd.execute_tasks
        )
        words = pos_args or self.load_doit_config()["default_tasks"] or ()
        tasks.select(find_selection(self.namespace or {}, cmd.execute_tasks, words))
        loaded = super().load_tasks(cmd, pos_args)
        check_words(pos_args, loaded, (*self.cmd_names, *plan.packages))
        if cmd.execute_tasks:
            self._refuse_nothing(words, loaded, plan)
        else:
            plan.remember()
        return loaded

    def _refuse_nothing(self, names: Sequence[str], loaded: Any, plan: Plan) -> None:
        """Print which groups have no tasks.

        Raises PipelineError if packages are requested and none exist.
        """
        if not plan.packages and any(name in GROUPS for name in names):
            raise PipelineError(describe_no_packages(plan.workspace))
        for line in empty_groups(names, loaded):
            print(line)


def _explain_dodo_error(error: Exception, dodo: Path) -> PipelineError:
    """Describe what ended the import of a dodo file, or which module our own package hides."""
    from pipeline.program.import_errors import explain_hidden_at_top

    hint = explain_hidden_at_top(error, dodo.parent)
    why = f"{error}; {hint}" if hint else explain_error(error, dodo.parent)
    return PipelineError(f"{dodo.name}: can't be imported: {why}")


def _packages_with_rows(words: Sequence[str], plan: Plan) -> tuple[str, ...]:
    """Return the packages with methods named on the command line; the table shows their methods."""
    patterns = [word.rpartition(":")[2].split("/")[0] for word in words if "/" in word]
    return tuple(
        package
        for package in plan.packages
        if any(fnmatchcase(package, pattern) for pattern in patterns)
    )
