"""`doit plan` and `doit explain`: what a run would do and why, without doing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.cli.columns import columns
from pipeline.plan.actions import Action, backends_of, unit_name
from pipeline.plan.key_diff import differences
from pipeline.plan.plan import Plan
from pipeline.plan.status import (
    Status,
    changes_of,
    compile_status,
    export_status,
    link_status,
    quantize_status,
    validate_status,
)
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError, Problem, did_you_mean, told_once
from pipeline.store.maintenance import earlier_keys

_VERDICTS = {"up-to-date": "current", "hit": "in the store", "stale": "to do", "waiting": "waits"}


@dataclass(frozen=True)
class Expected:
    """An action that a run would look at, and what it would find; `action` is None where that
    can't be known before another one has run."""

    kind: str
    title: str
    status: Status
    action: Action | None
    previous: Digest | None = None


def expected(plan: Plan, package: str) -> Iterator[Expected]:
    """The actions of a package without problems, in the order of a run."""
    model = plan.exporter(package)
    if model is not None:
        yield Expected("export", model, export_status(plan, model), plan.models.export(model))
    state = plan.workspace.state(package)
    compiles = plan.compiles(package)
    stale = compiles is None
    for unit in plan.units(package):
        name = unit_name(unit)
        action = next((a for a in compiles or () if a.method == name), None)
        status = compile_status(plan, package, action)
        stale = stale or status.state == "stale"
        needed = status.state in ("stale", "waiting")
        yield from _expected_quantizes(plan, package, unit, needed)
        previous = state.get("compile", {}).get(name)
        yield Expected("compile", f"{package}/{name}", status, action, previous)
    link = link_status(plan, package)
    previous = state.get("link", {}).get("action")
    yield Expected("link", package, link, plan.link(package), previous)
    previous = state.get("validate", {}).get("action")
    if link.state in ("stale", "waiting"):
        status = Status("waiting", "the package is to be linked first")
        yield Expected("validate", package, status, None, previous)
    else:
        action = plan.validate(package)
        yield Expected("validate", package, validate_status(plan, package), action, previous)


def _expected_quantizes(
    plan: Plan, package: str, unit: Sequence[str], needed: bool
) -> Iterator[Expected]:
    """`needed`: whether the unit is to be compiled; otherwise a run does not look at them."""
    quantizes = plan.quantizes(package)
    state = plan.workspace.state(package).get("quantize", {})
    for method in unit:
        if method in plan.quantized(package):
            action = (quantizes or {}).get(method)
            status = quantize_status(plan, package, action)
            if not needed:
                status = Status("up-to-date", "its method is compiled")
            yield Expected("quantize", f"{package}/{method}", status, action, state.get(method))


def preview(plan: Plan, packages: Sequence[str]) -> Iterator[str]:
    """A line for each action that a run would not find current, and a sum."""
    counts = dict.fromkeys(_VERDICTS, 0)
    seen: dict[Digest, str] = {}
    exported: set[str] = set()
    told: dict[Problem, str] = {}
    rows: list[tuple[str, str, str, str]] = []
    faulty = 0
    notes: dict[str, None] = {}
    for package in packages or plan.packages:
        problems = plan.problems(package)
        for line in told_once(problems, package, told):
            rows.append(("", package, "faulty", line))
        if problems:
            faulty += 1
            continue
        for each in expected(plan, package):
            if each.kind == "export" and each.title in exported:
                continue
            exported.add(each.title)
            counts[each.status.state] += 1
            if each.status.current:
                continue
            reason = each.status.reason
            if each.action is not None and each.status.state == "stale":
                first = seen.setdefault(each.action.digest, each.title)
                reason += f"; the same as {first}" if first != each.title else ""
            rows.append((each.kind, each.title, _VERDICTS[each.status.state], reason))
            if each.kind == "compile":
                notes.update(dict.fromkeys(_overridden(plan, package)))
    for line in columns(rows):
        yield line.strip()
    sums = [f"{count} {_VERDICTS[state]}" for state, count in counts.items() if count]
    sums += [f"{faulty} faulty"] if faulty else []
    if rows:
        from pipeline.backends.constructors import outdated  # pydantic

        yield from filter(None, [outdated()])
    yield from notes
    yield ", ".join(sums) or "no packages"


def _overridden(plan: Plan, package: str) -> Iterator[str]:
    """What is to be said of backends that have a preprocess function beside their class."""
    config = plan.config(package)
    for backend in backends_of(config, config.methods):
        if backend.overridden:
            yield backend.overridden


def explain(plan: Plan, target: str) -> Iterator[str]:
    """Of each action of `<package>` or `<package>/<method>`, whether it is current, and for one
    that is not, everything that tells its key from the nearest earlier one.

    Raises:
        PipelineError: there is no such package or method, or its config has mistakes.
    """
    package, _, method = target.partition("/")
    if package not in plan.packages:
        raise PipelineError(f"no package '{package}'; {did_you_mean(package, plan.packages)}")
    plan.check(package)
    methods = [name for unit in plan.units(package) for name in unit]
    if method and method not in methods:
        raise PipelineError(f"{package}: has no method '{method}'; {did_you_mean(method, methods)}")
    for each in expected(plan, package):
        unit = each.title.partition("/")[2].split("+")
        if method and not (each.kind == "export" or method in unit):
            continue
        yield f"{each.kind} {each.title}: {_VERDICTS[each.status.state]}"
        for line in _why(plan, each):
            yield f"  {line}"


def _why(plan: Plan, each: Expected) -> Iterator[str]:
    if each.status.current or each.action is None:
        yield each.status.reason
        return
    found = _nearest(plan, each.action, each.previous)
    if found is None:
        yield f"{each.status.reason}; nothing of the kind was done before"
        return
    since, old = found
    told = list(changes_of(plan, old, each.action))
    if not told:
        yield each.status.reason
        return
    yield f"compared with {since}:"
    for line in told:
        yield f"- {line}"


def _nearest(
    plan: Plan, action: Action, previous: Digest | None
) -> tuple[str, Mapping[str, Any]] | None:
    """The key of the last build in this workspace, else the most similar one in the store; of
    equally similar ones the latest used."""
    store = plan.workspace.store
    if previous is not None and previous != action.digest:
        old = store.key(previous)
        if old is not None:
            return "the last build in this workspace", old
    candidates = [
        (sum(1 for _ in differences(key, action.key)), place, key)
        for place, (digest, key) in enumerate(earlier_keys(store, action.kind))
        if digest != action.digest and _comparable(key, action.key)
    ]
    if not candidates:
        return None
    return "the nearest one in the store", min(candidates, key=lambda each: each[:2])[2]


def _comparable(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether they are about the same thing, as far as a key says what it is about."""
    if old.get("model") != new.get("model"):
        return False
    return all(
        old.get(name, {}).keys() == new.get(name, {}).keys() for name in ("methods", "programs")
    )
