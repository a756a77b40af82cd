"""The text printed at the end of a run that did something."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pipeline.features.summary.full_store import describe_full_store
from pipeline.features.summary.notes import describe_linked, describe_validated
from pipeline.features.summary.table import make_table
from pipeline.plan.plan import Plan
from pipeline.report.events import Event


def describe_run(
    plan: Plan,
    events: Sequence[Event],
    methods: Iterable[str] | None,
    width: int | None,
) -> Iterator[str]:
    """Yield the table of a run, then the remarks on its packages.

    Takes the arguments of `make_table`.
    """
    yield from make_table(plan, events, methods, width)
    yield from describe_linked(plan, events)
    yield from describe_validated(plan, events)
    yield from describe_full_store(plan, events)
