"""Remarks: things that are not mistakes, but are probably not intended either.

They are reported in every run, because users assume that whatever is silently ignored took effect.
Features find them: files that nothing uses, a `target` that resembles another one, and so on.
"""

from __future__ import annotations

from operator import attrgetter

from pipeline.moments import call_all
from pipeline.plan.plan import Plan
from pipeline.store.errors import Problem


def find_remarks(plan: Plan) -> list[Problem]:
    """Return the remarks on a workspace, sorted by file and line."""
    remarks: list[Problem] = []
    for remarks_of_feature in call_all("remarks", plan):
        remarks += remarks_of_feature
    return sorted(dict.fromkeys(remarks), key=attrgetter("file", "line", "what"))
