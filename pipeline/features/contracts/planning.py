"""The targets that a package is checked against, if `targets/` has a file of the name.

They are the targets of its gate `runs_on` or, without that gate, its config's `target`.
Questionable labels and files cause warnings, since users take anything silently ignored as done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.plan.planning import Files, Planning
from pipeline.store.errors import ConfigErrors, Problem, did_you_mean, join, listed

if TYPE_CHECKING:  # a no-op run parses no config and needs no pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig
    from pipeline.plan.plan import Plan

TARGETS = "targets"
ANY_TARGET = "*"
_ON_PURPOSE = "`validate: {gates: {runs_on: []}}` makes it a plain label"


def target_file(name: str) -> str:
    """Return the path of a target's file in the workspace."""
    return f"{TARGETS}/{name}.yaml"


def find_targets(root: Path) -> dict[str, Path]:
    """Return the target files of the workspace at `root`, by name."""
    paths = sorted((root / TARGETS).glob("*.yaml"))
    return {path.stem: path for path in paths if not path.name.startswith(".")}


def summarize(config: PackageConfig, has_variables: bool) -> Mapping[str, Any] | None:
    """Return the label and the target names of a config, or None if it names no target.

    The label is the config's `target`, or None if a `runs_on` gate names runtimes to check. The
    target names are `ANY_TARGET` if variables may change them.
    """
    names = find_target_names(config)
    if not names:
        return None
    if has_variables:
        return {"label": None, "targets": [ANY_TARGET]}
    is_label = _runs_on(config.validation) is None
    return {"label": config.target if is_label else None, "targets": names}


def find_target_names(config: PackageConfig) -> list[str]:
    """Return the names of the targets that a config is checked against if they have a file.

    The first is the config's `target`.
    """
    names = find_runs_on(config)
    if not config.target or _runs_on(config.validation) is not None:
        return sorted(names)
    return [config.target, *sorted(names - {config.target})]


def find_runs_on(config: PackageConfig) -> set[str]:
    """Return the names of the targets that gates of a config name."""
    names = set(_runs_on(config.validation) or ())
    for limits in config.validation.methods.values():
        names.update(_runs_on(limits) or ())
    return names


def _runs_on(limits: Any) -> tuple[str, ...] | None:
    """Return the targets that the gates of a package or a method name; None without such a gate."""
    names: tuple[str, ...] | None = getattr(limits.gates, "runs_on", None)
    return names


class TargetPlanning(Planning):
    """The targets in a plan."""

    @cached_property
    def _paths(self) -> dict[str, Path]:
        return find_targets(self.plan.workspace.root)

    def find_problems(
        self, package: str, config: PackageConfig, document: Document
    ) -> Iterator[Problem]:
        """Yield a problem for each target without a file, and the mistakes in existing files."""
        from pipeline.features.contracts.targets import missing_target, read_target

        holders: dict[str, Any] = {"validate": config.validation}
        for method, limits in config.validation.methods.items():
            holders[join("validate.methods", method)] = limits
        for path, holder in holders.items():
            for number, name in enumerate(_runs_on(holder) or ()):
                if name not in self._paths:
                    where = join(f"{path}.gates.runs_on", number)
                    yield document.problem(where, *missing_target(name, self._paths))
        for name in find_target_names(config):
            if name in self._paths:
                try:
                    read_target(self._paths[name])
                except ConfigErrors as errors:
                    yield from errors.problems

    def problem_facts(self, package: str) -> Any:
        """Return the digests of the targets that have a file, by name."""
        summary = self.plan.configs.summary(package)
        names = summary.features["contracts"]["targets"]
        digests = {}
        for name in self._paths:
            if name in names or ANY_TARGET in names:
                digests[name] = self.plan.workspace.find_data(target_file(name))
        return digests

    def validate_facts(self, package: str, files: Files) -> Any:
        return self.problem_facts(package)

    def held_to(
        self, package: str, files: Files, config: PackageConfig
    ) -> Mapping[str, Any]:
        """Return the runtimes that a valid package is checked against, by target, and its gates.

        The default of `runs_on` is the config's `target`.
        """
        from pipeline.features.contracts.targets import describe_runtime, read_target

        targets = {}
        named = set(find_runs_on(config))
        for name in find_target_names(config):
            if name in self._paths:
                target = read_target(self._paths[name])
                runtime = describe_runtime(target)
                if runtime or name in named:
                    targets[name] = runtime or target.resolved()
        if not targets:
            return {}
        gates = config.validation.gates.resolved()
        if gates.get("runs_on", ()) is None and config.target in targets:
            gates["runs_on"] = [config.target]
        return {"targets": targets, "gates": gates}

    def find_places(self, package: str, config: PackageConfig) -> Iterable[str]:
        if config.target in self._paths and config.target in find_target_names(config):
            return ("target",)
        return ()


