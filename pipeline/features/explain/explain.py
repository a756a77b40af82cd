"""`doit explain`: why each action of a package or a method is current or stale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.cli.grammar import Target, find_targets
from pipeline.features.explain.plan import (
    VERDICTS,
    describe_action,
    describe_trouble,
    expected,
    expected_action,
    foresee_links,
    is_of,
)
from pipeline.moments import call_all, earlier_keys
from pipeline.plan.actions import Action, unit_name
from pipeline.plan.kinds.export import reads_key
from pipeline.plan.kinds.table import KINDS
from pipeline.plan.plan import Plan
from pipeline.plan.status import Status, describe_changes
from pipeline.plan.tasks import ActionTask
from pipeline.report.events import TIMELINE
from pipeline.run.stages import LOADS, PACKAGE_CALLS, SOURCE_CALLS
from pipeline.store.digest import Digest
from pipeline.store.entries import ActionEntry
from pipeline.store.errors import PipelineError
from pipeline.store.files import read_record
from pipeline.store.json_diff import diff_json

_SHOWN = 0.05  # seconds; shorter stages aren't shown
_NEEDED = (SOURCE_CALLS, PACKAGE_CALLS, LOADS)
_SLOWEST = 5  # actions to name
_SCHEDULE = ("seconds", "workers", "idle", "idle_while_ready", "chain")


def run(plan: Plan, words: Sequence[str], json: bool = False) -> Iterator[Any]:
    """Explain each target, or the last run if no target is named.

    Args:
        json: yields one record instead of lines, in the form of `forms.EXPLANATION`.

    Raises:
        PipelineError: a target doesn't exist or its config has mistakes; explanations of earlier
            targets are yielded first.
    """
    if not words:
        schedule, sentences = _read_last_run(plan)
        if json:
            yield {"format": 1, "actions": [], "last_run": schedule}
        else:
            yield from sentences
        return
    actions: list[dict[str, Any]] = []
    mistake = None
    for target in find_targets(plan, words):
        try:
            explained = list(explain(plan, target))
        except PipelineError as error:
            mistake = error
            break
        actions += [record for record, _ in explained]
        if not json:
            yield from _describe(explained)
    if json:
        yield {"format": 1, "actions": actions, "last_run": None}
    else:
        yield from describe_trouble(plan.workspace.store)
    if mistake is not None:
        raise mistake


def _read_last_run(plan: Plan) -> tuple[dict[str, Any], list[str]]:
    """Return the bounds of the last run that did something, also in sentences.

    Raises PipelineError.
    """
    timeline = read_record(plan.workspace.build / TIMELINE)
    bounds = next(call_all("find_schedule", timeline), None)
    if bounds is None:
        raise PipelineError(
            "no build/timeline.json of a run that did something; name what to explain: "
            "doit explain <package>[/<method>] ..."
        )
    schedule, sentences = bounds
    return {name: schedule[name] for name in _SCHEDULE}, sentences


# An action as JSON, and its entry in the store if the entry records the time of its stages.
Explained = tuple[dict[str, Any], ActionEntry | None]


def explain(plan: Plan, target: Target) -> Iterator[Explained]:
    """Explain each action of a package or of some of its methods.

    An explanation says whether the action is current and, if not, lists every difference between
    its key and the nearest earlier key.

    Raises:
        PipelineError: the config has mistakes.
    """
    plan.check(target.package)
    links = foresee_links(plan, [target.package])
    for task, status in expected(plan, target.package, links):
        if is_of(task, target):
            action = expected_action(task, status)
            record = _explain_action(task, status, action)
            entry = _find_timed(task, action)
            if entry is not None:
                record["seconds"] = entry.seconds
                record["stages"] = dict(entry.stages)
            yield record, entry


def _describe(explained: Sequence[Explained]) -> Iterator[str]:
    """Yield the lines on the actions of a target."""
    for record, _ in explained:
        yield f"{_make_title(record)}: {VERDICTS[record['state']]}"
        if record["changes"]:
            yield f"  compared with {record['since']}:"
            yield from (f"  - {line}" for line in record["changes"])
        else:
            yield f"  {record['reason']}"
        yield from (f"  {line}" for line in record["remarks"])
    timed = [(record, entry) for record, entry in explained if entry is not None]
    if timed:
        yield "where the time went:"
        timed.sort(key=lambda pair: -pair[1].seconds)
        for record, entry in timed[:_SLOWEST]:
            yield f"  {_make_title(record)} {_describe_time(entry)}"


def _make_title(record: Mapping[str, Any]) -> str:
    name = record["package"] or record["model"]
    title = "/".join(filter(None, [name, unit_name(record["methods"])]))
    return f"{record['kind']} {title}"


def _find_timed(task: ActionTask, action: Action | None) -> ActionEntry | None:
    """Return the entry of a completed action if it records the time of its stages.

    Returns None for a link, whose times include those of the objects that it joins.
    """
    if task.kind == "link" or action is None:
        return None
    entry = task.plan.workspace.store.get(action.digest)
    if entry is not None and entry.stages:
        return entry
    return None


def _describe_time(entry: ActionEntry) -> str:
    """Describe how an action's time was spent, whether it ran here or elsewhere."""
    stages = sorted(entry.stages.items(), key=lambda item: -item[1])
    parts = []
    for name, seconds in stages:
        if seconds >= _SHOWN:
            parts.append(f"{name} {seconds:.1f} s")
    total = f"{entry.seconds:.1f} s"
    if not parts:
        return total
    remark = _compare_with_calls(entry) or _count_observed(entry)
    return f"{total}: {', '.join(parts)}{remark}"


