"""The verdicts that stand after a run.

A package that was up to date has one too: what was never run, or that nothing judges, is reported
each time. Where its validation was asked for it counts for the exit status, unless it is declared
to be good enough: by `allow` of its config, of the settings, or `--allow`.
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
# Beside what is up to date, the word alone would be about this run.
_COUNTED = {NOT_RUN: "never run here"}


class StandingVerdict(NamedTuple):
    """The verdict on a package, and on its methods that have not passed; `asked` is whether this
    run was to validate it, and then it has not failed. `no_baseline` are its gates that nothing can
    be compared with yet."""

    package: str
    verdict: str
    methods: dict[str, str]
    accepted: bool
    no_baseline: tuple[str, ...] = ()
    asked: bool = True


def find_standing(plan: Plan, events: Iterable[Event]) -> list[StandingVerdict]:
    """Return the verdicts on packages whose validation ended well, or that were only lowered and
    have been validated as they are, by package."""
    asked: dict[str, set[str] | None] = {}
    lowered: dict[str, None] = {}
    tried: set[str] = set()
    for event in events:
        if event.kind == "validate":
            tried.add(str(event.package))
        elif event.kind == "link" and event.outcome in DONE:
            lowered[str(event.package)] = None
        if event.kind == "validate" and event.outcome in DONE:
            asked[str(event.package)] = set(event.method.split("+")) if event.method else None
    standing = []
    for package, only in sorted(asked.items()):
        facts = plan.workspace.state(package).get("validate", {})
        methods = {
            name: verdict
            for name, verdict in facts.get("methods", {}).items()
            if only is None or name in only
        }
        verdict = facts.get("verdict", NOT_RUN)
        if only is not None:
            verdict = worst_verdict(methods.values())
        allowed = (*facts.get("allow", ()), *plan.workspace.allow)
        accepted = is_accepted(verdict, allowed)
        gates = tuple(facts.get("no_baseline", ()))
        standing.append(StandingVerdict(package, verdict, methods, accepted, gates))
    for package in sorted(lowered.keys() - tried):
        facts = plan.workspace.state(package).get("validate", {})
        if facts and facts.get("action") == _validate_digest(plan, package):
            verdict = facts.get("verdict", NOT_RUN)
            standing.append(StandingVerdict(package, verdict, {}, True, asked=False))
    return standing


def _validate_digest(plan: Plan, package: str) -> Digest | None:
    with suppress(PipelineError):  # a mistake in what only a validation reads
        return plan.validate_digest(package)
    return None


def describe_standing(standing: Sequence[StandingVerdict]) -> Iterator[str]:
    """Yield a line for each verdict short of passed: the methods that have it, and what to do."""
    for verdict in VERDICTS[1:-1]:
        for accepted in (False, True):
            names = [
                name
                for each in standing
                if each.asked and each.accepted == accepted
                for name in _methods_of(each, verdict)
            ]
            if not names:
                continue
            word = f"{verdict} (allowed)" if accepted else verdict
            token = verdict.replace(" ", "-")
            remedy = "" if accepted else f"; the reports say why, `--allow {token}` accepts it"
            yield one_line(f"{word}: {listed(names, _MOST_NAMED)}{remedy}")
    yield from _describe_unrecorded(standing)


def _describe_unrecorded(standing: Iterable[StandingVerdict]) -> Iterator[str]:
    """Yield a line on the packages whose gates have no baseline to compare with yet."""
    names = [each.package for each in standing if each.no_baseline]
    if names:
        command = f"doit baseline {names[0]}" if len(names) == 1 else "doit baseline"
        yield one_line(f"no baseline yet: {listed(names, _MOST_NAMED)}; `{command}` records one")


def _methods_of(standing: StandingVerdict, verdict: str) -> list[str]:
    names = [name for name, found in standing.methods.items() if found == verdict]
    return [f"{standing.package}/{name}" for name in names]


def count_standing(standing: Sequence[StandingVerdict]) -> str:
    """Return how many packages have not passed, for the line of a run with nothing to do."""
    found = Counter(each.verdict for each in standing)
    counts = ((_COUNTED.get(verdict, verdict), found[verdict]) for verdict in VERDICTS[:-1])
    return "".join(f", {number} {words}" for words, number in counts if number)


def is_all_accepted(standing: Iterable[StandingVerdict]) -> bool:
    """Return whether every package passed, or is declared to be good enough."""
    return all(each.accepted for each in standing)


def describe_packages(packages: int, standing: Sequence[StandingVerdict]) -> str:
    """Return the line of a run with nothing to do."""
    return f"up to date: {plural(packages, 'package')}{count_standing(standing)}"
