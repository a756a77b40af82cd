"""Finds the methods of a package that share state, from their memory plans alone.

`MemoryPlanningPass(share_mutable_buffers=True)` puts the buffers that methods share into a second
arena, which has the same size in every method (exir/passes/memory_planning_pass.py,
`run_multimethod`). A different memory plan with two arenas of those sizes looks the same; only a
manifest can tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.program.pte import PlanFacts

_SHARED_ARENA = 2


def find_sharing(plans: Mapping[str, PlanFacts]) -> tuple[str, ...]:
    """Return the methods whose state is in shared memory, or an empty tuple."""
    plans_with_more = [plan for plan in plans.values() if len(plan.arenas) > 1]
    methods = tuple(
        plan.name for plan in plans_with_more if _SHARED_ARENA in plan.arenas_used
    )
    if len(methods) < 2:
        return ()
    # Plans with shared buffers have one extra arena, of the same size in all methods.
    sizes = {plan.arenas[1:] for plan in plans_with_more}
    if len(sizes) > 1 or len(next(iter(sizes))) > 1:
        return ()
    return methods
