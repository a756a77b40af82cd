"""Predicts the actions that a run has yet to do, beyond those given to workers so far.

doit looks at a task once the tasks before it have ended, so the full list of a run's actions is
never known. The configs say which actions may be needed, though, and events say which have ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.plan.tasks import ActionTask
from pipeline.report.events import Event
from pipeline.store.errors import PipelineError

Place = tuple[str, str, str]  # kind of action, package or model, methods


def find_tasks(selected: Sequence[ActionTask]) -> dict[Place, ActionTask]:
    """Return the selected tasks and all tasks that they may need, by place."""
    tasks: dict[Place, ActionTask] = {}
    for task in selected:
        if task.package and task.kind in ("link", "validate"):
            with suppress(PipelineError):  # reported when the task's turn comes
                for needed in _needed_tasks(task.plan, task.package):
                    tasks.setdefault(place_of(needed), needed)
        tasks.setdefault(place_of(task), task)
    return tasks


def _needed_tasks(plan: Plan, package: str) -> Iterator[ActionTask]:
    """Yield the tasks that must end before a package is validated."""
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
    """Return the tasks still ahead: those neither given to workers nor settled.

    An event settles its own task, and the event of a link also settles the tasks before the link.
    """
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
