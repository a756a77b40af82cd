"""The plan: which actions the sources and configs call for, which of them are stale, and why.

It reads configs, sources, the workspace's state and action results, and changes nothing. It never
imports torch: what only torch can tell (which methods an exporter has) is asked of the result of
the export action, and a plan made before that result exists says that it waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pipeline import actions
from pipeline.actions import Action
from pipeline.config import PackageConfig, parse_config, read_configs
from pipeline.digest import Digest
from pipeline.errors import ConfigErrors, Problem, SourceError
from pipeline.sources import MethodSource, ModelSource, find_sources, method_sources
from pipeline.workspace import Workspace

State = Literal["up-to-date", "hit", "stale", "waiting"]


@dataclass(frozen=True)
class Status:
    """`hit`: not in the workspace, but in the store. `waiting`: for an action before it."""

    state: State
    reason: str

    @property
    def current(self) -> bool:
        return self.state == "up-to-date"


class Plan:
    """What a workspace asks for, as its files stand when they are first looked at.

    `forget(model)` makes it look again after the model has been exported.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._methods: dict[str, dict[str, MethodSource] | None] = {}
        self._exports: dict[str, Action] = {}
        self._problems: dict[str, tuple[Problem, ...]] = {}

    # What is there

    @cached_property
    def _configs(self) -> Any:
        return read_configs(self.workspace.configs)

    @cached_property
    def _sources(self) -> tuple[dict[str, ModelSource], dict[str, str]]:
        return find_sources(self.workspace.models)

    @cached_property
    def packages(self) -> tuple[str, ...]:
        """All packages that a config asks for, those with mistakes too."""
        return tuple(sorted({*self._configs.configs, *self._configs.problems}))

    def problems(self, package: str) -> tuple[Problem, ...]:
        """All that is wrong with a package's config or source as far as is known now."""
        if package not in self._problems:
            self._problems[package] = self._find_problems(package)
        return self._problems[package]

    def _find_problems(self, package: str) -> tuple[Problem, ...]:
        found = list(self._configs.problems.get(package, ()))
        config = self._configs.configs.get(package)
        if config is None:
            return tuple(found)
        file = self._file(package)
        sources, ambiguous = self._sources
        if config.model in ambiguous:
            return (*found, Problem(file, "model", ambiguous[config.model]))
        if config.model not in sources:
            known = (
                ", ".join(sorted(sources)) or f"none; put one into {self.workspace.models.name}/"
            )
            return (*found, Problem(file, "model", f"no model '{config.model}'", f"known: {known}"))
        try:
            methods = self.methods(package)
        except SourceError as error:
            return (*found, Problem(file, "model", str(error)))
        if methods is not None:
            found += self._mismatches(package, methods)
        return tuple(found)

    def check(self, package: str) -> None:
        """Raises ConfigErrors when the package has problems."""
        problems = self.problems(package)
        if problems:
            raise ConfigErrors(problems)

    def config(self, package: str) -> PackageConfig:
        return self._configs.configs[package]

    def _file(self, package: str) -> str:
        return str(self._configs.files[package])

    def _mismatches(self, package: str, methods: Mapping[str, MethodSource]) -> list[Problem]:
        """Methods that config and model do not agree on, and quantizers without inputs."""
        file, config = self._file(package), self.config(package)
        try:
            parse_config(package, self._configs.data[package], file, known_methods=tuple(methods))
        except ConfigErrors as errors:
            return list(errors.problems)
        return [
            Problem(
                file,
                f"methods.{name}.quantize",
                "static quantization observes calibration inputs, and the model gives none",
                "add calibration_inputs(method) to the exporter, or say `dynamic: true`",
            )
            for name, method in config.methods.items()
            if method.quantize is not None
            and not method.quantize.dynamic
            and actions.calibration_of(method, methods[name]) is None
        ]

    # What to do

    def source(self, model: str) -> ModelSource:
        return self._sources[0][model]

    def exporter(self, package: str) -> str | None:
        """The model that must be exported for a package, or None where an archive is there."""
        config = self._configs.configs.get(package)
        source = self._sources[0].get(config.model) if config else None
        return source.model if source and source.form == "exporter" else None

    @cached_property
    def exporters(self) -> tuple[str, ...]:
        return tuple(sorted({m for m in map(self.exporter, self.packages) if m}))

    def export(self, model: str) -> Action:
        if model not in self._exports:
            self._exports[model] = self._export_action(model)
        return self._exports[model]

    def _export_action(self, model: str) -> Action:
        digests, root = self.workspace.file_digests, self.workspace.root
        path = self.source(model).path
        content = digests.of(path)
        record = self.workspace.store.result_of(actions.reads_key(model, content)) or {}
        reads = {name: _digest_if_there(digests, root / name) for name in record.get("reads", ())}
        inside = str(path.relative_to(root))
        distributions = record.get("distributions", ())
        return actions.export_action(model, content, reads, distributions, inside)

    def methods(self, package: str) -> dict[str, MethodSource] | None:
        """The methods of a package's model, in its order, or None while it is not exported.
        Raises SourceError."""
        model = self.config(package).model
        if model not in self._methods:
            self._methods[model] = self._read_methods(self.source(model))
        return self._methods[model]

    def _read_methods(self, source: ModelSource) -> dict[str, MethodSource] | None:
        if source.form != "exporter":
            return method_sources(source, self.workspace.file_digests)
        store = self.workspace.store
        result = store.result(self.export(source.model).digest)
        if result is None or not store.has(result["archive"]):
            return None
        archive = store.blob_path(result["archive"])
        return {
            method["name"]: MethodSource(
                archive=archive,
                entry=method["name"],
                program=method["program"],
                examples=method["examples"],
                calibration=method["calibration"],
                exported=True,
            )
            for method in result["methods"]
        }

    def forget(self, model: str) -> None:
        self._methods.pop(model, None)
        self._exports.pop(model, None)
        self._problems.clear()

    def units(self, package: str) -> list[tuple[str, ...]]:
        return actions.compile_units(self.config(package))

    def compiles(self, package: str) -> list[Action] | None:
        """None while the model is not exported."""
        methods = self.methods(package)
        if methods is None:
            return None
        config = self.config(package)
        return [actions.compile_action(config, unit, methods) for unit in self.units(package)]

    def link(self, package: str) -> Action | None:
        compiles = self.compiles(package)
        if compiles is None:
            return None
        methods = self.methods(package)
        assert methods is not None
        return actions.link_action(self.config(package), compiles, methods)

    def validate(self, package: str) -> Action | None:
        """None while the package is not linked."""
        methods = self.methods(package)
        files = self.workspace.state(package).get("link", {}).get("files")
        if methods is None or not files:
            return None
        return actions.validate_action(self.config(package), _outputs(files), methods)

    # What is stale

    def export_status(self, model: str) -> Status:
        action = self.export(model)
        store = self.workspace.store
        result = store.result(action.digest)
        if result is not None:
            if store.intact(_exported_blobs(result)):
                return Status("up-to-date", "its source and all it reads are unchanged")
            return Status("stale", "its exported program is no longer in the store")
        if store.result_of(actions.reads_key(model, action.key["source"])) is None:
            return Status("stale", "not exported yet, or its file changed")
        return Status("stale", "a file that it reads, the toolchain or this package changed")

    def compile_status(self, package: str, action: Action | None) -> Status:
        if action is None:
            return self._waiting(package)
        store = self.workspace.store
        unit = str(action.method)
        previous = self.workspace.state(package).get("compile", {}).get(unit)
        result = store.result(action.digest)
        if result is not None and store.intact(result["blobs"]):
            if previous == action.digest:
                return Status("up-to-date", "unchanged")
            return Status("hit", f"compiled before; {self._changes(previous, action)}")
        if previous == action.digest or result is not None:
            return Status("stale", "its object is no longer in the store")
        return Status("stale", self._changes(previous, action))

    def link_status(self, package: str) -> Status:
        action = self.link(package)
        if action is None:
            return self._waiting(package)
        recorded = self.workspace.state(package).get("link", {})
        if recorded.get("action") == action.digest:
            damage = self._damage(package, recorded["files"])
            if not damage:
                return Status("up-to-date", "unchanged")
            reason = damage
        else:
            reason = self._link_changes(package, recorded.get("action"), action)
        return self._hit_or_stale(action, reason)

    def validate_status(self, package: str) -> Status:
        action = self.validate(package)
        if action is None:
            return Status("waiting", "the package is not lowered yet")
        recorded = self.workspace.state(package).get("validate", {})
        if recorded.get("action") != action.digest:
            reason = self._changes(recorded.get("action"), action, "validated")
            return self._hit_or_stale(action, reason)
        if not recorded.get("ok"):
            return Status("stale", "the last validation failed")
        damage = self._damage(package, recorded["files"])
        return self._hit_or_stale(action, damage) if damage else Status("up-to-date", "unchanged")

    def _hit_or_stale(self, action: Action, reason: str) -> Status:
        """For an action whose result is files."""
        store = self.workspace.store
        result = store.result(action.digest)
        there = result is not None and all(store.has(blob) for blob in result["files"].values())
        return Status("hit" if there else "stale", reason)

    def _waiting(self, package: str) -> Status:
        model = self.config(package).model
        return Status(
            "waiting", f"model {model} is to be exported: {self.export_status(model).reason}"
        )

    def _damage(self, package: str, files: Mapping[str, Digest]) -> str:
        """What is wrong with the files that a build left, or nothing."""
        folder = self.workspace.package(package)
        for name, content in files.items():
            there = _digest_if_there(self.workspace.file_digests, folder / name)
            if there is None:
                return f"{folder.name}/{name} is missing"
            if there != content:
                return f"{folder.name}/{name} was edited"
        return ""

    def _link_changes(self, package: str, previous: Digest | None, action: Action) -> str:
        """The changes of the methods that are to be linked, then those of the link itself."""
        if previous is None:
            return "never lowered in this workspace"
        compiles = [
            (unit, self.compile_status(package, unit)) for unit in self.compiles(package) or ()
        ]
        stale = [f"{unit.method}: {s.reason}" for unit, s in compiles if not s.current]
        return "; ".join(stale) or self._changes(previous, action)

    def _changes(self, previous: Digest | None, action: Action, done: str = "compiled") -> str:
        if previous is None:
            return f"never {done} in this workspace"
        old = self.workspace.store.key(previous)
        if old is None:
            return "what it was built from is no longer in the store"
        return "; ".join(_few(actions.differences(old, action.key))) or "its key changed"


def _few(changes: Iterator[str], most: int = 3) -> Iterator[str]:
    found = list(changes)
    yield from found[:most]
    if len(found) > most:
        yield f"and {len(found) - most} more"


def _digest_if_there(digests: Any, path: Path) -> Digest | None:
    try:
        return digests.of(path)
    except OSError:
        return None


def _exported_blobs(result: Mapping[str, Any]) -> Iterator[Digest]:
    yield result["archive"]
    for method in result["methods"]:
        yield from (blob for blob in (method["examples"], method["calibration"]) if blob)


def _outputs(files: Mapping[str, Digest]) -> dict[str, Digest]:
    """The files of a package that a device loads."""
    return {name: content for name, content in files.items() if name.endswith((".pte", ".ptd"))}
