"""The plan: which actions the sources and configs call for.

It reads configs, sources, the workspace's state and action results, and changes nothing but what
the workspace remembers of its own files. It never imports torch: what only torch can tell (which
methods an exporter has) is asked of the result of the export action, and a plan made before that
result exists says that it waits for it.

Where nothing changed, not even a config is parsed: what was worked out from one is remembered with
the digests of all that it was worked out from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import actions, sources
from pipeline.actions import Action
from pipeline.digest import Digest, of_json
from pipeline.errors import ConfigErrors, Problem, SourceError, did_you_mean
from pipeline.passes import FOLDER, source_files
from pipeline.sources import ArchiveFacts, MethodSource, ModelSource
from pipeline.strict_yaml import join
from pipeline.toolchain import code, describing_code, host, planning_code, toolchain
from pipeline.upkeep import Usage
from pipeline.workspace import Workspace, config_files

if TYPE_CHECKING:
    from pipeline.backends import Backend, Quantization
    from pipeline.config import Configs, MethodConfig, PackageConfig


@dataclass(frozen=True)
class Outline:
    """What a config says by itself: its model, its compile units, the distributions whose versions
    count for them, the backends for which this machine counts, the passes that it names, which
    methods are quantized, and the files of their calibration inputs."""

    model: str
    units: tuple[tuple[str, ...], ...]
    distributions: tuple[str, ...]
    backends: tuple[str, ...]
    passes: tuple[str, ...]
    quantized: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def machine(self) -> dict[str, Any]:
        """What of this machine counts."""
        if not self.backends:
            return {}
        from pipeline.backends import BACKENDS  # pydantic, which most no-op runs do without

        return {name: BACKENDS[name].machine for name in self.backends}


class Plan:
    """What a workspace asks for, as its files stand when they are first looked at.

    `forget(model)` makes it look again after the model has been exported.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._configs: dict[str, Configs] = {}
        self._outlines: dict[str, Outline | None] = {}
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

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        return config_files(self.workspace.configs)

    @cached_property
    def _sources(self) -> tuple[dict[str, ModelSource], dict[str, str]]:
        return sources.find_sources(self.workspace.models)

    @cached_property
    def packages(self) -> tuple[str, ...]:
        """All packages that a config asks for, those with mistakes too."""
        return tuple(sorted(self._files))

    def _parsed(self, package: str) -> Configs:
        from pipeline.config import read_files  # pydantic, which a no-op run does without

        if package not in self._configs:
            self._configs[package] = read_files(self._files[package])
        return self._configs[package]

    def config(self, package: str) -> PackageConfig:
        """Raises KeyError where it has mistakes."""
        return self._parsed(package).configs[package]

    def outline(self, package: str) -> Outline | None:
        """None where the config has mistakes."""
        if package not in self._outlines:
            told = None
            if len(self._files[package]) == 1:
                with suppress(OSError):  # a file that can't be read; `_parsed` says why
                    told = self._remember(package, "outline", [], lambda: self._outline(package))
            self._outlines[package] = (
                Outline(told[0], _tuples(told[1]), *map(tuple, told[2:])) if told else None
            )
        return self._outlines[package]

    def _outline(self, package: str) -> list[Any] | None:
        config = self._parsed(package).configs.get(package)
        if config is None:
            return None
        from pipeline.backends import BACKENDS

        specs = [method.quantize for method in config.methods.values() if method.quantize]
        distributions = {name for spec in specs for name in spec.entry.distributions}
        used = {b.name: b for b in actions.backends_of(config, config.methods)}
        used |= {s.quantizer: BACKENDS[s.quantizer] for s in specs if s.quantizer in BACKENDS}
        return [
            config.model,
            actions.compile_units(config),
            sorted({*distributions, *actions.distributions_of(config, config.methods)}),
            [name for name, b in sorted(used.items()) if b.facts or b.cannot_run],
            sorted(set(actions.references_of(config, config.methods))),
            actions.quantized_methods(config),
            sorted({file for spec in specs for file in spec.calibration_files}),
        ]

    def _remember(self, package: str, what: str, inputs: Any, compute: Callable[[], Any]) -> Any:
        """What follows from a package's config, this package's code and `inputs`."""
        (path,) = self._files[package]
        given = of_json([planning_code(), code(), inputs])
        return self.workspace.file_digests.derived(path, what, lambda _: compute(), given)

    def model(self, package: str) -> str | None:
        outline = self.outline(package)
        return outline.model if outline else None

    def problems(self, package: str) -> tuple[Problem, ...]:
        """All that is wrong with a package's config or source as far as is known now."""
        if package not in self._problems:
            known = self.link_digest(package) is not None
            self._problems[package] = () if known else self._find_problems(package)
        return self._problems[package]

    def _find_problems(self, package: str) -> tuple[Problem, ...]:
        configs = self._parsed(package)
        found = list(configs.problems.get(package, ()))
        config = configs.configs.get(package)
        if config is None:
            return tuple(found)
        file = configs.files[package]
        found += _missing(config, file)
        found += self._missing_passes(package, file)
        found += self._missing_files(config, file)
        found += _mixed_edges(config, file)
        models, ambiguous = self._sources
        if config.model in ambiguous:
            return (*found, Problem(file, "model", ambiguous[config.model]))
        if config.model not in models:
            known = ", ".join(sorted(models)) or f"none; put one into {self.workspace.models.name}/"
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

    def _mismatches(self, package: str, methods: Mapping[str, MethodSource]) -> list[Problem]:
        """Methods that config and model do not agree on, and quantizers without inputs."""
        from pipeline.config import parse_config

        configs = self._parsed(package)
        file = configs.files[package]
        try:
            parse_config(package, configs.data[package], file, known_methods=tuple(methods))
        except ConfigErrors as errors:
            return list(errors.problems)
        specs = configs.configs[package].methods
        found = [
            p for name in specs for p in self._unknown_modules(file, name, specs[name], methods)
        ]
        return found + [
            Problem(
                file,
                f"methods.{name}.quantize",
                "static quantization observes calibration inputs, and the model gives none",
                "add calibration_inputs(method) to the exporter, or say `dynamic: true`",
            )
            for name, method in configs.configs[package].methods.items()
            if method.quantize is not None
            and method.quantize.calibrates
            and not method.quantize.calibration_files
            and actions.calibration_of(method.quantize, methods[name]) is None
        ]

    def _unknown_modules(
        self, file: str, name: str, config: MethodConfig, methods: Mapping[str, MethodSource]
    ) -> Iterator[Problem]:
        """Overrides of modules that a method lacks, if it is known which it has."""
        overrides = getattr(config.quantize, "modules", {})
        if not overrides:
            return
        parts = self.workspace.store.result_of(actions.program_key(methods[name].program))
        if parts is None:
            return
        known = sources.modules_of(parts["modules"])
        for module in overrides:
            if module not in known:
                where = f"methods.{name}.quantize.modules"
                hint = did_you_mean(module, known, 10)
                yield Problem(file, where, f"no module '{module}' in the program", hint)

    def _missing_files(self, config: PackageConfig, file: str) -> Iterator[Problem]:
        for name, method in config.methods.items():
            for path in method.quantize.calibration_files if method.quantize else ():
                if not (self.workspace.root / path).is_file():
                    where = f"methods.{name}.quantize.calibration"
                    yield Problem(file, where, f"no file '{path}' in the workspace")

    def _missing_passes(self, package: str, file: str) -> Iterator[Problem]:
        for reference, files in self._passes(package).items():
            if not files:
                module = reference.partition(":")[0]
                yield Problem(
                    file,
                    "passes",
                    f"no module '{module}' in {FOLDER}/, and none that is installed",
                )

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
                    name: self._quantize_action(config, name, methods[name])
                    for name in self.quantized(package)
                }
                if methods is not None
                else None
            )
        return self._quantizes[package]

    def _quantize_action(self, config: PackageConfig, name: str, source: MethodSource) -> Action:
        spec = config.methods[name].quantize
        files = [self._file(path) for path in spec.calibration_files] if spec else []
        known = [content for content in files if content is not None]  # else there is a problem
        return actions.quantize_action(config, name, source, known)

    def _file(self, path: str) -> Digest | None:
        return self.workspace.file_digests.find(self.workspace.root / path)

    def compiles(self, package: str) -> list[Action] | None:
        """None while the model is not exported."""
        if package not in self._compiles:
            methods, config = self.methods(package), self.config(package)
            quantizes = self.quantizes(package)
            self._compiles[package] = (
                [
                    actions.compile_action(config, unit, methods, quantizes, self._passes(package))
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
        return self._remember(
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
        return actions.validate_action(self.config(package), files, methods)

    def validate_digest(self, package: str) -> Digest | None:
        """That of `validate`."""
        methods, files = self.methods(package), self._linked(package)
        outline = self.outline(package)
        if methods is None or outline is None or not files:
            return None
        return self._remember(
            package,
            "validate",
            [_identities(methods), files, toolchain(), outline.machine, host()],
            lambda: _digest_of(self.validate(package)),
        )

    def _linked(self, package: str) -> dict[str, Digest]:
        """The files of a linked package that a device loads."""
        files = self.workspace.state(package).get("link", {}).get("files", {})
        return {name: blob for name, blob in files.items() if name.endswith((".pte", ".ptd"))}


def _missing(config: PackageConfig, file: str) -> Iterator[Problem]:
    """What the backends of a config need and this machine lacks."""
    for name, method in config.methods.items():
        used: list[tuple[str, Backend | Quantization]] = [
            (join(f"methods.{name}.partitioners", number), spec.backend)
            for number, spec in enumerate(method.partitioners)
        ]
        if method.quantize is not None:
            used.append((f"methods.{name}.quantize", method.quantize.entry))
        for path, each in used:
            for need in each.missing():
                yield Problem(file, path, f"{each.name} needs {need.what}", need.remedy)


def _mixed_edges(config: PackageConfig, file: str) -> Iterator[Problem]:
    """Methods that are lowered in one call become edge programs in one way."""
    for unit in actions.compile_units(config):
        ways = {n: config.methods[n].edge.model_copy(update={"passes": ()}) for n in unit}
        first, *others = unit
        for name in others:
            if ways[name] != ways[first]:
                yield Problem(
                    file,
                    f"methods.{name}.edge",
                    f"differs from that of '{first}', with which it is lowered together",
                    "say the same of both; only passes may differ",
                )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raises SourceError for a model's file that can't be read."""
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"{sources.shown(path)}: cannot be read ({error.strerror or error})"
        ) from error


def _identities(methods: Mapping[str, MethodSource]) -> list[Any]:
    return [[n, m.program, m.names, m.examples, m.calibration] for n, m in methods.items()]


def _tuples(units: Iterable[Iterable[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(unit) for unit in units)


def _digest_of(action: Action | None) -> Digest | None:
    return action.digest if action else None
