"""`doit plan`: what a run would do and why, or the effective config of each method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.cli.ahead import prefetch_packages
from pipeline.cli.columns import columns
from pipeline.cli.grammar import Target, find_targets
from pipeline.cli.verbs import known_packages
from pipeline.moments import call_all, show_error
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.plan.remarks import find_remarks
from pipeline.plan.status import Status
from pipeline.plan.tasks import ActionTask, find_action, find_status
from pipeline.store.digest import Digest
from pipeline.store.errors import (
    ConfigErrors,
    PipelineError,
    Problem,
    find_widespread,
    format_new_problems,
    listed,
    plural,
)
from pipeline.store.store import Store

VERDICTS = {
    "up-to-date": "current",
    "hit": "in the store",
    "stale": "to do",
    "waiting": "waits",
}
_NOT_THERE = ("stale", "waiting")
_LINKED = Status("up-to-date", "its package is lowered")
_TO_FETCH = Status("hit", "its package is in the store")
_COMPILED = Status("up-to-date", "its method is compiled")
_UNLINKED = Status("waiting", "the package must be linked first")
_UNLINKED_FAMILY = Status("waiting", "packages of its family must be linked first")


def run(
    plan: Plan, words: Sequence[str], resolved: bool = False, json: bool = False
) -> Iterator[Any]:
    """Yield a line for each action that a run would not find current, and totals.

    Args:
        words: packages or their methods (`package/method`), by default all.
        resolved: yields the effective configs instead.
        json: yields one record instead, in the form of `forms.PLAN`.

    Raises:
        PipelineError: a package doesn't exist or has mistakes.
    """
    if resolved and json:
        raise PipelineError(
            "--resolved prints YAML, so it can't be combined with --json"
        )
    if resolved:
        yield from _resolve(plan, known_packages(plan, words))
    else:
        yield from preview(plan, find_targets(plan, words), json, has_remarks=not words)


def _resolve(plan: Plan, packages: Sequence[str]) -> Iterator[str]:
    """Yield the effective configs of packages. Raises ConfigErrors for invalid ones at the end."""
    # Imports pydantic, which a preview doesn't need.
    from pipeline.features.explain.resolved import resolved_view

    problems: list[Problem] = []
    sound: list[str] = []
    for package in packages:
        package_problems = plan.configs.mistakes(package)
        problems += package_problems
        if not package_problems:
            sound.append(package)
    for number, package in enumerate(sound):
        if number:
            yield ""
        yield from resolved_view(plan.config(package), plan.document(package))
    if problems:
        raise ConfigErrors(problems)


Expected = tuple[ActionTask, Status]  # an action that a run checks, and its status


def expected_action(task: ActionTask, status: Status) -> Action | None:
    """Return the action, or None if it can't be known until another action has run."""
    if status.state == "waiting":
        return None
    return find_action(task.plan, task.kind, task.name, task.unit)


def is_of(task: ActionTask, target: Target) -> bool:
    """Return whether an action belongs to a target, as the model's export does to each method."""
    if task.kind == "export":
        return task.model == task.plan.exporter(target.package)
    if task.package != target.package:
        return False
    return not target.methods or bool(set(task.unit) & set(target.methods))


def foresee_links(plan: Plan, packages: Iterable[str]) -> dict[str, Status]:
    """Return the statuses of the links of packages and their families, except invalid packages.

    Also gives the plan the files that a run takes from the store, since a validation's key depends
    on the files of its package.
    """
    members = dict.fromkeys(packages)
    for package in list(members):
        members |= dict.fromkeys(plan.members(package))
    links: dict[str, Status] = {}
    sound: list[str] = []
    for package in members:
        pending = plan.pending.get((package, "link"))
        if pending is not None:
            links[package] = pending
        elif not plan.problems(package):
            sound.append(package)
    plan.remember()  # reasons compare the stored descriptions of programs
    for package in sound:
        links[package] = find_status(plan, "link", package)
    foreseen: dict[str, Mapping[str, Digest]] = {}
    for package, status in links.items():
        if status.state != "hit":
            continue
        link = plan.link_digest(package)
        entry = link and plan.workspace.store.get(link)
        if entry:
            foreseen[package] = entry.result["files"]
    plan.foreseen = foreseen
    return links


