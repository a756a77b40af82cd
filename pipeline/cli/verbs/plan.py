"""`doit plan`: what a run would do and why, or what each method finally gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pipeline.cli.columns import columns
from pipeline.cli.grammar import Target, find_targets
from pipeline.cli.verbs import known_packages
from pipeline.plan.actions import Action, unit_name
from pipeline.plan.kinds.table import KINDS
from pipeline.plan.plan import Plan
from pipeline.plan.remarks import find_broken_files, find_remarks
from pipeline.plan.status import Status
from pipeline.plan.tasks import find_action, find_last, find_status
from pipeline.plan.waves import ask_for_packages
from pipeline.store.digest import Digest
from pipeline.store.errors import (
    ConfigErrors,
    PipelineError,
    Problem,
    format_new_problems,
    listed,
    plural,
)

VERDICTS = {"up-to-date": "current", "hit": "in the store", "stale": "to do", "waiting": "waits"}
_NOT_THERE = ("stale", "waiting")
_LINKED = Status("up-to-date", "its package is lowered")
_TO_FETCH = Status("hit", "its package is in the store")
_COMPILED = Status("up-to-date", "its method is compiled")
_UNLINKED = Status("waiting", "the package is to be linked first")


def run(plan: Plan, words: Sequence[str], resolved: bool = False) -> Iterator[str]:
    """Yield a line for each action that a run would not find current, and a sum.

    Args:
        words: packages or their methods (`package/method`), by default all.
        resolved: yields what each method finally gets instead.

    Raises:
        PipelineError: there is no such package, or a package has mistakes.
    """
    if resolved:
        yield from _resolve(plan, known_packages(plan, words))
    else:
        yield from preview(plan, find_targets(plan, words))
        if not words:
            remarks = (*find_broken_files(plan), *find_remarks(plan))
            yield from (f"warning: {remark}" for remark in remarks)


def _resolve(plan: Plan, packages: Sequence[str]) -> Iterator[str]:
    """Yield the resolved configs of packages. Raises ConfigErrors for the others, after these."""
    from pipeline.config.resolved import resolved_view  # pydantic, which a preview does without

    problems = [plan.configs.parsed(package).problems for package in packages]
    sound = [each for each, found in zip(packages, problems, strict=True) if not found]
    for number, package in enumerate(sound):
        yield from [""] if number else []
        yield from resolved_view(plan.config(package), plan.document(package))
    if len(sound) < len(packages):
        raise ConfigErrors(chain.from_iterable(problems))


@dataclass(frozen=True)
class Expected:
    """An action that a run would look at, and what it would find."""

    plan: Plan
    kind: str
    package: str
    unit: tuple[str, ...]
    status: Status

    @property
    def title(self) -> str:
        return "/".join(filter(None, [self.package, unit_name(self.unit)]))

    @property
    def action(self) -> Action | None:
        """The action, or None where it can't be known before another one has run."""
        waits = self.status.state == "waiting"
        return None if waits else find_action(self.plan, self.kind, self.package, self.unit)

    def is_of(self, target: Target) -> bool:
        """Tell whether it is one of a target's actions: of methods, also the export of the
        model."""
        if self.kind == "export":
            return self.package == self.plan.exporter(target.package)
        own = not target.methods or bool(set(self.unit) & set(target.methods))
        return own and self.package == target.package

    @property
    def previous(self) -> Digest | None:
        """The digest of the action that was last done in this workspace."""
        return find_last(self.kind, self.plan.workspace.state(self.package), self.unit)

    @property
    def unkept_key(self) -> Mapping[str, Any] | None:
        """The key of the last action where the store does not hold it: a failed validation's."""
        if not KINDS[self.kind].installed:
            return None
        key: Mapping[str, Any] | None = (
            self.plan.workspace.state(self.package).get(self.kind, {}).get("key")
        )
        return key


def expected(plan: Plan, package: str, whole: bool = False) -> Iterator[Expected]:
    """Yield the actions of a package without problems, in the order of a run; where the store has
    it `whole`, that is all that is asked about its methods, as by a run."""
    if (model := plan.exporter(package)) is not None:
        yield _expect(plan, "export", model)
    link = _expect(plan, "link", package)
    for unit in plan.units(package):
        if link.status.current:  # a run doesn't look at them, whatever the store has
            compile_ = Expected(plan, "compile", package, unit, _LINKED)
        elif whole and link.status.state == "hit":
            compile_ = Expected(plan, "compile", package, unit, _TO_FETCH)
        else:
            compile_ = _expect(plan, "compile", package, unit)
        for method in unit:
            if method in plan.quantized(package):
                if compile_.status.state in _NOT_THERE:
                    yield _expect(plan, "quantize", package, (method,))
                else:
                    yield Expected(plan, "quantize", package, (method,), _COMPILED)
        yield compile_
    yield link
    if link.status.state in _NOT_THERE:
        yield Expected(plan, "validate", package, (), _UNLINKED)
    else:
        yield _expect(plan, "validate", package)


def _expect(plan: Plan, kind: str, package: str, unit: tuple[str, ...] = ()) -> Expected:
    return Expected(plan, kind, package, unit, find_status(plan, kind, package, unit))


def preview(plan: Plan, targets: Sequence[Target]) -> Iterator[str]:
    """Yield a line for each action that a run would not find current, and a sum.

    Raises:
        PipelineError: packages have mistakes, after the others were told.
    """
    counts = dict.fromkeys(VERDICTS, 0)
    seen: dict[Digest, str] = {}
    exported: set[str] = set()
    shown: dict[Problem, str] = {}
    rows: list[tuple[str, str, str, str]] = []
    notes: dict[str, None] = {}
    packages = list(dict.fromkeys(target.package for target in targets))
    faulty = [package for package in packages if plan.problems(package)]
    sound = [package for package in packages if package not in faulty]
    whole = not any(target.methods for target in targets)
    plan.workspace.store.look(ask_for_packages(plan, sound, methods=not whole))
    for package in packages:
        if package in faulty:
            lines = format_new_problems(plan.problems(package), package, shown)
            rows += [("", package, "faulty", line) for line in lines]
            continue
        for each in expected(plan, package, whole):
            if not any(each.is_of(target) for target in targets):
                continue
            if each.kind == "export" and each.title in exported:
                continue
            exported.add(each.title)
            counts[each.status.state] += 1
            if each.status.current:
                continue
            reason = each.status.reason
            if each.status.state == "stale" and (action := each.action) is not None:
                first = seen.setdefault(action.digest, each.title)
                reason += f"; the same as {first}" if first != each.title else ""
            rows.append((each.kind, each.title, VERDICTS[each.status.state], reason))
            if each.kind == "compile":
                config = plan.config(package)
                backends = config.backends(config.methods)
                notes |= dict.fromkeys(backend.overridden for backend in backends)
    yield from (line.strip() for line in columns(rows))
    if rows:
        from pipeline.backends.constructors import outdated  # pydantic

        yield from filter(None, [outdated()])
    yield from filter(None, notes)
    verbs = VERDICTS | ({"waiting": "wait"} if counts["waiting"] > 1 else {})
    sums = [f"{count} {verbs[state]}" for state, count in counts.items() if count]
    yield ", ".join([*sums, *([f"{len(faulty)} faulty"] if faulty else [])])
    if faulty:
        raise PipelineError(f"{plural(len(faulty), 'package')} with mistakes: {listed(faulty, 10)}")
