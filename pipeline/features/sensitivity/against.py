"""`doit sensitivity --against`: the costs and gains of leaving modules to another backend.

In each build, the other backend takes a group of modules first, or the modules are left to portable
kernels. The change in bytes, milliseconds, SQNR and a metric is measured on each build.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import yaml

from pipeline.config.compose import Document
from pipeline.config.parser import parse_document
from pipeline.config.yaml import load_nodes
from pipeline.features.sensitivity.edits import edit_methods
from pipeline.features.sensitivity.groups import Modules, find_disjoint, find_groups
from pipeline.features.sensitivity.metric_search import read_score
from pipeline.features.sensitivity.operator_kinds import (
    count_delegated,
    is_left,
    leave_operator,
    list_config_targets,
)
from pipeline.features.sensitivity.trial import (
    build_package,
    count_bytes,
    open_trial,
    run_logged,
)
from pipeline.features.sensitivity.variants import read_files
from pipeline.plan.actions import Action
from pipeline.plan.plan import Plan
from pipeline.report.records import read_manifest
from pipeline.report.verdicts import PASSED
from pipeline.store.errors import ConfigErrors, PipelineError

PORTABLE = "portable"  # operators that no delegate takes, run by portable kernels
MOST_BUILDS = 8
_ANY_CONFIG = "config.yaml"
_LEAST_EFFECT = 0.05  # share of the package's bytes or milliseconds
_LEAST_DECIBELS = 1.0
_SETTLED = 80.0  # dB; from here on, packages count as equal to the float program


class Backends:
    """Leaves groups of modules to another backend, in the settings of their method.

    Attributes:
        name: name of the other backend.
    """

    def __init__(self, written: str) -> None:
        """Parse `portable` or an item of `partitioners`. Raises PipelineError for others."""
        item = _parse_item(written)
        self.name, self._options = next(iter(item.items()))

    def settings(
        self, present: Mapping[str, Any], modules: Sequence[str]
    ) -> dict[str, Any]:
        """Return the settings of a method that leave modules to the other backend.

        Args:
            present: the method's current settings.
            modules: names of modules, in the form that a config uses.
        """
        if self.name == PORTABLE:
            filters = list(present.get("modules") or ())
            return {"modules": [*filters, *(f"!{module}" for module in modules)]}
        options = {**self._options, "modules": list(modules)}
        partitioners = list(present.get("partitioners") or ())
        # It comes first, because partitioners take nodes in their order.
        return {"partitioners": [{self.name: options}, *partitioners]}


def _parse_item(written: str) -> dict[str, dict[str, Any]]:
    try:
        item = yaml.safe_load(written)
    except yaml.YAMLError:
        item = None
    if isinstance(item, str):
        item = {item: {}}
    if isinstance(item, dict) and len(item) == 1:
        ((name, options),) = item.items()
        if isinstance(name, str) and isinstance(options or {}, dict):
            if name != PORTABLE:
                _check_item(written, {name: options or {}})
            return {name: options or {}}
    raise PipelineError(
        f"--against {written}: must be portable, or an item of `partitioners`, such as vulkan or "
        "'vulkan: {force_fp16: true}'"
    )


def _check_item(written: str, item: Mapping[str, Any]) -> None:
    """Raise PipelineError if a config can't have this item of `partitioners`."""
    config = {"model": "m", "methods": {"m": {"partitioners": [item]}}}
    root = load_nodes(yaml.safe_dump(config).encode(), _ANY_CONFIG)
    assert root is not None
    try:
        parse_document("m", Document(_ANY_CONFIG, root))
    except ConfigErrors as errors:
        first = errors.problems[0]
        path = first.path.removeprefix("methods.m.partitioners[0]").lstrip(".")
        remedy = f"; {first.known}" if first.known else ""
        place = f"{path}: " if path else ""
        raise PipelineError(
            f"--against {written}: {place}{first.what}{remedy}"
        ) from errors