def expected(
    plan: Plan, package: str, links: Mapping[str, Status], whole: bool = False
) -> Iterator[Expected]:
    """Yield the actions of a valid package, in the order of a run.

    Args:
        links: the result of `foresee_links`.
        whole: whether the run skips the methods of a package whose link the store has.
    """
    if (model := plan.exporter(package)) is not None:
        pending = plan.pending.get((package, "link"))
        status = pending or find_status(plan, "export", model)
        yield ActionTask(plan, "export", model), status
    link = links[package]
    for unit in plan.units(package):
        compile_ = ActionTask(plan, "compile", None, package, unit)
        if link.current:  # a run doesn't check them, whatever the store has
            status = _LINKED
        elif whole and link.state == "hit":
            status = _TO_FETCH
        else:
            status = _find_status(compile_)
        for method in unit:
            if method in plan.quantized(package):
                quantize = ActionTask(plan, "quantize", None, package, (method,))
                if status.state in _NOT_THERE:
                    yield quantize, _find_status(quantize)
                else:
                    yield quantize, _COMPILED
        yield compile_, status
    yield ActionTask(plan, "link", None, package), link
    validate = ActionTask(plan, "validate", None, package)
    if link.state in _NOT_THERE:
        yield validate, _UNLINKED
    elif _waits_for_family(plan, package, links):
        yield validate, _UNLINKED_FAMILY
    else:
        yield validate, _find_status(validate)


def _waits_for_family(plan: Plan, package: str, links: Mapping[str, Status]) -> bool:
    """Return whether the validation waits for a package of its family to be linked.

    A validation needs the files of all packages of the family.
    """
    for member in plan.members(package):
        if member in links and links[member].state in _NOT_THERE:
            return True
    return False


def _find_status(task: ActionTask) -> Status:
    """Return the status that a run would find, or the pending one after a task of the user's."""
    pending = task.plan.pending
    return (
        pending.get((task.name, "link"))
        or pending.get((task.name, task.kind))
        or find_status(task.plan, task.kind, task.name, task.unit)
    )


def describe_action(task: ActionTask, status: Status) -> dict[str, Any]:
    """Return an action and its status as JSON, in the form given in `forms`."""
    return {
        "kind": task.kind,
        "model": task.model,
        "package": task.package,
        "methods": list(task.unit),
        "state": status.state,
        "reason": status.reason,
    }


def preview(
    plan: Plan,
    targets: Sequence[Target],
    json: bool = False,
    has_remarks: bool = False,
) -> Iterator[Any]:
    """Yield a line for each action that a run would not find current, and totals.

    Args:
        json: yields one record instead.
        has_remarks: whether to include remarks on the workspace.

    Raises:
        PipelineError: packages have mistakes; raised after the others are reported.
    """
    packages = list(dict.fromkeys(target.package for target in targets))
    whole = not any(target.methods for target in targets)
    # All at once, since a remote tier takes a round trip for each request.
    plan.workspace.store.look(prefetch_packages(plan, packages, True, not whole))
    links = foresee_links(plan, packages)
    faulty: dict[str, Sequence[Problem]] = {}
    for package in packages:
        if package not in links:
            faulty[package] = plan.problems(package)
    table = _Preview(plan, targets)
    for package in packages:
        if package not in faulty:
            for task, status in expected(plan, package, links, whole):
                table.add(task, status)
    notes = list(table.notes)
    if table.rows or faulty:
        notes[:0] = filter(None, call_all("describe_outdated"))
    notes += describe_trouble(plan.workspace.store)
    remarks = find_remarks(plan) if has_remarks and not faulty else ()
    warnings = [show_error(str(remark), "warning") for remark in remarks]
    if json:
        yield {
            "format": 1,
            "actions": table.actions,
            "mistakes": list(_list_mistakes(faulty)),
            "warnings": warnings,
            "notes": notes,
        }
    else:
        rows = [*_describe_mistakes(faulty), *table.rows]
        yield from (line.strip() for line in columns(rows))
        yield from notes
        yield table.sums(len(faulty))
        yield from (f"warning: {warning}" for warning in warnings)
    if faulty:
        raise PipelineError(
            f"{plural(len(faulty), 'package')} with mistakes: {listed(faulty, 10)}"
        )


