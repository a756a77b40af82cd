"""`doit tune`: tries variants of packages, shows trade-offs, and writes the best to a config."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.cli.verbs import known_packages
from pipeline.features.tuning.edit import write_choice
from pipeline.features.tuning.joint import choose_within, name_limits, read_constants
from pipeline.features.tuning.page import write_results
from pipeline.features.tuning.ranking import find_front
from pipeline.features.tuning.search import Search
from pipeline.features.tuning.sharing import read_families
from pipeline.features.tuning.table import list_lines
from pipeline.moments import has_feature
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
    max_memory: str = "",
    target: str = "",
    all: bool = False,
) -> Iterator[str]:
    """Try variants of the named packages, or of all that can be tuned; yield lines to print.

    Args:
        trials: the number of variants to try, in place of the configs' numbers.
        all: try all variants.
        write: the trial to write to the config: its number, or `best`.
        max_size, max_memory: the greatest sums over all named packages.
        target: selects the packages of this target, including those without a section `tune`.

    Raises:
        PipelineError: an argument is invalid, no trial is within the limits, or `write` is given
            but no feature edits configs.
    """
    number = _parse_count(trials, "--trials")
    sizes = {"size": _parse_size(max_size, "--max-size")}
    sizes["memory"] = _parse_size(max_memory, "--max-memory")
    # Checked before any trial is built.
    if write and not has_feature("config_edits"):
        lack = 'this installation has no feature "config_edits", which edits configs'
        raise PipelineError(f"--write: {lack}")
    if write != BEST and write and not write.isdecimal():
        raise PipelineError(
            f"--write is '{write}', must be best or the number of a trial"
        )
    packages, fixed = _find_packages(plan, words, target)
    if write not in ("", BEST) and len(packages) > 1:
        raise PipelineError("--write NUMBER is for one package; name it")
    searches = [Search(plan, package, number, all) for package in packages]
    limits = name_limits(searches, sizes)
    constants = read_constants(plan, fixed, limits)
    for search in searches:
        started = time.monotonic()
        package = search.space.package
        log = os.path.relpath(search.folder.find_log(), plan.workspace.root)
        yield f"{package}: {plural(search.space.size, 'combination')}; builds are logged in {log}"
        try:
            for built, whole in search.run():
                yield f"{package}: {built} of at most {plural(whole, 'trial')} done"
        except KeyboardInterrupt:
            yield (
                "interrupted; finished builds are in the store; run the same command again to "
                "continue"
            )
            raise
        seconds = time.monotonic() - started
        yield from list_lines(search)
        work = f"{plural(search.folder.compiled, 'method')} compiled in {seconds:.0f} s"
        yield f"{work}; {write_results(search)}"
        front = find_front(search.trials, search.objectives)
        if front and front[0].name != search.present and not write and not limits:
            yield f"`doit tune {package} --write best` writes trial {front[0].number} to its config"
    chosen = None
    if limits:
        families = read_families(plan, searches, fixed)
        chosen, lines = choose_within(searches, limits, constants, families)
        yield from lines
    if write:
        for place, search in enumerate(searches):
            trial = chosen[place] if chosen else _find_trial(search, write)
            yield write_choice(search.space, trial)
    unmet = []
    for search in searches:
        if not find_front(search.trials, search.objectives):
            unmet.append(search.space.package)
    if unmet:
        raise PipelineError(f"{listed(unmet, 10)}: no trial meets all limits")


def _find_packages(
    plan: Plan, words: Sequence[str], target: str
) -> tuple[list[str], list[str]]:
    """Return the selected packages with a section `tune` and, for a target, those without one."""
    tuned, fixed = [], []
    for package in known_packages(plan, words):
        if words:
            plan.check(package)
        config = plan.configs.config(package)
        if target and (config is None or config.target != target):
            continue
        if config is not None and getattr(config, "tune"):  # noqa: B009 - mypy knows no such field
            tuned.append(package)
        elif target:
            fixed.append(package)
        elif words:
            hint = "write `tune: {space: {methods.<method>.quantize: [...]}}`"
            raise PipelineError(f"{package}: its config has no section `tune`; {hint}")
    if not tuned:
        place = f"no config of target '{target}'" if target else "no config"
        raise PipelineError(f"{place} has a section `tune`; see `doit help tune`")
    for package in tuned:
        plan.check(package)
    return tuned, fixed


def _parse_size(text: str, option: str) -> int | None:
    size = parse_size(text) if text else None
    if text and size is None:
        raise PipelineError(f"{option} is '{text}', must be a size such as 10MB")
    return size


def _parse_count(text: str, option: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or not int(text):
        raise PipelineError(f"{option} is '{text}', must be a whole number from 1")
    return int(text)


def _find_trial(search: Search, write: str) -> Any:
    """Return the trial to write. Raises PipelineError if there is none."""
    package = search.space.package
    if write == BEST:
        front = find_front(search.trials, search.objectives)
        if not front:
            raise PipelineError(
                f"{package}: no trial meets all limits; nothing is written"
            )
        return front[0]
    numbers = {str(trial.number): trial for trial in search.trials}
    if write not in numbers:
        raise PipelineError(
            f"{package}: there is no trial {write}; known: {listed(numbers, 40)}"
        )
    trial = numbers[write]
    if not trial.name:
        raise PipelineError(f"{package}: trial {write} can't be: {trial.faults[0]}")
    return trial
