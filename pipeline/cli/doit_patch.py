"""Patches of doit: our runner, and our reasons in `doit info`."""

from __future__ import annotations

from typing import Any

from doit import cmd_info, cmd_run

from pipeline.cli.runner import BatchRunner
from pipeline.cli.up_to_date import UpToDate


def install_into_doit() -> None:
    """Give doit our runner, and our reasons in `doit info`, for this process.

    doit lets a dodo file choose its reporter but not its runner, and a `run` command registered as
    a plugin would replace that of every doit project beside which this package is installed. So the
    dodo file's import does it; it can go when DOIT_CONFIG takes a runner.
    """
    for name in ("Runner", "MRunner", "MThreadRunner"):
        setattr(cmd_run, name, BatchRunner)
    BatchRunner.available = staticmethod(lambda: True)  # type: ignore[attr-defined]
    original = cmd_info.Info.get_reasons
    if getattr(original, "ours", False):
        return

    def get_reasons(reasons: Any) -> str:
        ours = [
            str(entry[0]) for entry in reasons["uptodate_false"] if isinstance(entry[0], UpToDate)
        ]
        if not ours:
            return original(reasons)
        return "\n".join(f" * {line}" for reason in ours for line in reason.splitlines())

    get_reasons.ours = True  # type: ignore[attr-defined]
    cmd_info.Info.get_reasons = staticmethod(get_reasons)
