"""The link to doit: which action a task stands for, whether it is up to date, what runs it."""

from __future__ import annotations

from typing import Any

from doit import cmd_info, cmd_run

from pipeline.cli.doit_states import mend_states
from pipeline.plan.kinds import ActionTask
from pipeline.store.errors import PipelineError


class UpToDate:
    """doit's `uptodate` callable; `doit info` shows its `reason`."""

    def __init__(self, task: ActionTask) -> None:
        self.task = task
        self.reason = ""

    def __call__(self) -> bool:
        try:
            status = self.task.status()
        except PipelineError as error:
            self.reason = str(error)
            return False
        self.reason = status.reason
        return status.current


def action_task(task: Any) -> ActionTask | None:
    """Return what a doit task stands for; None for a task that is not ours."""
    checks = (check for check, _, _ in task.uptodate)
    return next((check.task for check in checks if isinstance(check, UpToDate)), None)


def is_foreign(task: Any) -> bool:
    """Return whether a task is no action, no verb and no group of tasks, but the user's own."""
    is_verb = bool((task.meta or {}).get("command"))
    return bool(task.actions) and not is_verb and action_task(task) is None


def install_into_doit(runner: Any) -> None:
    """Give doit our runner, and our reasons in `doit info`, for this process.

    doit lets a dodo file choose its reporter but not its runner, and a `run` command registered as
    a plugin would replace that of every doit project beside which this package is installed. So the
    dodo file's import does it; it can go when DOIT_CONFIG takes a runner.
    """
    mend_states()
    for name in ("Runner", "MRunner", "MThreadRunner"):
        setattr(cmd_run, name, runner)
    runner.available = staticmethod(lambda: True)
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
