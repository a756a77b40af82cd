"""Remarks: what is no mistake, and is hardly meant.

They are told in each run, since what is ignored without a word is taken for done. Features make
them: of files that nothing uses, of a `target` that is nearly another, and so on.
"""

from __future__ import annotations

from pipeline.moments import call_all
from pipeline.plan.plan import Plan
from pipeline.store.errors import Problem


def find_remarks(plan: Plan) -> list[Problem]:
    """Return the remarks about a workspace, sorted by file."""
    remarks: list[Problem] = []
    for remarks_of_feature in call_all("remarks", plan):
        remarks += remarks_of_feature
    return sorted(
        dict.fromkeys(remarks),
        key=lambda remark: (remark.file, remark.line, remark.what),
    )
