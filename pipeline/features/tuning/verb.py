"""`doit tune`: tries variants of packages, shows the trade-offs, and writes the best into a
config."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.cli.verbs import known_packages
from pipeline.features.tuning.edit import write_choice
from pipeline.features.tuning.joint import choose_within
from pipeline.features.tuning.page import write_results
from pipeline.features.tuning.ranking import find_front
from pipeline.features.tuning.search import Search
from pipeline.features.tuning.table import list_lines
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError, listed, plural
from pipeline.store.sizes import parse_size

BEST = "best"


def run(
    plan: Plan,
    words: Sequence[str],
    trials: str = "",
    write: str = "",
    max_size: str = "",
    all: bool = False,
) -> Iterator[str]:
    """Try the variants of packages, by default of all that have a space; yield lines to print.

    Args:
        trials: how many, instead of what configs say.
        all: try all variants.
        write: a number, or `best`.
        max_size: the greatest sum of sizes of all named packages.

    Raises:
        PipelineError: for words without meaning, and where no trial is as limits ask for.
    """
    number = _parse_number(trials, "--trials")
    most = parse_size(max_size) if max_size else None
    if max_size and most is None:
        raise PipelineError(f"--max-size is '{max_size}', must be a size such as 10MB")
    if write != BEST:
        _parse_number(write, "--write")
    packages = _find_tuned(plan, words)
    if write not in ("", BEST) and len(packages) > 1:
        raise PipelineError("--write NUMBER is for one package; name it")
    searches = []
    for package in packages:
        started = time.monotonic()
        search = Search(plan, package, number, all)
        try:
            for built, whole in search.run():
                yield f"{package}: {built} of {plural(whole, 'trial')}"
        except KeyboardInterrupt:
            yield "interrupted; what was built is in the store, and the same command goes on"
            raise
        seconds = time.monotonic() - started
        yield from list_lines(search)
        work = f"{plural(search.folder.compiled, 'method')} compiled in {seconds:.0f} s"
        yield f"{work}; {write_results(search)}"
        searches.append(search)
    chosen = None
    if most is not None:
        chosen, lines = choose_within(searches, most)
        yield from lines
    if write:
        for place, search in enumerate(searches):
            trial = chosen[place] if chosen else _find_trial(search, write)
            yield write_choice(search.space, trial)


def _find_tuned(plan: Plan, words: Sequence[str]) -> list[str]:
    """Return the packages that are meant, which must have a space, without mistakes."""
    packages = known_packages(plan, words)
    tuned = []
    for package in packages:
        if words:
            plan.check(package)
        config = plan.configs.parsed(package).config
        if config is not None and getattr(config, "tune"):  # noqa: B009 - mypy knows no such field
            tuned.append(package)
        elif words:
            hint = "write `tune: {space: {methods.<method>.quantize: [...]}}`"
            raise PipelineError(f"{package}: its config has no section `tune`; {hint}")
    if not tuned:
        raise PipelineError(
            "no config has a section `tune`; `doit help tune` says more"
        )
    for package in tuned:
        plan.check(package)
    return tuned


def _parse_number(text: str, option: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal():
        raise PipelineError(f"{option} is '{text}', must be a whole number")
    return int(text)


def _find_trial(search: Search, write: str) -> Any:
    """Return the trial that is to be written. Raises PipelineError where there is none."""
    package = search.space.package
    if write == BEST:
        front = find_front(search.trials, search.objectives)
        if not front:
            raise PipelineError(
                f"{package}: no trial holds all limits; nothing is written"
            )
        return front[0]
    numbers = {str(trial.number): trial for trial in search.trials}
    if write not in numbers:
        raise PipelineError(
            f"{package}: no trial {write}; known: {listed(numbers, 40)}"
        )
    trial = numbers[write]
    if not trial.name:
        raise PipelineError(f"{package}: trial {write} can't be: {trial.faults[0]}")
    return trial
