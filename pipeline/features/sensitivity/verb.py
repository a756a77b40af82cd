"""`doit sensitivity`: what quantizing each module costs, and which of them to keep in float."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.cli.verbs import known_packages
from pipeline.features.sensitivity.kept import keep, make_key, read_kept
from pipeline.features.sensitivity.overrides import keep_in_float
from pipeline.features.sensitivity.planning import FILE
from pipeline.features.sensitivity.table import describe_method, describe_verification
from pipeline.features.sensitivity.trial import (
    build_package,
    count_bytes,
    edit_configs,
    open_trial,
)
from pipeline.features.sensitivity.variants import add_variants
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.run.action_log import logging_to
from pipeline.run.isolated import run_isolated
from pipeline.store.errors import PipelineError
from pipeline.store.files import make_folder, record_bytes, write_atomically

LOG = "sensitivity.log"
_BUDGET = 300.0  # seconds
_ATTEMPTS = (
    3  # real quantizations of a proposal, each with a stricter floor for the probes
)
_WITH_METRIC = 3  # modules that are tried for a metric where nothing says how many
_MARGIN = 0.3  # dB by which a stricter floor exceeds what the last attempt lacked


def run(
    plan: Plan,
    words: Sequence[str],
    floor: str = "",
    budget: str = "",
    variants: str = "",
    metric: str = "",
    write: bool = False,
    json: bool = False,
) -> Iterator[Any]:
    """Yield what quantizing each module of packages costs, and a proposal that was verified; with
    `json` one record of all.

    Raises:
        PipelineError: a package can't be built or has nothing to measure, an option is no number,
            or the proposal can't be written.
    """
    if not words:
        raise PipelineError("name a package: doit sensitivity <package>")
    least = _parse_number("floor", floor)
    seconds = _parse_number("budget", budget) or _BUDGET
    most = _parse_count(variants, _WITH_METRIC if metric else 0)
    records: list[dict[str, Any]] = []
    written: list[str] = []
    for package in known_packages(plan, words):
        build_package(plan, package)
        actions = _find_measurable(plan, package)
        settings = {"floor": least, "variants": most, "metric": metric}
        key = make_key(plan, package, actions, settings)
        record = read_kept(plan, key)
        is_kept = record is not None
        if record is None:
            record = _examine(plan, package, actions, least, seconds)
            if most:
                run_logged = partial(_run_logged, plan, package)
                add_variants(
                    plan, package, actions, record["methods"], most, metric, run_logged
                )
            keep(plan, key, record)
        folder = plan.workspace.package(package)
        write_atomically(folder / FILE, record_bytes(record), plan.workspace.build)
        records.append(record)
        if not json:
            yield from _describe(record)
        if is_kept and not json:
            yield f"{package}: as measured before; nothing was run"
        if write and record["verified"] is None and not json:
            yield f"{package}: nothing to write"
        for name in _write(plan, record) if write else ():
            written.append(name)
            if not json:
                yield f"{package}: wrote {name}"
    if json:
        yield {"format": 1, "packages": records, "written": written}


def _parse_number(name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (name == "budget" and number <= 0):
        raise PipelineError(f"--{name} {text}: must be a number, such as --{name} 30")
    return number


def _parse_count(text: str, default: int) -> int:
    """Return how many modules of a method are tried in float alone."""
    if not text:
        return default
    if not text.isdecimal() or not int(text):
        raise PipelineError(f"--variants {text}: must be a count, such as --variants 3")
    return int(text)


def _examine(
    plan: Plan,
    package: str,
    actions: Mapping[str, Action],
    least: float | None,
    seconds: float,
) -> dict[str, Any]:
    """Return the record of a package, with what its proposal gave where that was built."""
    floors = {name: _find_floor(plan, package, name, least) for name in actions}
    margins = dict.fromkeys(actions, 0.0)
    record: dict[str, Any] = {
        "format": 1,
        "package": package,
        "files": plan.linked(package),
        "bytes": count_bytes(plan, package),
        "verified": None,
    }
    for attempt in range(_ATTEMPTS):
        record["methods"] = methods = _measure(
            plan, package, actions, floors, margins, seconds
        )
        verified = _verify(plan, package, actions, methods)
        record["verified"] = verified and {**verified, "attempts": attempt + 1}
        lacking = _find_lacking(verified, methods, floors)
        if not lacking:
            break
        for name, decibels in lacking.items():
            margins[name] += decibels + _MARGIN
    return record


def _find_measurable(plan: Plan, package: str) -> dict[str, Action]:
    """Return the quantize actions of the methods whose quantizer takes `modules`. Raises
    PipelineError where there is none."""
    actions = {
        name: action
        for name, action in (plan.quantizes(package) or {}).items()
        if hasattr(action.inputs.spec, "mixed")
    }
    if actions:
        return actions
    quantizers = {
        a.inputs.spec.quantizer for a in (plan.quantizes(package) or {}).values()
    }
    if not quantizers:
        raise PipelineError(f"{package}: quantizes no method; add `quantize` to one")
    raise PipelineError(
        f"{package}: its quantizer {', '.join(sorted(quantizers))} takes no `modules`, so no "
        "module can be kept in float; `quantizer: xnnpack` takes them"
    )


def _find_floor(
    plan: Plan, package: str, method: str, least: float | None
) -> float | None:
    """Return the SQNR in dB that a method is to have; None where nobody says."""
    if least is not None:
        return least
    limits = plan.config(package).validation.select_limits(method)
    return limits.min_sqnr


def _measure(
    plan: Plan,
    package: str,
    actions: Mapping[str, Action],
    floors: Mapping[str, float | None],
    margins: Mapping[str, float],
    seconds: float,
) -> dict[str, Any]:
    validation = plan.config(package).validation

    def measure() -> dict[str, Any]:
        from pipeline.features.sensitivity.measure import measure_method
        from pipeline.validate.budget import Budget

        budget = Budget(seconds)
        results = {}
        for name, action in actions.items():
            floor = floors[name]
            if floor is not None:
                floor += margins[name]
            results[name] = measure_method(
                action, validation, plan.workspace, floor, budget
            )
        return results

    results: dict[str, Any] = _run_logged(plan, package, measure)
    for name, result in results.items():
        result["floor_db"] = floors[name]
        spec = actions[name].inputs.spec
        units = [row["module"] for row in result["modules"]]
        result["overrides"] = keep_in_float(result["kept"], units, spec)
    return results


def _run_logged(
    plan: Plan, package: str, function: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return what a function returns in a process of its own, whose output goes to a log."""
    folder = plan.workspace.logs / package
    make_folder(folder, plan.workspace.build)

    with logging_to(folder / LOG):
        result: dict[str, Any] = run_isolated(function)
    return result


