"""Measures the methods of a package, and proposes which modules to keep in float.

The aim is a floor in dB, or the limits of a metric. A proposal is built and measured before it
counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.features.sensitivity.edits import edit_configs
from pipeline.features.sensitivity.metric_search import override, search_by_metric
from pipeline.features.sensitivity.overrides import keep_in_float
from pipeline.features.sensitivity.trial import (
    build_package,
    count_bytes,
    open_trial,
    run_logged,
)
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError
from pipeline.validate.budget import Budget

_ATTEMPTS = 3  # builds of a proposal, each with a stricter floor for the probes
_MARGIN = 0.3  # dB added to what the last attempt lacked, for the next floor


def examine(
    plan: Plan,
    package: str,
    actions: Mapping[str, Action],
    least: float | None,
    seconds: float,
    metric: str = "",
) -> dict[str, Any]:
    """Return the record of a package, with the results of its proposal if that was built.

    Args:
        least: the SQNR in dB to reach, or None for the config's.
        seconds: time for the runs, and the same again for the builds of a metric search.
        metric: the metric whose limits are to be met instead of an SQNR, or "" for none.

    Raises:
        PipelineError: a package can't be built or measured.
    """
    floors: dict[str, float | None] = dict.fromkeys(actions)
    if not metric:
        floors = {name: _find_floor(plan, package, name, least) for name in actions}
    margins = dict.fromkeys(actions, 0.0)
    record: dict[str, Any] = {
        "format": 1,
        "package": package,
        "files": plan.linked(package),
        "bytes": count_bytes(plan, package),
        "verified": None,
    }
    if metric:
        methods = _measure(plan, package, actions, floors, margins, seconds)
        record["methods"] = methods
        budget = Budget(seconds)
        record["metric"] = search_by_metric(
            plan, package, actions, methods, metric, budget
        )
        _choose(actions, methods, record["metric"]["kept"])
        verified = _verify(plan, package, actions, methods)
        record["verified"] = verified and {**verified, "attempts": 1}
        return record
    for attempt in range(_ATTEMPTS):
        record["methods"] = methods = _measure(
            plan, package, actions, floors, margins, seconds
        )
        verified = _verify(plan, package, actions, methods)
        record["verified"] = verified and {**verified, "attempts": attempt + 1}
        lacking = find_lacking(verified, methods, floors)
        if not lacking:
            break
        for name, decibels in lacking.items():
            margins[name] += decibels + _MARGIN
    return record


def _choose(
    actions: Mapping[str, Action],
    methods: Mapping[str, Any],
    kept: Mapping[str, list[str]],
) -> None:
    """Set each method's proposal to the modules that a metric needs in float."""
    overrides = override(actions, methods, kept)
    for name, method in methods.items():
        method["kept"] = kept.get(name, [])
        method["overrides"] = overrides.get(name, {})
        for row in method["modules"]:
            row["chosen"] = row["module"] in method["kept"]


def find_measurable(plan: Plan, package: str) -> dict[str, Action]:
    """Return the quantize actions of the methods whose quantizer accepts `modules`.

    Raises PipelineError if there are none.
    """
    actions = {
        name: action
        for name, action in (plan.quantizes(package) or {}).items()
        if hasattr(action.inputs.spec, "modules")
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
    """Return the SQNR in dB that a method must have, or None if none is set."""
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

    results: dict[str, Any] = run_logged(plan, package, measure)
    for name, result in results.items():
        result["floor_db"] = floors[name]
        spec = actions[name].inputs.spec
        units = [row["module"] for row in result["modules"]]
        if {*result["kept"]} == {*units}:
            # Linking refuses a quantizer that quantizes nothing.
            result["kept"] = []
        result["overrides"] = keep_in_float(result["kept"], units, spec)
    return results


def _verify(
    plan: Plan,
    package: str,
    actions: Mapping[str, Action],
    methods: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Build a package with the proposal and return its figures, or None without a proposal."""
    overrides = find_overrides(methods)
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

        figures = run_logged(plan, package, measure)
        return {"bytes": count_bytes(trial, package), "methods": figures}


def find_overrides(methods: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides of the methods that have any."""
    return {
        name: method["overrides"]
        for name, method in methods.items()
        if method["overrides"]
    }


def find_lacking(
    verified: Mapping[str, Any] | None,
    methods: Mapping[str, Any],
    floors: Mapping[str, float | None],
) -> dict[str, float]:
    """Return by how many dB each method that was quantized again misses its floor."""
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
