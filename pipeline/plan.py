"""The plan: which actions the sources and configs call for.

It reads configs, sources, the workspace's state and action results, and changes nothing but what
the workspace remembers of its own files. It never imports torch: what only torch can tell (which
methods an exporter has) is asked of the result of the export action, and a plan made before that
result exists says that it waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import actions, sources
from pipeline.actions import Action
from pipeline.digest import Digest
from pipeline.errors import ConfigErrors, Problem, SourceError, did_you_mean, join
from pipeline.mistakes import (
    misfitting_files,
    mixed_edges,
    places_of,
    places_of_passes,
    unknown_options_of,
    unusable_backends,
)
from pipeline.passes import FOLDER, source_files
from pipeline.remembered import Outline, Remembered
from pipeline.selection import mistakes, outline_from_json
from pipeline.sources import ArchiveFacts, MethodSource, ModelSource
from pipeline.toolchain import describing_code, host, toolchain
from pipeline.upkeep import Usage
from pipeline.workspace import Workspace

if TYPE_CHECKING:
    from pipeline.compose import Document
    from pipeline.config import MethodConfig, PackageConfig


class Plan:
    """What a workspace asks for, as its files stand when they are first looked at.

    `forget(model)` makes it look again after the model has been exported.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.configs = Remembered(workspace)
        self._methods: dict[str, dict[str, MethodSource] | None] = {}
        self._exports: dict[str, Action] = {}
        self._problems: dict[str, tuple[Problem, ...]] = {}
        self._links: dict[str, Action | None] = {}
        self._compiles: dict[str, list[Action] | None] = {}
        self._quantizes: dict[str, dict[str, Action] | None] = {}
        self._keys: dict[str, Digest | None] = {}
        self._described: dict[Digest, tuple[ArchiveFacts, float]] = {}
        self.usage: dict[str, Usage] = {}

    # What is there

    @property
    def packages(self) -> tuple[str, ...]:
        """All packages that a config asks for, those with mistakes too."""
        return self.configs.packages

    def config(self, package: str) -> PackageConfig:
        """Raises KeyError where it has mistakes."""
        return self.configs.parsed(package).configs[package]

    def outline(self, package: str) -> Outline | None:
        """None where the config has mistakes."""
        return self.configs.outline(package)

    @cached_property
    def _sources(self) -> tuple[dict[str, ModelSource], dict[str, str]]:
        try:
            return sources.find_sources(self.workspace.models)
        except SourceError as error:  # then it is what is wrong with every model
            models = filter(None, map(self.model, self.packages))
            return {}, dict.fromkeys(models, str(error))

    def model(self, package: str) -> str | None:
        outline = self.outline(package)
        return outline.model if outline else None

    def problems(self, package: str) -> tuple[Problem, ...]:
        """All that is wrong with a package's config or source as far as is known now."""
        if package not in self._problems:
            known = self.link_digest(package) is not None
            # What an alias of YAML repeats was written once.
            found = () if known else dict.fromkeys(self._find_problems(package))
            self._problems[package] = tuple(found)
        return self._problems[package]

    def _find_problems(self, package: str) -> tuple[Problem, ...]:
        configs = self.configs.parsed(package)
        found = list(configs.problems.get(package, ()))
        config = configs.configs.get(package)
        found += unusable_backends(configs.uses.get(package, ()))
        if config is None:
            return tuple(found)
        document = configs.documents[package]
        found += unknown_options_of(config, document)
        found += self._missing_passes(package, config, document)
        found += misfitting_files(config, document, self.workspace.root)
        found += mixed_edges(config, document)
        models, wrong = self._sources
        if config.model in wrong:
            return (*found, document.problem("model", wrong[config.model]))
        if config.model not in models:
            known = ", ".join(sorted(models)) or f"none; put one into {self.workspace.models.name}/"
            what = f"no model '{config.model}'"
            return (*found, document.problem("model", what, f"known: {known}"))
        try:
            methods = self.methods(package)
        except SourceError as error:
            return (*found, document.problem("model", str(error)))
        if methods is not None:
            found += self._mismatches(package, methods)
        return tuple(found)

    def check(self, package: str) -> None:
        """Raises ConfigErrors when the package has problems."""
        problems = self.problems(package)
        if problems:
            raise ConfigErrors(problems)

    def _mismatches(self, package: str, methods: Mapping[str, MethodSource]) -> list[Problem]:
        """Methods that config and model do not agree on, and quantizers without inputs."""
        from pipeline.config import parse_document

        configs = self.configs.parsed(package)
        document = configs.documents[package]
        try:
            parse_document(package, document, known_methods=tuple(methods))
        except ConfigErrors as errors:
            return list(errors.problems)
        specs = configs.configs[package].methods
        found = [
            p for name in specs for p in self._wrong_modules(document, name, specs[name], methods)
        ]
        return found + [
            document.problem(
                f"methods.{name}.quantize",
                "static quantization observes calibration inputs, and the model gives none",
                "add calibration_inputs(method) to the exporter, or say `dynamic: true`",
            )
            for name, method in configs.configs[package].methods.items()
            if method.quantize is not None
            and method.quantize.calibrates
            and actions.CALIBRATION not in method.files
            and actions.calibration_of(method.quantize, methods[name]) is None
        ]

    def _wrong_modules(
        self,
        document: Document,
        name: str,
        config: MethodConfig,
        methods: Mapping[str, MethodSource],
    ) -> Iterator[Problem]:
        """Modules that a config names and a method lacks or has in several places, if it is known
        what it has."""
        quantized = getattr(config.quantize, "modules", None) or {}
        confines = [(f"methods.{name}.modules", config.modules or ())]
        confines += [
            (f"{join(f'methods.{name}.partitioners', n)}.{spec.name}.modules", spec.modules or ())
            for n, spec in enumerate(config.partitioners)
        ]
        if not quantized and not any(modules for _, modules in confines):
            return
        parts = self.workspace.store.result_of(actions.program_key(methods[name].program))
        if parts is None:
            return
        known = sources.modules_of(parts["modules"])
        for module in quantized:
            if module not in known:
                hint, where = did_you_mean(module, known, 10), f"methods.{name}.quantize.modules"
                yield document.problem(where, f"no module '{module}' in the program", hint)
        if "outline" not in parts:  # described by an earlier version; told when it is compiled
            return
        outline = outline_from_json(parts["outline"])
        for where, modules in confines:
            for what, hint in mistakes(modules, outline):
                yield document.problem(where, what, hint)

    def _missing_passes(
        self, package: str, config: PackageConfig, document: Document
    ) -> Iterator[Problem]:
        files = self._passes(package)
        for path, reference in places_of_passes(config):
            if not files[reference]:
                module = reference.partition(":")[0]
                what = f"no module '{module}' in {FOLDER}/, and none that is installed"
                yield document.problem(path, what)

    # What to do

    def source(self, model: str) -> ModelSource:
        return self._sources[0][model]

    def exporter(self, package: str) -> str | None:
        """The model that must be exported for a package, or None where an archive is there."""
        source = self._sources[0].get(self.model(package) or "")
        return source.model if source and source.form == "exporter" else None

    @cached_property
    def exporters(self) -> tuple[str, ...]:
        return tuple(sorted({m for m in map(self.exporter, self.packages) if m}))

    def export(self, model: str) -> Action:
        """Raises SourceError."""
        if model not in self._exports:
            self._exports[model] = self._export_action(model)
        return self._exports[model]

    def _export_action(self, model: str) -> Action:
        digests, root = self.workspace.file_digests, self.workspace.root
        path = self.source(model).path
        with _reading(path):
            content = digests.of(path)
        record = self.workspace.store.result_of(actions.reads_key(model, content)) or {}
        reads = {name: digests.find(root / name) for name in record.get("reads", ())}
        inside = str(path.relative_to(root))
        distributions = record.get("distributions", ())
        return actions.export_action(model, content, reads, distributions, inside)

    def methods(self, package: str) -> dict[str, MethodSource] | None:
        """The methods of a package's model, in its order, or None while it is not exported.
        Raises SourceError."""
        model = self.model(package)
        assert model is not None
        if model not in self._methods:
            self._methods[model] = self._read_methods(self.source(model))
        return self._methods[model]

    def _read_methods(self, source: ModelSource) -> dict[str, MethodSource] | None:
        if source.form != "exporter":
            return sources.method_sources(source, self._describe)
        store = self.workspace.store
        result = store.result(self.export(source.model).digest)
        if result is None:
            return None
        archive = store.blob_path(result["archive"])
        return {
            method["name"]: MethodSource(
                archive=archive,
                entry=method["name"],
                program=method["program"],
                names=method["names"],
                content=result["archive"],
                examples=method["examples"],
                calibration=method["calibration"],
                batches=tuple(method["batches"]),
                exported=True,
            )
            for method in result["methods"]
        }

    def _describe(self, path: Path) -> ArchiveFacts:
        """What an archive holds: remembered by its stamp, known to the store by its bytes, or read
        of it."""
        digests = self.workspace.file_digests

        def describe(path: Path) -> Any:
            content = digests.of(path)
            known = self.workspace.store.lookup(actions.programs_key(content))
            usage = self.usage.setdefault("programs", Usage())
            if known is not None:
                usage.add(Usage(hits=1, saved=known.seconds))
                return [content, known.result["programs"]]
            started = time.perf_counter()
            facts = sources.describe_archive(path, content)
            seconds = time.perf_counter() - started
            usage.add(Usage(misses=1, spent=seconds))
            self._described[content] = facts, seconds
            return [content, facts.to_json()]

        with _reading(path):
            told = digests.derived(path, "programs", describe, given=describing_code())
        return sources.archive_from_json(*told)

    def remember(self) -> None:
        """Keeps what was read of files, in the workspace and, of archives, in the store."""
        store = self.workspace.store
        self.workspace.file_digests.save()
        with suppress(OSError):  # a convenience; a store that can't be written only serves
            while self._described:
                content, (facts, seconds) = self._described.popitem()
                programs = {"programs": facts.to_json()}
                store.put_result(actions.programs_key(content), programs, seconds)
                for each in facts.programs:
                    store.put_result(actions.program_key(each.program), each.parts)

    def forget(self, model: str) -> None:
        self._methods.pop(model, None)
        self._exports.pop(model, None)
        self._problems.clear()
        self._links.clear()
        self._compiles.clear()
        self._quantizes.clear()
        self._keys.clear()

    def units(self, package: str) -> tuple[tuple[str, ...], ...]:
        outline = self.outline(package)
        return outline.units if outline else ()

    def quantized(self, package: str) -> tuple[str, ...]:
        """The methods that are quantized."""
        outline = self.outline(package)
        return outline.quantized if outline else ()

    def quantizes(self, package: str) -> dict[str, Action] | None:
        """By method; None while the model is not exported."""
        if package not in self._quantizes:
            methods, config = self.methods(package), self.config(package)
            self._quantizes[package] = (
                {
                    name: actions.quantize_action(
                        config, name, methods[name], self._contents(config.methods[name])
                    )
                    for name in self.quantized(package)
                }
                if methods is not None
                else None
            )
        return self._quantizes[package]

    def _contents(self, method: MethodConfig) -> dict[str, list[Digest]]:
        """Of the files that its options name, by the option's place. One that is not there is a
        problem, which is told of before anything is done with this."""
        found = {place: map(self._file, paths) for place, paths in method.files.items()}
        return {place: [d for d in own if d is not None] for place, own in found.items()}

    def _file(self, path: str) -> Digest | None:
        return self.workspace.file_digests.find(self.workspace.root / path)

    def compiles(self, package: str) -> list[Action] | None:
        """None while the model is not exported."""
        if package not in self._compiles:
            methods, config = self.methods(package), self.config(package)
            quantizes, passes = self.quantizes(package), self._passes(package)
            files = {name: self._contents(method) for name, method in config.methods.items()}
            self._compiles[package] = (
                [
                    actions.compile_action(config, unit, methods, quantizes, passes, files)
                    for unit in self.units(package)
                ]
                if methods is not None and quantizes is not None
                else None
            )
        return self._compiles[package]

    def _passes(self, package: str) -> dict[str, dict[str, Digest]]:
        """The digests of the files of a config's passes, by reference and name."""
        outline, of = self.outline(package), self.workspace.file_digests.of
        return {
            reference: {
                n: of(path) for n, path in source_files(reference, self.workspace.root).items()
            }
            for reference in (outline.passes if outline else ())
        }

    def link(self, package: str) -> Action | None:
        if package not in self._links:
            compiles, methods = self.compiles(package), self.methods(package)
            self._links[package] = (
                actions.link_action(self.config(package), compiles, methods)
                if compiles is not None and methods is not None
                else None
            )
        return self._links[package]

    def link_digest(self, package: str) -> Digest | None:
        """That of `link`, for a package without problems; None where it has some, or
        waits for an export."""
        if package not in self._keys:
            self._keys[package] = self._key_of_link(package)
        return self._keys[package]

    def _key_of_link(self, package: str) -> Digest | None:
        outline = self.outline(package)
        if outline is None or outline.model not in self._sources[0]:
            return None
        try:
            methods = self.methods(package)
        except SourceError:
            return None
        if methods is None:
            return None
        return self.configs.derived(
            package,
            "link",
            [
                _identities(methods),
                toolchain(outline.distributions),
                outline.machine,
                self._passes(package),
                host(),
                [self._file(path) for path in outline.files],
            ],
            lambda: None if self._find_problems(package) else _digest_of(self.link(package)),
        )

    def validate(self, package: str) -> Action | None:
        """None while the package is not linked."""
        methods = self.methods(package)
        files = self._linked(package)
        if methods is None or not files:
            return None
        return self.validation_of(package, files, methods)

    def validation_of(
        self, package: str, files: Mapping[str, Digest], methods: Mapping[str, MethodSource]
    ) -> Action:
        """Of a package whose files have these digests."""
        config = self.config(package)
        places = places_of(config, self.configs.document(package))
        examples = {
            name: [d for d in map(self._file, limits.examples or ()) if d is not None]
            for name, limits in config.validation.methods.items()
        }
        baseline = self.baseline(package)
        return actions.validate_action(config, files, methods, examples, baseline, places)

    def baseline(self, package: str) -> Digest | None:
        """The digest of the file with a package's accepted figures."""
        return self.workspace.file_digests.find(self.workspace.baseline(package))

    def validate_digest(self, package: str) -> Digest | None:
        """That of `validate`."""
        methods, files = self.methods(package), self._linked(package)
        outline = self.outline(package)
        if methods is None or outline is None or not files:
            return None
        return self.configs.derived(
            package,
            "validate",
            [
                _identities(methods),
                files,
                toolchain(),
                outline.machine,
                host(),
                self.baseline(package),
                [self._file(path) for path in outline.files],
            ],
            lambda: _digest_of(self.validate(package)),
        )

    def _linked(self, package: str) -> dict[str, Digest]:
        """The files of a linked package that a device loads."""
        files = self.workspace.state(package).get("link", {}).get("files", {})
        return {name: blob for name, blob in files.items() if name.endswith((".pte", ".ptd"))}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raises SourceError for a model's file that can't be read."""
    try:
        yield
    except OSError as error:
        raise SourceError(f"{sources.shown(path)}: {sources.unreadable(error)}") from error


def _identities(methods: Mapping[str, MethodSource]) -> list[Any]:
    return [
        [n, m.program, m.names, m.content, m.examples, m.calibration] for n, m in methods.items()
    ]


def _digest_of(action: Action | None) -> Digest | None:
    return action.digest if action else None
