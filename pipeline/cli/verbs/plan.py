"""`doit plan`: what a run would do and why, or what each method finally gets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.cli.ahead import prefetch_packages
from pipeline.cli.columns import columns
from pipeline.cli.grammar import Target, find_targets
from pipeline.cli.verbs import known_packages
from pipeline.plan.actions import Action, unit_name
from pipeline.plan.plan import Plan
from pipeline.plan.remarks import find_remarks
from pipeline.plan.status import Status
from pipeline.plan.tasks import find_action, find_status
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
_UNLINKED = Status("waiting", "the package is to be linked first")
_UNLINKED_FAMILY = Status("waiting", "packages of its family are to be linked first")


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
            for remark in find_remarks(plan):
                yield f"warning: {remark}"


def _resolve(plan: Plan, packages: Sequence[str]) -> Iterator[str]:
    """Yield the resolved configs of packages. Raises ConfigErrors for the others, after these."""
    # Pydantic, which a preview does without.
    from pipeline.config.resolved import (
        resolved_view,
    )

    problems: list[Problem] = []
    sound: list[str] = []
    for package in packages:
        package_problems = plan.configs.parsed(package).problems
        problems += package_problems
        if not package_problems:
            sound.append(package)
    for number, package in enumerate(sound):
        if number:
            yield ""
        yield from resolved_view(plan.config(package), plan.document(package))
    if problems:
        raise ConfigErrors(problems)


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
        return (
            None
            if waits
            else find_action(self.plan, self.kind, self.package, self.unit)
        )

    def is_of(self, target: Target) -> bool:
        """Tell whether it is one of a target's actions: of methods, also the export of the
        model."""
        if self.kind == "export":
            return self.package == self.plan.exporter(target.package)
        if self.package != target.package:
            return False
        return not target.methods or bool(set(self.unit) & set(target.methods))


def foresee_links(plan: Plan, packages: Iterable[str]) -> dict[str, Status]:
    """Return the statuses of links, of the packages' families too, without packages that have
    mistakes, and let the plan know the files that a run takes from the store: a validation is known
    by the files of its package."""
    members = dict.fromkeys(packages)
    for package in list(members):
        members |= dict.fromkeys(plan.members(package))
    links: dict[str, Status] = {}
    for package in members:
        pending = plan.pending.get((package, "link"))
        if pending is not None:
            links[package] = pending
        elif not plan.problems(package):
            links[package] = find_status(plan, "link", package)
    foreseen: dict[str, Mapping[str, Digest]] = {}
    for package, status in links.items():
        link = plan.link_digest(package)
        entry = link and plan.workspace.store.get(link)
        if entry and status.state == "hit":
            foreseen[package] = entry.result["files"]
    plan.foreseen = foreseen
    return links


def expected(
    plan: Plan, package: str, links: Mapping[str, Status], whole: bool = False
) -> Iterator[Expected]:
    """Yield the actions of a package without problems, in the order of a run.

    Args:
        links: what `foresee_links` returned.
        whole: whether a run asks nothing about the methods of a package that the store has.
    """
    if (model := plan.exporter(package)) is not None:
        pending = plan.pending.get((package, "link"))
        status = pending or find_status(plan, "export", model)
        yield Expected(plan, "export", model, (), status)
    link = Expected(plan, "link", package, (), links[package])
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
    elif _waits_for_family(plan, package, links):
        yield Expected(plan, "validate", package, (), _UNLINKED_FAMILY)
    else:
        yield _expect(plan, "validate", package)


def _waits_for_family(plan: Plan, package: str, links: Mapping[str, Status]) -> bool:
    """Tell whether a package of the same family is to be linked, whose files count for the
    validation."""
    for member in plan.members(package):
        if member in links and links[member].state in _NOT_THERE:
            return True
    return False


def _expect(
    plan: Plan, kind: str, package: str, unit: tuple[str, ...] = ()
) -> Expected:
    """Return what a run would find, unless it does tasks of the user's first."""
    pending = plan.pending.get((package, "link")) or plan.pending.get((package, kind))
    status = pending or find_status(plan, kind, package, unit)
    return Expected(plan, kind, package, unit, status)


def preview(plan: Plan, targets: Sequence[Target]) -> Iterator[str]:
    """Yield a line for each action that a run would not find current, and a sum.

    Raises:
        PipelineError: packages have mistakes, after the others were reported.
    """
    packages = list(dict.fromkeys(target.package for target in targets))
    whole = not any(target.methods for target in targets)
    plan.workspace.store.look(prefetch_packages(plan, packages, True, not whole))
    links = foresee_links(plan, packages)
    faulty: dict[str, Sequence[Problem]] = {}
    for package in packages:
        if package not in links:
            faulty[package] = plan.problems(package)
    table = _Preview(plan, targets)
    table.add_problems(faulty)
    for package in packages:
        if package not in faulty:
            for action in expected(plan, package, links, whole):
                table.add(action)
    yield from (line.strip() for line in columns(table.rows))
    if table.rows:
        from pipeline.backends.constructors import outdated  # pydantic

        yield from filter(None, [outdated()])
    yield from filter(None, table.notes)
    sums = table.sums()
    if faulty:
        sums.append(f"{len(faulty)} faulty")
    yield ", ".join(sums)
    if faulty:
        raise PipelineError(
            f"{plural(len(faulty), 'package')} with mistakes: {listed(faulty, 10)}"
        )


class _Preview:
    """The table of `doit plan`: its rows, counts of all actions, and notes on backends."""

    def __init__(self, plan: Plan, targets: Sequence[Target]) -> None:
        self.rows: list[tuple[str, str, str, str]] = []
        self.notes: dict[str, None] = {}
        self._plan = plan
        self._targets = targets
        self._counts = dict.fromkeys(VERDICTS, 0)
        self._titles: dict[Digest, str] = {}  # of the first action of a digest
        self._exported: set[str] = set()

    def add_problems(self, faulty: Mapping[str, Sequence[Problem]]) -> None:
        """Add a row for each problem of packages, and one for those that many packages have."""
        shown: dict[Problem, str] = {}
        widespread = find_widespread(faulty)
        for package, problems in faulty.items():
            for line in format_new_problems(problems, package, shown, widespread):
                self.rows.append(("", package, "faulty", line))

    def add(self, action: Expected) -> None:
        """Count an action of one of the targets, with a row where it is not current."""
        if not any(action.is_of(target) for target in self._targets):
            return
        if action.kind == "export":  # which several packages share
            if action.title in self._exported:
                return
            self._exported.add(action.title)
        self._counts[action.status.state] += 1
        if action.status.current:
            return
        verdict = VERDICTS[action.status.state]
        self.rows.append((action.kind, action.title, verdict, self._reason(action)))
        if action.kind == "compile":
            config = self._plan.config(action.package)
            for backend in config.backends(config.methods):
                self.notes[backend.overridden] = None

    def _reason(self, action: Expected) -> str:
        """Return why an action is not current, and the action that it is the same as."""
        reason = action.status.reason
        if action.status.state == "stale" and action.action is not None:
            first = self._titles.setdefault(action.action.digest, action.title)
            if first != action.title:
                reason += f"; the same as {first}"
        return reason

    def sums(self) -> list[str]:
        """Return how many actions there are of each state."""
        verbs = dict(VERDICTS)
        if self._counts["waiting"] > 1:
            verbs["waiting"] = "wait"
        return [
            f"{count} {verbs[state]}" for state, count in self._counts.items() if count
        ]
