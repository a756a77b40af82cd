"""The console of `-q`: failures, warnings and verdicts other than passed; silent on success."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pipeline.cli.console import Reporter, describe_failures
from pipeline.cli.standing import StandingVerdict, describe_standing
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.report.events import Event
from pipeline.run.batch import Outlook, Show


class QuietReporter(Reporter):
    """A console that shows neither progress nor the table."""

    desc = "packages: only failures and verdicts"

    def progress(
        self, actions: Sequence[Action], outlook: Outlook
    ) -> AbstractContextManager[Show]:
        return nullcontext(lambda event: None)

    def summarize(
        self,
        plan: Plan,
        events: Sequence[Event],
        standing: Sequence[StandingVerdict],
        remote: Mapping[str, Any],
    ) -> None:
        lines = list(describe_failures(plan, events))
        lines += describe_standing(standing)
        self.write("".join(f"{line}\n" for line in lines))
