"""The plan: which actions the sources and configs call for.

It reads configs, sources, the workspace's state and action results, and changes nothing but what
the workspace remembers of its own files. It never imports torch: what only torch can tell (which
methods an exporter has) is asked of the result of the export action, and a plan made before that
result exists says that it waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.config.passes import source_files
from pipeline.plan import actions
from pipeline.plan.actions import Action
from pipeline.plan.checks import misfitting_methods, mistakes_of, places_of, unusable_backends
from pipeline.plan.config_cache import Outline, Remembered
from pipeline.plan.models import Inventory
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest
from pipeline.store.errors import ConfigErrors, Problem, SourceError
from pipeline.store.toolchain import host, toolchain
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:
    from pipeline.config.load import MethodConfig, PackageConfig


class Plan:
    """What a workspace asks for, as its files stand when they are first looked at.

    `forget(model)` makes it look again after the model has been exported.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.configs = Remembered(workspace)
        self.models = Inventory(workspace)
        self._problems: dict[str, tuple[Problem, ...]] = {}
        self._links: dict[str, Action | None] = {}
        self._compiles: dict[str, list[Action] | None] = {}
        self._quantizes: dict[str, dict[str, Action] | None] = {}
        self._keys: dict[str, Digest | None] = {}

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
        found += mistakes_of(config, document, self.workspace.root)
        found += self.models.problems(config.model, document)
        if config.model not in self.models.sources:
            return tuple(found)
        try:
            methods = self.methods(package)
        except SourceError as error:
            return (*found, document.problem("model", str(error)))
        if methods is not None:
            found += misfitting_methods(package, config, document, methods, self.workspace.store)
        return tuple(found)

    def check(self, package: str) -> None:
        """Raises ConfigErrors when the package has problems."""
        problems = self.problems(package)
        if problems:
            raise ConfigErrors(problems)

    # What to do

    def exporter(self, package: str) -> str | None:
        """The model that must be exported for a package, or None where an archive is there."""
        source = self.models.sources.get(self.model(package) or "")
        return source.model if source and source.form == "exporter" else None

    @cached_property
    def exporters(self) -> tuple[str, ...]:
        return tuple(sorted({m for m in map(self.exporter, self.packages) if m}))

    def methods(self, package: str) -> dict[str, MethodSource] | None:
        """The methods of a package's model, in its order, or None while it is not exported.
        Raises SourceError."""
        model = self.model(package)
        assert model is not None
        return self.models.methods(model)

    def remember(self) -> None:
        """Keeps what was read of files, in the workspace and, of archives, in the store."""
        self.workspace.file_digests.save()
        self.models.remember()

    def forget(self, model: str) -> None:
        self.models.forget(model)
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
        if outline is None or outline.model not in self.models.sources:
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


def _identities(methods: Mapping[str, MethodSource]) -> list[Any]:
    return [
        [n, m.program, m.names, m.content, m.examples, m.calibration] for n, m in methods.items()
    ]


def _digest_of(action: Action | None) -> Digest | None:
    return action.digest if action else None
