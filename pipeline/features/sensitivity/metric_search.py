"""Finds which modules to keep in float to meet a metric's limits, in few builds.

Each build keeps the noisiest modules in float, as the probes rank them, and succeeds if `doit
validate` passes its metric. So a proposal is backed by measurements, not estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.features.sensitivity.edits import edit_configs
from pipeline.features.sensitivity.overrides import is_all, keep_in_float
from pipeline.features.sensitivity.search import OutOfBudgetError
from pipeline.features.sensitivity.trial import (
    build_package,
    count_bytes,
    open_trial,
    validate_package,
)
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.report.verdicts import PASSED, worst_verdict
from pipeline.store.errors import PipelineError, did_you_mean
from pipeline.validate.budget import Budget

Unit = tuple[str, str]  # a method and one of its modules or kinds of operators
Score = dict[str, Any]
_MOST_GROUPS = 4  # groups of kept modules that are quantized again as a trial


def search_by_metric(
    plan: Plan,
    package: str,
    actions: Mapping[str, Action[Any]],
    methods: Mapping[str, Any],
    metric: str,
    budget: Budget,
) -> dict[str, Any]:
    """Return the scores of the packages that were built, and which modules to keep.

    The record has the form that `form` declares.

    Args:
        actions: by method, the action that quantized it.
        methods: the records of methods, whose modules are ranked.
        metric: a value of `validate.metrics`.

    Raises:
        PipelineError: a package can't be built, or has no such metric.
    """
    present = read_score(plan, package, metric)
    ranked = _rank(plan, package, methods, present["entry"])
    for method, modules in _group(ranked, ranked).items():
        # A method that quantizes nothing can't be linked, so its quietest module isn't kept.
        if is_all(modules, methods[method]):
            ranked.remove((method, modules[-1]))
    scores: dict[frozenset[Unit], Score] = {}

    def build(kept: Sequence[Unit]) -> bool:
        key = frozenset(kept)
        if key not in scores:
            # The first build always runs, or a small budget would find nothing at all.
            if scores and budget.spent:
                raise OutOfBudgetError
            scores[key] = _build(plan, package, actions, methods, metric, kept)
        return bool(scores[key]["verdict"] == PASSED)

    complete = True
    if present["verdict"] not in ("", PASSED) and ranked:
        try:
            find_smallest(ranked, build)
        except OutOfBudgetError:
            complete = False
    passing = [key for key, score in scores.items() if score["verdict"] == PASSED]
    # The smallest package that passes, since each module in float costs bytes.
    kept = min(passing, key=lambda k: (scores[k]["bytes"], len(k)), default=frozenset())
    tried = []
    for key, score in scores.items():
        change = score["bytes"] - present["bytes"]
        tried.append({**score, "kept": _group(ranked, key), "bytes": change})
    return {
        "name": metric,
        "value": present["value"],
        "verdict": present["verdict"],
        "sentence": present["sentence"],
        "kept": _group(ranked, kept),
        "reached": bool(passing) or present["verdict"] == PASSED,
        "complete": complete,
        "builds": len(scores),
        "one_by_one": len(ranked),
        "tried": [{k: v for k, v in row.items() if k in _SHOWN} for row in tried],
    }


_SHOWN = ("kept", "bytes", "value", "verdict")


def find_smallest(
    ranked: Sequence[Unit], passes: Callable[[Sequence[Unit]], bool]
) -> list[Unit] | None:
    """Return the fewest first units of a ranking with which a package passes.

    Units without which it also passes are then dropped. Returns None if the package doesn't pass
    with all units.
    """
    too_few, enough = 0, 1
    while not passes(ranked[:enough]):
        if enough == len(ranked):
            return None
        too_few = enough
        enough = min(2 * enough, len(ranked))
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if passes(ranked[:middle]):
            enough = middle
        else:
            too_few = middle
    kept = list(ranked[:enough])
    *others, _ = kept  # without the last unit they were too few
    # Rounded up and at least 1, since `range` has no step of 0.
    size = -(-len(others) // _MOST_GROUPS) or 1
    for end in range(len(others), 0, -size):  # the quietest first
        group = others[max(0, end - size) : end]
        fewer = [unit for unit in kept if unit not in group]
        if passes(fewer):
            kept = fewer
    return kept


def read_score(plan: Plan, package: str, metric: str) -> Score:
    """Return a package's score on a metric of `validate.metrics`, running whatever is stale.

    The score has the metric's `value`, the `verdict` on it with its `sentence`, the `bytes` of the
    package, and the `entry` of the config. Raises PipelineError if the package has no such metric,
    or the metric was not run.
    """
    report = validate_package(plan, package)
    rows = [row for row in report.get("metrics") or () if row["metric"] == metric]
    if not rows:
        names = sorted({row["metric"] for row in report.get("metrics") or ()})
        remedy = did_you_mean(metric, names)
        raise PipelineError(f"{package}: validate.metrics has no '{metric}'; {remedy}")
    if "value" not in rows[0]:
        raise PipelineError(f"{package}: {rows[0]['sentence']}")
    verdicts = [row["verdict"] for row in rows if row["verdict"]]
    sentences = [row["sentence"] for row in rows if row["sentence"]]
    return {
        "value": rows[0]["value"],
        "verdict": worst_verdict(verdicts) if verdicts else "",
        "sentence": "; ".join(sentences),
        "bytes": count_bytes(plan, package),
        "entry": rows[0]["entry"],
    }


def _rank(
    plan: Plan, package: str, methods: Mapping[str, Any], entry: str
) -> list[Unit]:
    """Return the units to keep in float, of the methods a metric runs, the noisiest first."""
    settings = getattr(plan.config(package).validation, "metrics", {})
    only = settings[entry].method if entry in settings else None
    rows = []
    for name, method in methods.items():
        if only in (None, name):
            rows += [(row["sqnr_db"], name, row["module"]) for row in method["modules"]]
    return [(name, module) for _, name, module in sorted(rows) if module]


def _build(
    plan: Plan,
    package: str,
    actions: Mapping[str, Action[Any]],
    methods: Mapping[str, Any],
    metric: str,
    kept: Sequence[Unit],
) -> Score:
    """Return the score of a package with some units in float."""
    overrides = override(actions, methods, _group(kept, kept))
    with open_trial(plan, edit_configs(plan, package, overrides)) as trial:
        build_package(trial, package)
        return read_score(trial, package, metric)


def override(
    actions: Mapping[str, Action[Any]],
    methods: Mapping[str, Any],
    kept: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Return the overrides that keep modules in float, by method."""
    overrides = {}
    for name, modules in kept.items():
        units = [row["module"] for row in methods[name]["modules"]]
        overrides[name] = keep_in_float(modules, units, actions[name].inputs.spec)
    return overrides


def _group(
    ranked: Sequence[Unit], kept: Sequence[Unit] | frozenset[Unit]
) -> dict[str, list[str]]:
    """Return modules by method, in the order of the ranking."""
    by_method: dict[str, list[str]] = {}
    for method, module in ranked:
        if (method, module) in kept:
            by_method.setdefault(method, []).append(module)
    return by_method
