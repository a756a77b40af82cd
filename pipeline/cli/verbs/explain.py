"""`doit explain`: why each action of a package or a method is current or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.cli.grammar import Target, find_targets
from pipeline.cli.verbs.plan import VERDICTS, Expected, expected
from pipeline.moments import call_all
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.plan.status import describe_changes
from pipeline.store.digest import Digest
from pipeline.store.entries import ActionEntry
from pipeline.store.errors import PipelineError
from pipeline.store.json_diff import diff_json
from pipeline.store.maintenance import earlier_keys

_SHOWN = 0.05  # seconds of a stage, below which it is passed over
_SLOWEST = 5  # actions that are named


def run(plan: Plan, words: Sequence[str]) -> Iterator[str]:
    """Explain each target. Raises PipelineError."""
    if not words:
        raise PipelineError("say of what: doit explain <package>[/<method>] ...")
    for target in find_targets(plan, words):
        yield from explain(plan, target)


def explain(plan: Plan, target: Target) -> Iterator[str]:
    """Explain each action of a package or of some of its methods: whether it is current, and for
    one that is not, everything that tells its key from the nearest earlier one.

    Raises:
        PipelineError: the config has mistakes.
    """
    plan.check(target.package)
    timed: list[tuple[str, ActionEntry]] = []
    for each in expected(plan, target.package):
        if each.is_of(target):
            yield f"{each.kind} {each.title}: {VERDICTS[each.status.state]}"
            yield from (f"  {line}" for line in _explain_action(plan, each))
            if (entry := _find_timed(plan, each)) is not None:
                timed.append((f"{each.kind} {each.title}", entry))
    if timed:
        yield "where the time went:"
        timed.sort(key=lambda item: -item[1].seconds)
        yield from (f"  {title} {_describe_time(entry)}" for title, entry in timed[:_SLOWEST])


def _find_timed(plan: Plan, each: Expected) -> ActionEntry | None:
    """Return the entry of an action that was done, if it says how long its stages took. That of a
    link counts what it joins, so it says nothing of its own."""
    if each.kind == "link" or (action := each.action) is None:
        return None
    entry = plan.workspace.store.get(action.digest)
    return entry if entry is not None and entry.stages else None


def _describe_time(entry: ActionEntry) -> str:
    """Say where the time went when an action was done, whether here or elsewhere."""
    parts = sorted(entry.stages.items(), key=lambda item: -item[1])
    told = [f"{name} {seconds:.1f} s" for name, seconds in parts if seconds >= _SHOWN]
    return f"{entry.seconds:.1f} s{': ' if told else ''}{', '.join(told)}"


def _explain_action(plan: Plan, each: Expected) -> Iterator[str]:
    action = each.action
    known = each.kind == "export" and action and plan.workspace.store.get(action.digest)
    if each.status.current or action is None or known:
        yield each.status.reason
        return
    since, old = _nearest_key(each, action)
    if old is None:
        yield f"{each.status.reason}; there is no earlier build of this package to compare with"
    elif changes := list(describe_changes(plan, old, action)):
        yield f"compared with {since}:"
        yield from (f"- {line}" for line in changes)
    else:
        yield each.status.reason
    if each.action is not None and each.kind == "compile" and each.status.state == "stale":
        yield from filter(None, call_all("explain_compile", each.action, plan.workspace))


def _nearest_key(each: Expected, action: Action) -> tuple[str, Mapping[str, Any] | None]:
    """Return the key of the last build in this workspace, else the most similar one of this package
    in the store, and which of them it is; of equally similar ones the latest used."""
    store, previous = each.plan.workspace.store, each.previous
    if previous is not None and previous != action.digest:
        entry = store.get(previous)
        if (old := entry.key if entry else each.unkept_key) is not None:
            return "the last build in this workspace", old
    own = _is_of_package(each)
    comparable = [
        key
        for digest, key in earlier_keys(store, action.kind, action.key)
        if digest != action.digest and _comparable(key, action.key) and own(digest, key)
    ]
    nearest = min(comparable, key=lambda k: sum(1 for _ in diff_json(k, action.key)), default=None)
    return "the nearest one in the store", nearest


def _is_of_package(each: Expected) -> Callable[[Digest, Mapping[str, Any]], bool]:
    """Return a function that tells of an action's digest and key whether it is one of the same
    package, or the export of the same model.

    Packages share what is quantized and compiled, so these keys name none; the links of a package
    name what they are made of.
    """
    if each.kind in ("compile", "quantize"):
        used = _used_by_links(each.plan, each.package)
        return lambda digest, _: digest in used
    return lambda _, key: (
        key.get("package", key.get("measured", {}).get("package", each.package)) == each.package
    )


def _used_by_links(plan: Plan, package: str) -> set[Digest]:
    """Return the compile and quantize actions of all links of a package that the store holds."""
    store, used = plan.workspace.store, set[Digest]()
    for _, key in earlier_keys(store, "link", {"model": plan.model(package)}):
        if key["package"] == package:
            used.update(key["compiles"].values())
    for entry in [found for digest in used if (found := store.get(digest)) is not None]:
        methods = entry.key["methods"].values()
        used.update(each["quantize"] for each in methods if each["quantize"])
    return used


def _comparable(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether two keys are about the same thing, as far as a key says so."""
    return old.get("model") == new.get("model") and all(
        old.get(name, {}).keys() == new.get(name, {}).keys() for name in ("methods", "programs")
    )
