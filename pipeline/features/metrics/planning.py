"""The metrics of a plan: the files that each package is measured by, and their dependencies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.features.metrics.metric_files import (
    FOLDER,
    find_inputs,
    find_path,
    list_files,
    split_name,
)
from pipeline.plan.kinds.words import describe_setting
from pipeline.plan.planning import Files, Json, Planning
from pipeline.store.digest import hash_json
from pipeline.store.errors import Problem, SourceError, did_you_mean, join
from pipeline.store.json_diff import Difference

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig

FIELD = "metrics"  # the metrics to measure, part of the key of a measurement
LIMITS_FIELD = "metric_limits"  # the limits, not part of that key
LIMITS = ("min", "max", "max_drop", "max_rise")
_RUN_SETTINGS = ("samples", "method", "device")


def find_entries(config: PackageConfig) -> Mapping[str, Any]:
    """Return the entries of `validate.metrics` by name, each a `config.MetricLimits`."""
    entries: Mapping[str, Any] = getattr(config.validation, "metrics")  # noqa: B009 - added here
    return entries


def summarize(config: PackageConfig, has_variables: bool) -> Json | None:
    """Return the files of the metrics that a config names, or None if it names none."""
    files = {split_name(entry)[0] for entry in find_entries(config)}
    return {"files": sorted(files)} if files else None


class MetricPlanning(Planning):
    """Refuses unknown metrics, and makes validations depend on the content of the known ones."""

    def find_problems(
        self, package: str, config: PackageConfig, document: Document
    ) -> Iterator[Problem]:
        root = self.plan.workspace.root
        devices = list(self.plan.find_devices(package))
        for entry, settings in find_entries(config).items():
            where = join("validate.metrics", entry)
            file, _ = split_name(entry)
            if not find_path(root, file).is_file():
                remedy = did_you_mean(file, list_files(root))
                fault = f"no metric '{file}': there is no {FOLDER}/{file}.py"
                yield document.problem(where, fault, remedy)
                continue
            try:
                find_inputs(self.plan.workspace, file)
            except SourceError as error:
                yield document.problem(where, str(error))
            if settings.method is not None and settings.method not in config.methods:
                remedy = did_you_mean(settings.method, [*config.methods])
                fault = f"no method '{settings.method}'"
                yield document.problem(f"{where}.method", fault, remedy)
            if settings.device is not None and settings.device not in devices:
                fault = f"validate.devices does not name '{settings.device}'"
                remedy = did_you_mean(settings.device, devices)
                yield document.problem(f"{where}.device", fault, remedy)

    def problem_facts(self, package: str) -> Any:
        return [list_files(self.plan.workspace.root), self._describe_files(package)]

    def validate_facts(self, package: str, files: Files) -> Any:
        return self._describe_files(package)

    def held_to(self, package: str, files: Files, config: PackageConfig) -> Json:
        measured: dict[str, Any] = {}
        limits: dict[str, Any] = {}
        for entry, settings in find_entries(config).items():
            values = settings.resolved()
            file, _ = split_name(entry)
            measured[entry] = {name: values[name] for name in _RUN_SETTINGS}
            measured[entry]["inputs"] = find_inputs(self.plan.workspace, file)
            measured[entry] |= self._describe_references(package, settings.method)
            limits[entry] = {
                name: values[name] for name in LIMITS if values[name] is not None
            }
        return {FIELD: measured, LIMITS_FIELD: limits}

    def find_places(self, package: str, config: PackageConfig) -> Iterator[str]:
        for entry, settings in find_entries(config).items():
            for name in LIMITS:
                if getattr(settings, name) is not None:
                    yield find_place(entry, name)

    def _describe_files(self, package: str) -> Any:
        """Return the state of each metric file of a package, and the export of its references.

        The state is a digest of everything that the metric depends on, or what is wrong with it.
        """
        workspace = self.plan.workspace
        facts: dict[str, str] = {}
        for file in self.plan.configs.summary(package).features["metrics"]["files"]:
            try:
                facts[file] = hash_json(find_inputs(workspace, file))
            except SourceError as error:
                facts[file] = str(error)
        return [facts, self._find_export(package)]

    def _describe_references(self, package: str, method: str | None) -> Json:
        """Return the additional fields of an entry whose source is PyTorch's own module.

        That is so if the exporter names a reference for the entry's method or, if the metric may
        call any method, for all of them.
        """
        export = self._find_export(package)
        sources = self.plan.methods(package) or {}
        needed = [sources[method]] if method else sources.values()
        if export is None or not all(source.reference for source in needed):
            return {}
        return {"export": export}

    def _find_export(self, package: str) -> list[str] | None:
        """Return the name and digest of a package's export if its exporter names references.

        None for other packages, and for an exporter with operations that can't be tracked: the
        digest then doesn't cover everything that its references may depend on.
        """
        exporter = self.plan.exporter(package)
        sources = self.plan.methods(package) or {}
        if exporter is None or not any(s.reference for s in sources.values()):
            return None
        action = self.plan.models.export(exporter)
        return None if action.inputs.unfollowed else [exporter, action.digest]


def find_place(entry: str, limit: str) -> str:
    """Return the path in the config of a limit on an entry of `validate.metrics`."""
    return f"{join('validate.metrics', entry)}.{limit}"


def describe_key(difference: Difference) -> str | None:
    """Describe a difference in metrics or their limits; return None for any other."""
    match difference.path:
        case (*_, "metrics", entry, "inputs", name):
            return f"metric {entry}: {name} {difference.change()}"
        case (*_, "metrics", entry, "export") | (*_, "metrics", entry, "export", _):
            return f"metric {entry}: the exporter's inputs changed"
        case (*_, "metrics", entry, name) if name in _RUN_SETTINGS:
            return describe_setting(find_place(entry, name), difference)
        case ("metrics", entry) | ("held_to", "metrics", entry):
            return f"metric {entry} {difference.change()}"
        case ("metrics",) | ("held_to", "metrics"):
            return "the metrics in validate.metrics changed"
        case ("held_to", "metric_limits", entry, name):
            return describe_setting(find_place(entry, name), difference)
        case ("held_to", "metric_limits", *_):
            return "the limits of validate.metrics changed"
    return None