def compare_backends(
    plan: Plan, package: str, backends: Backends, most: int, metric: str
) -> dict[str, Any]:
    """Return the record of a package with modules on another backend.

    It has the form that `form` declares, and includes the results of the proposal, if there is one.

    Args:
        most: maximum number of builds per method.
        metric: a value of `validate.metrics`, or "" for none.

    Raises:
        PipelineError: a package can't be built, or has no method to compare.
    """
    actions = {}
    for action in plan.compiles(package) or ():
        for method in action.inputs.sources:
            settings = plan.written(package)["methods"][method]
            if backends.name != PORTABLE or (settings or {}).get("partitioners"):
                actions[method] = action
    if not actions:
        raise PipelineError(f"{package}: it is already left to portable kernels")
    methods = {}
    for method, action in actions.items():
        comparison = _Comparison(plan, package, method, action, backends, metric)
        methods[method] = comparison.run(most)
    record: dict[str, Any] = {
        "format": 1,
        "package": package,
        "files": plan.linked(package),
        "bytes": count_bytes(plan, package),
        "verified": None,
        "methods": {},
        "against": {"backend": backends.name, "metric": metric, "methods": methods},
    }
    return record


def find_proposal(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a record proposes, by method."""
    settings = {}
    for name, method in record["against"]["methods"].items():
        if method["settings"]:
            settings[name] = method["settings"]
    return settings


class _Comparison:
    """The packages in which another backend has modules of one method."""

    def __init__(
        self,
        plan: Plan,
        package: str,
        method: str,
        action: Action[Any],
        backends: Backends,
        metric: str,
    ) -> None:
        self._plan = plan
        self._package = package
        self._method = method
        self._action = action
        self._backends = backends
        self._metric = metric
        self._present = read_files(plan, package)
        self._bytes = count_bytes(plan, package)
        self._score = read_score(plan, package, metric) if metric else None
        measure = partial(self._measure, [self._present])
        self._base = run_logged(plan, package, measure)
        self._rows: dict[Modules, dict[str, Any]] = {}
        self._kinds: list[dict[str, Any]] = []  # rows for kinds of operators
        self._untried: list[str] = []
        self._undelegated: set[Modules] = set()  # without these, no delegate is left

    def run(self, most: int) -> dict[str, Any]:
        """Return the record of the method."""
        modules = self._base["modules"]
        complete = True
        if modules:
            _, complete = find_groups(modules, self._try, most, _LEAST_EFFECT)
        gains = {}
        for group, row in self._rows.items():
            if self._is_better(row):
                gains[group] = -row["ms"]["median"]
        chosen = find_disjoint(gains, modules)
        together = tuple(name for group in chosen for name in group)
        if len(chosen) > 1:
            self._try(together)
        settings = {}
        if together and self._is_better(self._rows[together]):
            settings = self._settings(together)
        if self._backends.name == PORTABLE:
            self._compare_operators(most)
        return {
            "base_ms": self._base["base_ms"],
            "sqnr_db": self._base["sqnr_db"][0],
            "calls": self._base["calls"],
            "metric_value": self._score["value"] if self._score else None,
            "groups": [*self._rows.values()],
            "operators": self._kinds,
            "untried": self._untried,
            "complete": complete,
            "builds": len(self._rows),
            "one_by_one": len(modules),
            "proposed": list(together) if settings else [],
            "settings": settings,
        }

    def _try(self, group: Modules) -> float:
        """Build the package with a group on the other backend, and return the effect.

        The effect is the share of bytes or milliseconds that changes, or 1 if outputs or the metric
        change.
        """
        row, manifest = self._build(self._settings(group))
        if not manifest["methods"][self._method]["delegation"]["partitions"]:
            self._undelegated.add(group)
        self._rows[group] = {"modules": list(group), **row}
        shares = [abs(row["bytes"]) / self._bytes]
        # Quartiles on both sides of zero show no difference.
        if row["ms"] and row["ms"]["low"] * row["ms"]["high"] > 0:
            shares.append(abs(row["ms"]["median"]) / self._base["base_ms"])
        if self._change_decibels(row) or row.get("metric"):
            shares.append(1.0)
        return max(shares)

    def _compare_operators(self, most: int) -> None:
        """Leave each kind of delegated operator to portable kernels, the most frequent first.

        At most `most` builds are made.
        """
        manifest = read_manifest(self._plan.workspace, self._package) or {}
        present = self._plan.written(self._package)["methods"][self._method]
        partitioners = present.get("partitioners") or ()
        before = count_delegated(manifest, self._method)
        builds = 0
        for kind, count in before.items():
            changed = leave_operator(partitioners, kind, self._base["targets"])
            if changed is None or builds == most:
                self._untried.append(kind)
                continue
            builds += 1
            row, manifest = self._build({"partitioners": changed})
            if is_left(kind, before, count_delegated(manifest, self._method)):
                self._kinds.append({"operator": kind, "count": count, **row})
            else:
                self._untried.append(kind)

    def _build(
        self, settings: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Build the package with other settings of the method; return its figures and manifest."""
        texts = edit_methods(
            self._plan,
            self._package,
            {self._method: {**settings, "allow_none": True}},
            alone=False,
        )
        with open_trial(self._plan, texts) as trial:
            build_package(trial, self._package)
            manifest = read_manifest(trial.workspace, self._package) or {}
            contents = [self._present, read_files(trial, self._package)]
            row: dict[str, Any] = {
                "bytes": count_bytes(trial, self._package) - self._bytes,
            }
            if self._score:
                score = read_score(trial, self._package, self._metric)
                row["metric"] = score["value"] - self._score["value"]
                row["verdict"] = score["verdict"]
        figures = run_logged(
            self._plan, self._package, partial(self._measure, contents)
        )
        (row["ms"],) = figures["slower"]
        row["sqnr_db"] = figures["sqnr_db"][1]
        return row, manifest

    def _is_better(self, row: Mapping[str, Any]) -> bool:
        """Return whether a package is notably faster, and not worse in other ways."""
        spread = row["ms"]
        if not spread or spread["high"] >= 0 or self._change_decibels(row) < 0:
            return False
        if self._score and row["verdict"] not in (PASSED, self._score["verdict"]):
            return False
        return bool(-spread["median"] >= _LEAST_EFFECT * self._base["base_ms"])

    def _change_decibels(self, row: Mapping[str, Any]) -> float:
        """Return by how many dB the outputs come closer to the float program's.

        It is 0 for less than 1 dB, or if the outputs can't be computed here.
        """
        before, after = self._base["sqnr_db"][0], row["sqnr_db"]
        if before is None or after is None:
            return 0.0
        change = min(after, _SETTLED) - min(before, _SETTLED)
        return change if math.fabs(change) >= _LEAST_DECIBELS else 0.0

    def _settings(self, group: Modules) -> dict[str, Any]:
        """Return the settings of the method with a group on the other backend."""
        present = self._plan.written(self._package)["methods"][self._method]
        names: dict[str, None] = {}
        for module in group:
            names |= dict.fromkeys(self._base["names"].get(module, [module]))
        settings = self._backends.settings(present, [*names])
        if group in self._undelegated:
            settings["allow_none"] = True
        return settings

    def _measure(self, contents: Sequence[Any]) -> dict[str, Any]:
        from pipeline.features.sensitivity.package_figures import measure_packages

        source = self._action.inputs.sources[self._method]
        validation = self._plan.config(self._package).validation
        workspace = self._plan.workspace
        libraries = self._action.libraries
        figures = measure_packages(
            contents, source, self._method, libraries, validation, workspace
        )
        figures["targets"] = list_config_targets()
        return figures
