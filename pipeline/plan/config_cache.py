"""The configs of a workspace, and what is cached about them from run to run.

If nothing has changed, not a single config is parsed: anything derived from a config is cached with
the digests of everything that it was derived from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.moments import find_features, load
from pipeline.plan.export_parameters import name_export
from pipeline.store.digest import Digest, hash_bytes, hash_json
from pipeline.store.toolchain import code, toolchain
from pipeline.store.workspace import Workspace, config_files, makes_packages

if TYPE_CHECKING:
    from pipeline.config.compose import Document, Folder
    from pipeline.config.models import PackageConfig
    from pipeline.config.parser import ParsedPackage
    from pipeline.store.errors import Problem


class ConfigSummary(NamedTuple):
    """The part of a config from which tasks and the digests of keys are made.

    Attributes:
        export: the model and its parameters, as named by `name_export`.
        file: the name of the package's .pte, without its suffix.
        omitted: the methods of the model that are not part of the package.
        units: the methods that are compiled together, unit by unit.
        distributions: the distributions whose versions can change what the backends and quantizers
            make.
        backends: the backends whose results depend on this machine.
        passes: the passes that the config names, by reference.
        operators: the operator libraries that the config names.
        quantized: the methods that are quantized.
        files: the files of the workspace that options name.
        features: the summaries that features keep of the config, by feature.
        revision: whether the package names the commit that it was built from.
        budget: the seconds that validating the package may take.
    """

    model: str
    export: str
    file: str
    omitted: Sequence[str]
    units: Sequence[Sequence[str]]
    distributions: Sequence[str]
    backends: Sequence[str]
    passes: Sequence[str]
    operators: Sequence[str]
    quantized: Sequence[str]
    files: Sequence[str]
    features: Mapping[str, Any]
    revision: bool
    budget: float

    @property
    def machine(self) -> dict[str, Any]:
        """The facts about this machine that count, by backend."""
        if not self.backends:
            return {}
        # Imported lazily: this needs pydantic, and most no-op runs don't.
        from pipeline.backends import BACKENDS

        # Skips the backends of plugins that no longer load.
        names = BACKENDS.keys() & self.backends
        return {name: BACKENDS[name].machine for name in sorted(names)}


class ConfigCache:
    """The configs of a workspace, as its files were when they were first read."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._known: dict[Path, dict[str, Any] | None] = {}
        self._digests: dict[str, Digest | None] = {}
        self._parsed: dict[str, ParsedPackage] = {}
        self._summaries: dict[str, ConfigSummary | None] = {}
        self.toolchains: dict[tuple[str, ...], Digest] = {}

    def toolchain(self, summary: ConfigSummary) -> Digest:
        """Return the digest of the versions that count for a config, looked up once."""
        distributions = tuple(summary.distributions)
        if distributions not in self.toolchains:
            self.toolchains[distributions] = hash_json(toolchain(distributions))
        return self.toolchains[distributions]

    def _environment(self, summary: ConfigSummary) -> list[Any]:
        """Return what counts besides the config: versions, this machine, and its plugins' code."""
        return [self.toolchain(summary), summary.machine]

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        """The configs by the package that they make; several for one package are a mistake."""
        files: dict[str, list[Path]] = {}
        for stem, paths in config_files(self.workspace.configs).items():
            for path in paths if makes_packages(stem) else ():
                composed = self._composed(path)
                if composed:
                    packages = composed["packages"]
                else:
                    packages = self._folder.compose(path).packages
                for package in packages:
                    files.setdefault(package, []).append(path)
        return files

    @cached_property
    def _folder(self) -> Folder:
        # Imported lazily: this needs YAML, and a no-op run doesn't.
        from pipeline.config.compose import Folder

        return Folder(self.workspace.configs, self.workspace.environment)

    def _composed(self, path: Path) -> dict[str, Any] | None:
        """Return the packages that a config file makes, with the digests of its other inputs.

        The inputs are files and environment variables. Returns None for a file with mistakes, which
        is read again every time.
        """

        def compute(path: Path) -> dict[str, Any] | None:
            composition = self._folder.compose(path)
            if composition.problems:
                return None
            return {
                "packages": composition.packages,
                "files": composition.reads,
                "variables": {
                    name: self._variable(name) for name in composition.variables
                },
            }

        if path not in self._known:
            digests = self.workspace.file_digests
            self._known[path] = None
            with suppress(OSError):  # a file that can't be read; `mistakes` says why
                version = code("plan")
                self._known[path] = digests.cached(
                    path, "composed", compute, version, partial(self._still_so, path)
                )
        return self._known[path]

    def _still_so(self, path: Path, composed: Mapping[str, Any]) -> bool:
        """Return whether a config's other inputs, besides the file itself, are unchanged."""
        variables = composed["variables"]
        for name, digest in composed["files"].items():
            if name != path.name and self._digest(name) != digest:
                return False
        return all(self._variable(name) == digest for name, digest in variables.items())

    def _variable(self, name: str) -> Digest | None:
        """Return the digest of a variable's value, or None if it isn't set.

        No file may hold the value itself. A variable that configs may no longer read has a digest
        that no value has.
        """
        environment = self.workspace.environment
        if name not in environment.names:
            return hash_bytes(b"")
        value = environment.get(name)
        if value is None:
            return None
        if name in environment.secrets:
            from pipeline.config.secrets import Secret  # most no-op runs read none

            return Secret(name, value).digest
        return hash_bytes(b"=" + os.fsencode(value))

    def _digest(self, name: str) -> Digest | None:
        """Return the digest of a file that configs extend, which is hashed only once."""
        if name not in self._digests:
            self._digests[name] = self.workspace.find_data(
                self.workspace.configs / name
            )
        return self._digests[name]

    def content(self, file: str) -> Digest:
        """Return the digest of a file that configs were parsed from, as it was when it was read."""
        digest = self._folder.read(self.workspace.configs.parent / file)[1]
        assert digest is not None
        return digest

    def files(self, package: str) -> Iterator[tuple[str, Digest]]:
        """Yield the path and digest of a package's config, and of each config that it extends."""
        for path in self._files[package]:
            composed = self._composed(path) or {"files": ()}
            for name in (path.name, *composed["files"]):
                digest = self._digest(name)
                if digest is not None:
                    yield f"{self.workspace.configs.name}/{name}", digest

    @cached_property
    def packages(self) -> tuple[str, ...]:
        """All packages that the configs make, including those with mistakes."""
        return tuple(sorted(self._files))

    def has(self, package: str) -> bool:
        """Return whether a config makes a package."""
        return package in self._files

    def made_by(self, file: str) -> Iterator[str]:
        """Yield the packages made from a file of the folder, directly or by extending it."""
        for package, paths in self._files.items():
            composed = [self._composed(path) for path in paths]
            parts = {
                name
                for composition in composed
                if composition
                for name in composition["files"]
            }
            if file in {*parts, *(path.name for path in paths)}:
                yield package

    def config(self, package: str) -> PackageConfig | None:
        """Return a package's config, or None if it has mistakes."""
        return self._parse_config(package)[0]

    def document(self, package: str) -> Document | None:
        """Return the document of a package's config, or None if a file can't be read."""
        return self._parse_config(package)[1]

    def mistakes(self, package: str) -> tuple[Problem, ...]:
        """Return the mistakes in a package's config that can be found without its model."""
        return self._parse_config(package)[2]

    def _parse_config(self, package: str) -> ParsedPackage:
        # Imported lazily: this needs pydantic, and a no-op run doesn't.
        from pipeline.config.parser import parse_package

        if package not in self._parsed:
            compositions = [self._folder.compose(path) for path in self._files[package]]
            self._parsed[package] = parse_package(package, compositions)
        return self._parsed[package]

    def summary(self, package: str) -> ConfigSummary | None:
        """Return the summary of a package's config, or None if the config has mistakes."""
        if package not in self._summaries:
            fields = None
            with suppress(OSError):  # a file that can't be read; `mistakes` says why
                fields = self._cached_summary(package)
            self._summaries[package] = ConfigSummary(**fields) if fields else None
        return self._summaries[package]

    def _cached_summary(self, package: str) -> dict[str, Any] | None:
        """Return a package's summary, cached like `derived` and by the summary's own environment.

        The environment counts because a plugin's backend may have gone or changed since.
        """
        path, *further_files = self._files[package]
        composed = self._composed(path)
        if further_files or composed is None:
            return self._summarize(package)
        inputs = hash_json([code(), composed])

        def compute(path: Path) -> dict[str, Any] | None:
            summary = self._summarize(package, bool(composed["variables"]))
            return summary and {
                "for": self._environment(ConfigSummary(**summary)),
                "summary": summary,
            }

        def is_valid(cached: Mapping[str, Any]) -> bool:
            return bool(
                cached["for"] == self._environment(ConfigSummary(**cached["summary"]))
            )

        digests = self.workspace.file_digests
        cached = digests.cached(
            path,
            f"summary {package}",
            compute,
            inputs,
            is_valid,
        )
        return cached and cached["summary"]

    def _summarize(
        self, package: str, has_variables: bool = False
    ) -> dict[str, Any] | None:
        config = self.config(package)
        if config is None:
            return None
        return _summarize(config, has_variables)

    def derived(
        self, package: str, name: str, inputs: Any, compute: Callable[[], Any]
    ) -> Any:
        """Return `compute()`, cached unless the config has mistakes.

        `compute` may depend only on the package's config, this project's code, and `inputs`.
        """
        path, *further_files = self._files[package]
        composed = self._composed(path)
        if further_files or composed is None:
            return compute()
        versions = [code(kind) for kind in ("link", "measure", "validate")]
        # `compute` must depend on nothing else.
        digest = hash_json([versions, composed, inputs])
        return self.workspace.file_digests.cached(
            path, f"{name} {package}", lambda _: compute(), digest
        )


