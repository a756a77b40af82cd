"""The status of a plan's actions: which are stale, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pipeline.plan import keys
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.store.digest import Digest
from pipeline.store.entries import ANYONE

State = Literal["up-to-date", "hit", "stale", "waiting"]
_MOST_REASONS = 3
_WORDS = {
    "quantize": ("quantized", "quantized program"),
    "compile": ("compiled", "object"),
}


class Status(NamedTuple):
    """The status of an action.

    `hit` means that the result is not in the workspace, but in the store; `waiting`, that a
    preceding action must run first.
    """

    state: State
    reason: str

    @property
    def current(self) -> bool:
        return self.state == "up-to-date"


def export_status(plan: Plan, model: str) -> Status:
    # Imported lazily: a no-op run of models in archives doesn't need it.
    from pipeline.plan.kinds.export import find_exported_blobs, reads_key

    action = plan.models.export(model)
    store = plan.workspace.store
    entry = store.get(action.digest)
    if entry is not None:
        if not plan.models.is_current(model):
            why = _first(action.inputs.unfollowed)
            return Status(
                "stale",
                f"exported every time: {why}; declare INPUTS to reuse the export",
            )
        if store.obtainable(find_exported_blobs(entry.result)):
            return Status("up-to-date", "its source and all it reads are unchanged")
        return Status("stale", "its exported program is no longer in the store")
    record = store.get_by_key(reads_key(model, action.key["source"]))
    last = record and record.result.get("last")
    if not isinstance(last, str):
        return Status("stale", _why_unknown(plan, model, action.key["source"]))
    return Status("stale", _changes(plan, Digest(last), action, "exported"))


def _why_unknown(plan: Plan, export: str, source: Digest) -> str:
    """Return why no run of an exporter with this content is known."""
    sources = set[str]()  # "" for an export that was fetched with its package
    for package in plan.packages:
        if plan.export(package) == export and (state := plan.workspace.state(package)):
            vouchers = state.get("link", {}).get("vouchers", ())
            if mistrust := _describe_mistrust(plan, vouchers):
                return mistrust
            sources.add(state.get("exporter", ""))
    if not sources:
        return "not exported yet"
    lost = "the store no longer has its list of inputs"
    if source in sources:
        return lost
    path = plan.models.source(export).path.relative_to(plan.workspace.root)
    return f"{path} changed" if any(sources) else f"{path} changed, or {lost}"


def _first(reasons: Sequence[str]) -> str:
    more = len(reasons) - _MOST_REASONS
    last = [f"and {more} more"] if more > 0 else []
    return "; ".join([*reasons[:_MOST_REASONS], *last])


def unit_status(plan: Plan, package: str, action: Action | None) -> Status:
    """Return the status of a quantize or compile action, which leaves nothing in `build/`.

    `action` is None until it can be known.
    """
    if action is None:
        return _waiting(plan, package)
    verb, noun = _WORDS[action.kind]
    store = plan.workspace.store
    previous = (
        plan.workspace.state(package).get(action.kind, {}).get(str(action.method))
    )
    entry = store.get(action.digest)
    if entry is not None and store.obtainable(entry.result["blobs"]):
        if previous == action.digest:
            return Status("up-to-date", "unchanged")
        return Status("hit", f"{verb} before; {_changes(plan, previous, action, verb)}")
    if previous == action.digest or entry is not None:
        return Status("stale", f"its {noun} is no longer in the store")
    return Status("stale", _changes(plan, previous, action, verb))


def link_status(plan: Plan, package: str) -> Status:
    digest = plan.link_digest(package)
    if digest is None:
        return _waiting(plan, package)
    recorded = plan.workspace.state(package).get("link", {})
    if recorded.get("action") == digest:
        reason = find_damage(plan, package, recorded)
        if not reason:
            return Status("up-to-date", "unchanged")
    else:
        reason = _link_changes(plan, package, recorded.get("action"))
    return _hit_or_stale(plan, digest, reason)


def validate_status(plan: Plan, package: str, unit: Sequence[str] = ()) -> Status:
    """Return the status of the validation of a package, or of the methods in `unit`."""
    digest = plan.validate_digest(package)
    if digest is None:
        return Status("waiting", "the package is not lowered yet")
    action = None
    methods = validated_unit(plan, package, unit)
    if methods and (action := plan.validate(package, methods)):
        digest = action.digest
    recorded = plan.workspace.state(package).get("validate", {})
    summary = plan.configs.summary(package)
    unkept = _why_unkept(recorded, summary.budget) if recorded and summary else ""
    if recorded.get("action") != digest:
        action = action or plan.validate(package)
        if action is None:  # another run in this workspace is making it again
            return Status("waiting", "the package is not lowered yet")
        key = recorded.get("key")  # of a validation that is not in the store
        changed = _changes(plan, recorded.get("action"), action, "validated", key)
        return _hit_or_stale(plan, digest, "; ".join(filter(None, (unkept, changed))))
    if unkept:
        return Status("stale", unkept)
    if damage := find_damage(plan, package, recorded):
        return _hit_or_stale(plan, digest, damage)
    left_out = recorded.get("left_out")
    return Status("up-to-date", f"unchanged; {left_out}" if left_out else "unchanged")


def validated_unit(plan: Plan, package: str, unit: Sequence[str]) -> Sequence[str]:
    """Return the methods to validate if `unit` is requested.

    Returns an empty unit, which stands for the whole package, if the package's validation isn't
    stale.
    """
    if unit and validate_status(plan, package).state == "stale":
        return unit
    return ()


def _why_unkept(recorded: Mapping[str, Any], budget: float) -> str:
    """Return why a validation that is not in the store must run again, or ""."""
    if not recorded.get("ok"):
        return "the last validation failed"
    # With the same budget, it would run out of time at the same point.
    if recorded.get("complete", True) or recorded.get("budget", 0) >= budget:
        return ""
    return "the last validation ran out of time and left some inputs out"


def _hit_or_stale(plan: Plan, action: Digest, reason: str) -> Status:
    """Return the status of an action whose result is files, some of which are not in `build/`."""
    from pipeline.store.pieces import blobs_of_files  # a no-op run looks nothing up

    store = plan.workspace.store
    entry = store.get(action)
    is_stored = entry is not None and store.obtainable(blobs_of_files(entry.result))
    return Status("hit" if is_stored else "stale", reason)


def _waiting(plan: Plan, package: str) -> Status:
    member = next(filter(plan.waits, plan.linked_from(package)), package)
    export = plan.export(member)
    assert export is not None
    owner = "" if member == package else f", of {member} in its family,"
    why = export_status(plan, export).reason
    return Status("waiting", f"model {export}{owner} must be exported first: {why}")


def find_damage(plan: Plan, package: str, recorded: Mapping[str, Any]) -> str:
    """Describe what is wrong with the files that a build left and recorded, or return ""."""
    if mistrust := _describe_mistrust(plan, recorded.get("vouchers", ())):
        return mistrust
    path = plan.workspace.find_damaged(package, recorded["files"])
    if path is None:
        return ""
    wrong = "was edited" if path.exists() else "is missing"
    return f"{path.relative_to(plan.workspace.build)} {wrong}"


def _describe_mistrust(plan: Plan, vouchers: Sequence[str]) -> str:
    """Return why the vouchers of a package are no longer all trusted, or "" if they are."""
    for voucher in vouchers:
        if plan.workspace.store.trusts([voucher]):
            continue
        if voucher == ANYONE:
            return "it was built while unsigned results of a remote were trusted"
        return (
            "it may contain results signed by a key that is no longer trusted "
            f"({voucher[:12]})"
        )
    return ""


def _link_changes(plan: Plan, package: str, previous: Digest | None) -> str:
    """Return the changes of the methods to link or, if there are none, those of the link itself."""
    action = plan.link(package)
    if previous is None or action is None:
        return "never lowered in this workspace"
    # Doesn't ask whether the store still has the units, since that would read all their blobs.
    compiled = plan.workspace.state(package).get("compile", {})
    stale = [
        f"{unit.method}: "
        + _changes(plan, before, unit).removeprefix(f"{unit.method}: ")
        for unit in plan.compiles(package) or ()
        if (before := compiled.get(str(unit.method))) != unit.digest
    ]
    reasons: list[str] = []
    for planning in plan.find_planning(package):
        reasons += planning.explain_link(package)
    return "; ".join(stale) or _first(reasons) or _changes(plan, previous, action)


def _changes(
    plan: Plan,
    previous: Digest | None,
    action: Action,
    verb: str = "compiled",
    key: Mapping[str, Any] | None = None,
) -> str:
    """Describe what changed since the `previous` action; `key` is its key, if known."""
    if previous is None:
        return f"never {verb} in this workspace"
    if key is None:
        if (old := plan.workspace.store.get(previous)) is None:
            return "its inputs are no longer in the store"
        key = old.key
    return _first(list(describe_changes(plan, key, action))) or "its key changed"


def describe_changes(
    plan: Plan, old: Mapping[str, Any], action: Action
) -> Iterator[str]:
    """Describe how an action's key differs from an earlier key of its kind."""

    def find_parts(program: Digest) -> Mapping[str, Any] | None:
        entry = plan.workspace.store.get_by_key(keys.program_key(program))
        return entry and entry.result

    planned: dict[Digest, Mapping[str, Any]] = {}
    if action.kind == "compile":
        quantizes = plan.quantizes(str(action.package)) or {}
        planned = {quantize.digest: quantize.key for quantize in quantizes.values()}

    def find_key(quantize: Digest) -> Mapping[str, Any] | None:
        entry = plan.workspace.store.get(quantize)
        return planned.get(quantize) or (entry.key if entry else None)

    file = str(plan.models.source(action.model).path.relative_to(plan.workspace.root))
    # Imported lazily: a no-op run, where nothing differs, doesn't need it.
    from pipeline.plan.key_diff import describe_differences

    return describe_differences(old, action.key, find_parts, file, find_key)