def _compare_with_calls(entry: ActionEntry) -> str:
    """Describe a validation's time as a multiple of its calls and loads; "" for other actions."""
    calls = sum(entry.stages.get(name, 0.0) for name in _NEEDED)
    if not calls:
        return ""
    ratio = entry.seconds / calls
    return f"; {ratio:.1f} times its {', '.join(_NEEDED[:-1])} and {_NEEDED[-1]}"


def _count_observed(entry: ActionEntry) -> str:
    """Describe on how many inputs a quantization observed ranges; "" if on none."""
    calibration = entry.result.get("facts", {}).get("calibration", {})
    match calibration.get("inputs", 0):
        case 0:
            return ""
        case 1:
            return "; observed 1 input"
        case count:
            return f"; observed {count} inputs"


def _explain_action(
    task: ActionTask, status: Status, action: Action | None
) -> dict[str, Any]:
    """Return an action as JSON, with the differences between its key and an earlier action's."""
    plan = task.plan
    record = {
        **describe_action(task, status),
        "since": "",
        "changes": [],
        "remarks": [],
        "seconds": None,
        "stages": {},
    }
    if status.current or action is None:
        return record
    if task.kind == "export" and plan.workspace.store.get(action.digest):
        return record
    since, old = _nearest_key(task, action)
    if old is None:
        lack = "there is no earlier build of this package"
        if plan.workspace.state(task.name):
            lack = "the store no longer has the last build"
        record["reason"] += f"; {lack} to compare with"
    elif task.kind == "export" and not _is_followed(plan, action):
        pass  # what it reads is a guess, so it can't be compared
    elif changes := list(describe_changes(plan, old, action)):
        record |= {"since": since, "changes": changes}
    if task.kind == "compile" and status.state == "stale":
        sentences = call_all("explain_compile", action, plan.workspace)
        record["remarks"] = list(filter(None, sentences))
    return record


def _is_followed(plan: Plan, export: Action) -> bool:
    """Return whether the store knows what an exporter with this content reads."""
    key = reads_key(export.model, export.key["source"])
    return plan.workspace.store.get_by_key(key) is not None


def _nearest_key(
    task: ActionTask, action: Action
) -> tuple[str, Mapping[str, Any] | None]:
    """Return an earlier key to compare with, and a description of it.

    This is the key of the last build in this workspace, or else the most similar key of this
    package in the store, preferring the most recently used.
    """
    store = task.plan.workspace.store
    previous, old = _find_last(task)
    if previous is not None and previous != action.digest:
        entry = store.get(previous)
        if entry:
            old = entry.key
        if old is not None:
            return "the last build in this workspace", old
    is_of_package = _is_of_package(task)
    comparable = []
    for digest, key in earlier_keys(store, action.kind, action.key):
        if digest == action.digest or not is_of_package(digest, key):
            continue
        if _comparable(key, action.key):
            comparable.append(key)

    def count_differences(key: Mapping[str, Any]) -> int:
        return sum(1 for _ in diff_json(key, action.key))

    nearest = min(comparable, key=count_differences, default=None)
    return "the nearest one in the store", nearest


def _find_last(
    task: ActionTask,
) -> tuple[Digest | None, Mapping[str, Any] | None]:
    """Return the digest of the action last completed in this workspace.

    For a failed validation, which the store doesn't keep, also return its key.
    """
    state = task.plan.workspace.state(task.name)
    record = state.get(task.kind, {})
    if KINDS[task.kind].installed:
        return record.get("action"), record.get("key")
    return record.get(unit_name(task.unit)), None


def _is_of_package(
    task: ActionTask,
) -> Callable[[Digest, Mapping[str, Any]], bool]:
    """Return a predicate that selects actions of the same package, or exports of its model.

    It is called with an action's digest and key.

    Packages share quantized and compiled methods, so the keys of these actions name no package; a
    package's links name the actions whose results they use.
    """
    package = task.name
    if task.kind in ("compile", "quantize"):
        used = _used_by_links(task.plan, package)
        return lambda digest, _: digest in used

    def names_package(_: Digest, key: Mapping[str, Any]) -> bool:
        measured = key.get("measured", {})
        return key.get("package", measured.get("package", package)) == package

    return names_package


def _used_by_links(plan: Plan, package: str) -> set[Digest]:
    """Return the compile and quantize actions behind all links of a package in the store."""
    store = plan.workspace.store
    used = set[Digest]()
    for _, key in earlier_keys(store, "link", {"model": plan.model(package)}):
        if key["package"] == package:
            used.update(key["compiles"].values())
    # A copy, since the loop adds to the set.
    for digest in list(used):
        entry = store.get(digest)
        if entry is None:
            continue
        for method in entry.key["methods"].values():
            if method["quantize"]:
                used.add(method["quantize"])
    return used


def _comparable(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether two keys have the same model and the same method names."""
    return old.get("model") == new.get("model") and all(
        old.get(name, {}).keys() == new.get(name, {}).keys()
        for name in ("methods", "programs")
    )