def find_remarks(plan: Plan) -> Iterator[Problem]:
    """Yield warnings about labels and about files in `targets/`."""
    yield from _find_strange_targets(plan)
    yield from _find_unread_targets(plan)


def check_files(plan: Plan) -> Iterator[Problem]:
    """Yield the mistakes in all targets of a workspace."""
    from pipeline.features.contracts.targets import check_targets

    yield from check_targets(plan.workspace.root)


def _iter_summaries(plan: Plan) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the packages that name targets, with the summary of their configs."""
    for package in plan.configs.packages:
        summary = plan.configs.summary(package)
        if summary and "contracts" in summary.features:
            yield package, summary.features["contracts"]


def _find_strange_targets(plan: Plan) -> Iterator[Problem]:
    """Yield a warning for each questionable label without a file."""
    labels: dict[str, str] = {}
    for package, summary in _iter_summaries(plan):
        if summary["label"]:
            labels[package] = summary["label"]
    if not labels:
        return
    files = {path.stem for path in (plan.workspace.root / TARGETS).glob("*.yaml")}
    counts = Counter(labels.values())
    remarks = {
        label: _describe(label, files, counts) for label in counts.keys() - files
    }
    for package, label in labels.items():
        if remark := remarks.get(label):
            mistake, remedy = remark
            yield plan.document(package).problem(
                "target",
                mistake,
                f"{remedy}; {_ON_PURPOSE}",
            )


def _describe(
    label: str, files: set[str], counts: Counter[str]
) -> tuple[str, str] | None:
    """Return what is wrong with a label that has no file and what it may mean, or None."""
    from pipeline.features.contracts.labels import KNOWN_LABELS, near_labels

    if files:
        mistake = f"there is no {target_file(label)}, so no runtime is checked"
        near = near_labels(label, [*sorted(files)])
        if near:
            return (
                mistake,
                f"did you mean '{near[0]}'? known: {listed(sorted(files), 10)}",
            )
        return mistake, did_you_mean(label, sorted(files), 10)
    if label in KNOWN_LABELS:
        return None
    common = []
    for candidate, count in counts.most_common():
        if count >= counts[label]:
            common.append(candidate)
    near = near_labels(label, [*common, *KNOWN_LABELS])
    if not near:
        return None
    users = counts[near[0]]
    source = ""
    if users:
        source = f", as {users} of the packages"
    return f"'{label}' looks misspelled", f"did you mean '{near[0]}'{source}?"


def _find_unread_targets(plan: Plan) -> Iterator[Problem]:
    """Yield a warning for each file in `targets/` that is ignored.

    It has a wrong extension, or no config names it.
    """
    paths = sorted((plan.workspace.root / TARGETS).glob("[!.]*"))
    if not paths:
        return
    named: set[str] = set()
    for _, summary in _iter_summaries(plan):
        named.update(summary["targets"])
    packages = plan.configs.packages
    have_no_mistakes = all(map(plan.configs.summary, packages))
    is_known = have_no_mistakes and ANY_TARGET not in named
    for path in paths:
        name = f"{TARGETS}/{path.name}"
        if path.suffix.lower() in (".yml", ".yaml") and path.suffix != ".yaml":
            yield Problem(
                name,
                "",
                "is not read",
                f"call it {path.stem}.yaml",
            )
        elif path.suffix == ".yaml" and is_known and path.stem not in named:
            remark = (
                "no config names it in `target` or `runs_on`, so it checks no package"
            )
            yield Problem(name, "", remark)
