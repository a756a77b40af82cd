"""Builds a package with one module in float at a time, and measures the costs and gains.

Probes give the SQNR cost of quantizing a module. File sizes, milliseconds and the team's metrics
need the package itself: one build for each of the noisiest modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.features.sensitivity.edits import edit_configs
from pipeline.features.sensitivity.metric_search import read_score
from pipeline.features.sensitivity.overrides import is_all, keep_in_float
from pipeline.features.sensitivity.trial import (
    build_package,
    count_bytes,
    list_files,
    open_trial,
    run_logged,
)
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.store.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.features.sensitivity.timing import Content


def add_variants(
    plan: Plan,
    package: str,
    actions: Mapping[str, Action[Any]],
    methods: Mapping[str, Any],
    most: int,
    metric: str,
) -> None:
    """Build the package with each of the noisiest modules in float, and add the effects to rows.

    The figures have the form that `form` declares.

    Args:
        actions: by method, the action that quantized it.
        methods: the records of methods, whose rows are extended.
        most: number of modules per method.
        metric: a value of `validate.metrics`, or "" for none.

    Raises:
        PipelineError: a package can't be built, or has no such metric.
    """
    bytes_before = count_bytes(plan, package)
    value_before = read_score(plan, package, metric)["value"] if metric else None
    for name, method in methods.items():
        rows = [row for row in method["modules"] if row["module"]][:most]
        contents = [read_files(plan, package)]
        for row in rows:
            if is_all([row["module"]], method):
                continue  # a package that quantizes nothing can't be linked
            texts = _edit(plan, package, name, row["module"], method, actions[name])
            if texts is None:
                continue
            with open_trial(plan, texts) as trial:
                build_package(trial, package)
                row["in_float"] = {"bytes": count_bytes(trial, package) - bytes_before}
                if value_before is not None:
                    value = read_score(trial, package, metric)["value"]
                    row["in_float"]["metric"] = value - value_before
                contents.append(read_files(trial, package))
        built = [row for row in rows if "in_float" in row]
        method["base_ms"] = _add_times(built, contents, plan, package, actions[name])
        if value_before is not None:
            method["metric"] = metric
            method["metric_value"] = value_before


def _edit(
    plan: Plan,
    package: str,
    name: str,
    module: str,
    method: Mapping[str, Any],
    action: Action[Any],
) -> dict[str, str] | None:
    """Return the contents of the configs that keep one module in float, or None if none can."""
    units = [row["module"] for row in method["modules"]]
    overrides = keep_in_float([module], units, action.inputs.spec)
    try:
        return edit_configs(plan, package, {name: overrides})
    except PipelineError:  # no place in the files is this method's alone
        return None


def read_files(plan: Plan, package: str) -> Content:
    """Return the bytes of the files of a built package that a device loads."""
    paths = list_files(plan, package)
    ptes = [path.read_bytes() for path in paths if path.suffix == ".pte"]
    ptds = [path.read_bytes() for path in paths if path.suffix == ".ptd"]
    return ptes[0], tuple(ptds)


def _add_times(
    rows: Sequence[dict[str, Any]],
    contents: Sequence[Content],
    plan: Plan,
    package: str,
    action: Action[Any],
) -> float | None:
    """Add to rows the extra milliseconds of a call here with the module in float.

    Returns the milliseconds with all modules quantized, or None if a call can't run here.
    """
    validation = plan.config(package).validation

    def measure() -> dict[str, Any]:
        from pipeline.features.sensitivity.calls import prepare
        from pipeline.features.sensitivity.timing import time_variants
        from pipeline.program.signature import flatten

        prepared = prepare(action, validation, plan.workspace, 1)
        program, _, (inputs, *_), _ = prepared
        return time_variants(contents, str(action.method), flatten(program, inputs))

    times = run_logged(plan, package, measure)
    for row, milliseconds in zip(rows, times["slower"], strict=True):
        row["in_float"]["ms"] = milliseconds
    base: float | None = times["base_ms"]
    return base