def describe_trouble(store: Store) -> Iterator[str]:
    """Yield the remote's counts if it failed, or sent something that was refused.

    Its results then count as missing.
    """
    if (remote := store.remote) is None:
        return
    counts = remote.counts
    if remote.problem or counts.unsigned or counts.corrupt or counts.errors:
        believes_all = remote.settings.believes_all
        use = {**vars(counts), "believes_all": believes_all, "problem": remote.problem}
        yield remote.describe(use)


_Row = tuple[str, str, str, str]


def _describe_mistakes(faulty: Mapping[str, Sequence[Problem]]) -> Iterator[_Row]:
    """Yield a row for each problem of the packages, but only one for a problem that many share."""
    shown: dict[Problem, str] = {}
    widespread = find_widespread(faulty)
    for package, problems in faulty.items():
        for line in format_new_problems(problems, package, shown, widespread):
            yield "", package, "faulty", show_error(line)


def _list_mistakes(
    faulty: Mapping[str, Sequence[Problem]],
) -> Iterator[dict[str, str]]:
    """Yield each problem of each package in full, as JSON."""
    for package, problems in faulty.items():
        for problem in problems:
            yield {"package": package, "mistake": show_error(str(problem))}


class _Preview:
    """The actions of `doit plan`, rows for those that are not current, and notes on backends."""

    def __init__(self, plan: Plan, targets: Sequence[Target]) -> None:
        self.actions: list[dict[str, Any]] = []
        self.rows: list[_Row] = []
        self.notes: dict[str, None] = {}
        self._plan = plan
        self._targets: dict[str, list[Target]] = {}  # by package
        for target in targets:
            self._targets.setdefault(target.package, []).append(target)
        self._titles: dict[Digest, str] = {}  # title of the first action with a digest
        self._exported: set[str] = set()

    def add(self, task: ActionTask, status: Status) -> None:
        """Add an action if it belongs to a target, with a row if it isn't current."""
        if task.kind == "export":  # several packages share it
            if task.title in self._exported:
                return
            self._exported.add(task.title)
        elif not any(is_of(task, target) for target in self._targets[task.name]):
            return
        status = status._replace(reason=self._reason(task, status))
        self.actions.append(describe_action(task, status))
        if status.current:
            return
        self.rows.append((task.kind, task.title, VERDICTS[status.state], status.reason))
        if task.kind == "compile":
            config = self._plan.config(task.name)
            for backend in config.backends(config.methods):
                if backend.overridden:
                    self.notes[backend.overridden] = None

    def _reason(self, task: ActionTask, status: Status) -> str:
        """Return why an action isn't current, and any earlier action that is the same."""
        reason = status.reason
        if status.state != "stale":
            return reason
        action = expected_action(task, status)
        if action is not None:
            first = self._titles.setdefault(action.digest, task.title)
            if first != task.title:
                reason += f"; the same as {first}"
        return reason

    def sums(self, faulty: int) -> str:
        """Return the number of actions in each state, and the number of `faulty` packages."""
        counts = Counter(action["state"] for action in self.actions)
        verbs = dict(VERDICTS)
        if counts["waiting"] > 1:
            verbs["waiting"] = "wait"
        sums = [
            f"{counts[state]} {verb}" for state, verb in verbs.items() if counts[state]
        ]
        return ", ".join([*sums, *([f"{faulty} faulty"] if faulty else [])])
