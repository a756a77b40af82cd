"""`doit explain`: why each action of a package or a method is current or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.cli.grammar import Target, find_targets
from pipeline.features.explain.plan import (
    VERDICTS,
    describe_action,
    expected,
    expected_action,
    foresee_links,
    is_of,
)
from pipeline.moments import call_all, earlier_keys
from pipeline.plan.actions import Action, unit_name
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

_SHOWN = 0.05  # seconds of a stage, below which it is passed over
_NEEDED = (SOURCE_CALLS, PACKAGE_CALLS, LOADS)
_SLOWEST = 5  # actions that are named
_SCHEDULE = ("seconds", "workers", "idle", "idle_while_ready", "chain")


def run(plan: Plan, words: Sequence[str], json: bool = False) -> Iterator[Any]:
    """Explain each target, or without any the last run.

    Args:
        json: yields one record instead of lines, as `forms.EXPLANATION` describes it.

    Raises:
        PipelineError: a target is not there, or its config has mistakes; what is explained before
            it is yielded first.
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
    if mistake is not None:
        raise mistake


def _read_last_run(plan: Plan) -> tuple[dict[str, Any], list[str]]:
    """Return what bounded the last run that did something, and in sentences. Raises
    PipelineError."""
    timeline = read_record(plan.workspace.build / TIMELINE)
    bounds = next(call_all("find_schedule", timeline), None)
    if bounds is None:
        raise PipelineError(
            "no build/timeline.json of a run that did something; name what to explain: "
            "doit explain <package>[/<method>] ..."
        )
    schedule, sentences = bounds
    return {name: schedule[name] for name in _SCHEDULE}, sentences


# An action as JSON, and its entry in the store, where that says how long its stages took.
Explained = tuple[dict[str, Any], ActionEntry | None]


def explain(plan: Plan, target: Target) -> Iterator[Explained]:
    """Explain each action of a package or of some of its methods: whether it is current, and for
    one that is not, everything that tells its key from the nearest earlier one.

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
    """Return the entry of an action that was done, if it says how long its stages took. That of a
    link counts what it joins, so it says nothing of its own."""
    if task.kind == "link" or action is None:
        return None
    entry = task.plan.workspace.store.get(action.digest)
    if entry is not None and entry.stages:
        return entry
    return None


def _describe_time(entry: ActionEntry) -> str:
    """Say where the time went when an action was done, whether here or elsewhere."""
    stages = sorted(
        entry.stages.items(),
        key=lambda item: -item[1],
    )
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
    """Say how often a validation took the time of the calls and loads that it can't do without; ""
    for other actions."""
    calls = sum(entry.stages.get(name, 0.0) for name in _NEEDED)
    if not calls:
        return ""
    ratio = entry.seconds / calls
    return f"; {ratio:.1f} times its {', '.join(_NEEDED[:-1])} and {_NEEDED[-1]}"


def _count_observed(entry: ActionEntry) -> str:
    """Say on how many inputs a quantization observed ranges; "" where it did on none."""
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
    """Return an action as JSON, with what tells its key from that of an earlier one."""
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
        record["reason"] += (
            "; there is no earlier build of this package to compare with"
        )
    elif changes := list(describe_changes(plan, old, action)):
        record |= {"since": since, "changes": changes}
    if task.kind == "compile" and status.state == "stale":
        sentences = call_all("explain_compile", action, plan.workspace)
        record["remarks"] = list(filter(None, sentences))
    return record


def _nearest_key(
    task: ActionTask, action: Action
) -> tuple[str, Mapping[str, Any] | None]:
    """Return the key of the last build in this workspace, else the most similar one of this package
    in the store, and which of them it is; of equally similar ones the latest used."""
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
    """Return the digest of the action that was last done in this workspace and, of a failed
    validation, which the store does not hold, its key."""
    state = task.plan.workspace.state(task.name)
    record = state.get(task.kind, {})
    if KINDS[task.kind].installed:
        return record.get("action"), record.get("key")
    return record.get(unit_name(task.unit)), None


def _is_of_package(
    task: ActionTask,
) -> Callable[[Digest, Mapping[str, Any]], bool]:
    """Return a function that tells of an action's digest and key whether it is one of the same
    package, or the export of the same model.

    Packages share what is quantized and compiled, so these keys name none; the links of a package
    name what they are made of.
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
    """Return the compile and quantize actions of all links of a package that the store holds."""
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
    """Return whether two keys are about the same thing, as far as a key says so."""
    return old.get("model") == new.get("model") and all(
        old.get(name, {}).keys() == new.get(name, {}).keys()
        for name in ("methods", "programs")
    )