def _summarize(config: PackageConfig, has_variables: bool) -> dict[str, Any]:
    """Return the fields of a config's summary."""
    from pipeline.backends import BACKENDS, QUANTIZERS

    specs = [method.quantize for method in config.methods.values() if method.quantize]
    hosts = [QUANTIZERS[spec.quantizer].host for spec in specs]
    used = {b.name: b for b in config.backends(config.methods)}
    used |= {
        s.quantizer: BACKENDS[s.quantizer] for s in specs if s.quantizer in BACKENDS
    }
    named = [
        f for m in config.methods.values() for paths in m.files.values() for f in paths
    ]
    named += [
        f
        for limits in config.validation.methods.values()
        for f in limits.examples or ()
    ]
    return {
        "model": config.model,
        "export": name_export(config.model, config.export),
        "file": config.stem,
        "omitted": config.omitted,
        "units": config.units,
        "distributions": sorted(
            {name for host in hosts for name in host.distributions}
            | set(config.distributions(config.methods))
        ),
        "backends": [
            name for name, backend in sorted(used.items()) if backend.asks_machine
        ],
        "passes": sorted(set(config.pass_references(config.methods))),
        "operators": list(config.operators),
        "quantized": config.quantized,
        "files": sorted(set(named)),
        "features": _ask_features(config, has_variables),
        "revision": config.emit.metadata_revision,
        "budget": config.validation.budget,
    }


def _ask_features(config: PackageConfig, has_variables: bool) -> dict[str, Any]:
    """Return the summaries that features keep of a config, by feature."""
    summaries = {}
    for feature in find_features():
        if feature.summarize:
            summary = load(feature.summarize)(config, has_variables)
            if summary is not None:
                summaries[feature.name] = summary
    return summaries
