"""The current verdicts after a run.

Packages that were up to date have one too: a package that was never run, or that nothing judges, is
reported each time. If its validation was requested, the verdict affects the exit status, unless it
is accepted: by `allow` in its config or the settings, or by `--allow`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from pipeline.plan.plan import Plan
from pipeline.report.events import DONE, Event
from pipeline.report.verdicts import VERDICTS, Verdict, is_accepted, worst_verdict
from pipeline.store.digest import Digest
from pipeline.store.errors import PipelineError, listed, plural
from pipeline.store.visible import one_line

NOT_RUN: Verdict = "not run"
_MOST_NAMED = 6  # methods in a line
# "not run" alone, next to packages that are up to date, would seem to be about this run.
_COUNTED = {NOT_RUN: "with methods not run"}


class StandingVerdict(NamedTuple):
    """The verdict on a package, and on those of its methods that have not passed.

    Attributes:
        no_baseline: its gates that have no baseline yet to compare with.
        selected: whether this run was to validate it and did so without a failure.
        left_out: the calls for which its validation had no time, in words.
    """

    package: str
    verdict: str
    methods: dict[str, str]
    accepted: bool
    no_baseline: tuple[str, ...] = ()
    selected: bool = True
    left_out: str = ""


def find_standing(plan: Plan, events: Iterable[Event]) -> list[StandingVerdict]:
    """Return the verdicts on packages, sorted by name.

    Covers packages whose validation succeeded, and packages that were only lowered and whose
    current content was validated before.
    """
    selected: dict[str, str] = {}  # the methods to validate; "" for all
    lowered: set[str] = set()
    tried: set[str] = set()
    for event in events:
        package = str(event.package)
        if event.kind == "validate":
            tried.add(package)
        elif event.kind == "link" and event.outcome in DONE:
            lowered.add(package)
        if event.kind == "validate" and event.outcome in DONE:
            selected[package] = event.method or ""
    standing = [
        _selected_verdict(plan, package, unit)
        for package, unit in sorted(selected.items())
    ]
    for package in sorted(lowered - tried):
        facts = plan.workspace.state(package).get("validate", {})
        if facts and facts.get("action") == _validate_digest(plan, package):
            verdict = facts.get("verdict", NOT_RUN)
            standing.append(StandingVerdict(package, verdict, {}, True, selected=False))
    return standing


def _selected_verdict(plan: Plan, package: str, unit: str) -> StandingVerdict:
    """Return the verdict on a package that this run was to validate, or on some of its methods."""
    facts = plan.workspace.state(package).get("validate", {})
    methods = facts.get("methods", {})
    verdict = facts.get("verdict", NOT_RUN)
    if unit:
        names = unit.split("+")
        methods = {name: word for name, word in methods.items() if name in names}
        verdict = worst_verdict(methods.values())
    allowed = (*facts.get("allow", ()), *plan.workspace.allow)
    accepted = is_accepted(verdict, allowed)
    return StandingVerdict(
        package,
        verdict,
        dict(methods),
        accepted,
        tuple(facts.get("no_baseline", ())),
        left_out=facts.get("left_out", ""),
    )


def _validate_digest(plan: Plan, package: str) -> Digest | None:
    with suppress(PipelineError):  # a mistake in a part that only validation reads
        return plan.validate_digest(package)
    return None


def describe_standing(standing: Sequence[StandingVerdict]) -> Iterator[str]:
    """Yield a line for each verdict worse than passed, with its methods and the remedy."""
    for verdict in VERDICTS[1:-1]:
        for accepted in (False, True):
            names: list[str] = []
            for package_verdict in standing:
                if package_verdict.selected and package_verdict.accepted == accepted:
                    names += _methods_of(package_verdict, verdict)
            if not names:
                continue
            word = f"{verdict} (allowed)" if accepted else verdict
            token = verdict.replace(" ", "-")
            if accepted:
                remedy = ""
            else:
                remedy = f"; see the reports; `--allow {token}` accepts it"
            yield one_line(f"{word}: {listed(names, _MOST_NAMED)}{remedy}")
    yield from _describe_unrecorded(standing)


def _describe_unrecorded(standing: Iterable[StandingVerdict]) -> Iterator[str]:
    """Yield a line about packages whose gates have no baseline to compare with yet."""
    names = [verdict.package for verdict in standing if verdict.no_baseline]
    if names:
        command = "doit baseline"
        if len(names) == 1:
            command = f"doit baseline {names[0]}"
        yield one_line(
            f"no baseline yet: {listed(names, _MOST_NAMED)}; `{command}` records one"
        )


def _methods_of(standing: StandingVerdict, verdict: str) -> list[str]:
    names = [name for name, word in standing.methods.items() if word == verdict]
    return [f"{standing.package}/{name}" for name in names]


def count_standing(standing: Sequence[StandingVerdict]) -> str:
    """Return the counts of packages that have not passed, for the summary of a no-op run."""
    counts = Counter(package_verdict.verdict for package_verdict in standing)
    line = ""
    for verdict in VERDICTS[:-1]:
        if counts[verdict]:
            line += f", {counts[verdict]} {_COUNTED.get(verdict, verdict)}"
    return line


def is_all_accepted(standing: Iterable[StandingVerdict]) -> bool:
    """Return whether every package passed or has an accepted verdict."""
    return all(package_verdict.accepted for package_verdict in standing)


def describe_packages(
    packages: int, standing: Sequence[StandingVerdict]
) -> Iterator[str]:
    """Yield the line of a no-op run, and one for each package whose validation was cut short."""
    yield f"up to date: {plural(packages, 'package')}{count_standing(standing)}"
    for package_verdict in standing:
        if package_verdict.left_out:
            yield one_line(f"{package_verdict.package}: {package_verdict.left_out}")