def _verify(
    plan: Plan,
    package: str,
    actions: Mapping[str, Action],
    methods: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Build a package with the proposal, and return its figures; None without a proposal."""
    overrides = _find_overrides(methods)
    if not overrides:
        return None
    texts = edit_configs(plan, package, overrides)
    with open_trial(plan, texts) as trial:
        build_package(trial, package)
        trial_actions = trial.quantizes(package) or {}
        validation = trial.config(package).validation

        def measure() -> dict[str, Any]:
            from pipeline.features.sensitivity.measure import measure_sqnr

            return {
                name: measure_sqnr(trial_actions[name], validation, trial.workspace)
                for name in actions
            }

        figures = _run_logged(plan, package, measure)
        return {"bytes": count_bytes(trial, package), "methods": figures}


def _find_overrides(methods: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides of the methods that have some."""
    return {
        name: method["overrides"]
        for name, method in methods.items()
        if method["overrides"]
    }


def _find_lacking(
    verified: Mapping[str, Any] | None,
    methods: Mapping[str, Any],
    floors: Mapping[str, float | None],
) -> dict[str, float]:
    """Return by how many dB each method that was quantized anew lacks its floor."""
    lacking = {}
    for name, figures in (verified or {"methods": {}})["methods"].items():
        floor = floors[name]
        if (
            floor is not None
            and methods[name]["overrides"]
            and figures["sqnr_db"] < floor
        ):
            lacking[name] = floor - figures["sqnr_db"]
    return lacking


def _describe(record: Mapping[str, Any]) -> Iterator[str]:
    for name, method in record["methods"].items():
        yield from describe_method(f"{record['package']}/{name}", method)
    yield from describe_verification(record)


def _write(plan: Plan, record: Mapping[str, Any]) -> Iterator[str]:
    """Write the configs of a proposal that was verified, and yield their names. Raises
    PipelineError for any other."""
    package = record["package"]
    floors = {name: method["floor_db"] for name, method in record["methods"].items()}
    lacking = _find_lacking(record["verified"], record["methods"], floors)
    if lacking:
        names = ", ".join(sorted(lacking))
        raise PipelineError(
            f"{package}: the proposal does not reach the floor of {names}, so nothing is written"
        )
    texts: Mapping[str, str] = {}
    if record["verified"] is not None:
        texts = edit_configs(plan, package, _find_overrides(record["methods"]))
    folder: Path = plan.workspace.configs
    for name, text in texts.items():
        write_atomically(folder / name, text.encode(), plan.workspace.root)
        yield f"{folder.name}/{name}"
