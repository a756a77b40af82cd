"""What a run has still to do, beyond the actions that were given to workers so far.

doit looks at a task when those before it have ended, so nobody knows all actions of a run. But the
configs say which there are, and events say which of them have ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.plan.tasks import ActionTask
from pipeline.report.events import Event
from pipeline.store.errors import PipelineError

Place = tuple[str, str, str]  # a kind of action, a package or a model, and methods


def find_tasks(selected: Sequence[ActionTask]) -> dict[Place, ActionTask]:
    """Return all tasks that the selected ones may need, with these, by their place."""
    tasks: dict[Place, ActionTask] = {}
    for task in selected:
        if task.package and task.kind in ("link", "validate"):
            with suppress(PipelineError):  # which is reported when its turn comes
                for needed in _needed_tasks(task.plan, task.package):
                    tasks.setdefault(place_of(needed), needed)
        tasks.setdefault(place_of(task), task)
    return tasks


def _needed_tasks(plan: Plan, package: str) -> Iterator[ActionTask]:
    """Yield the tasks that come before a package is validated."""
    model, exporter = plan.model(package), plan.exporter(package)
    if plan.problems(package):
        yield ActionTask(plan, "link", model, package)
        return
    if exporter:
        yield ActionTask(plan, "export", exporter)
    for method in plan.quantized(package):
        yield ActionTask(plan, "quantize", model, package, (method,))
    for unit in plan.units(package):
        yield ActionTask(plan, "compile", model, package, unit)
    yield ActionTask(plan, "link", model, package)


def place_of(task: ActionTask | Action | Event) -> Place:
    return task.kind, str(task.package or task.model), task.method or ""


def drop_settled(
    tasks: dict[Place, ActionTask], events: Sequence[Event], actions: Sequence[Action]
) -> list[ActionTask]:
    """Return the tasks that are still ahead: neither given to workers nor settled, by an event of
    their own or of one that comes after them."""
    visited = {place_of(event) for event in events}
    visited.update(map(place_of, actions))
    ended = {(event.kind, event.package) for event in events}
    ahead = []
    for place, task in tasks.items():
        is_linked = ("link", task.package) in ended
        is_spared = is_linked and task.kind in ("quantize", "compile")
        if place not in visited and not is_spared:
            ahead.append(task)
    return ahead
