"""The configs of a workspace, and what is cached of them from run to run.

Where nothing changed, not even a config is parsed: what follows from one is cached with the digests
of all that it was made from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.config.secrets import Secret
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
        export: the model and its parameters, as `name_export` names them.
        file: how the package's .pte is called, without its ending.
        omitted: the methods of the model that are no part of the package.
        units: the methods that are compiled together, unit by unit.
        distributions: those whose versions count for what the backends and quantizers make.
        backends: those for which this machine counts.
        passes: the passes that the config names, by reference.
        operators: the libraries of operators that the config names.
        quantized: the methods that are quantized.
        files: the files of the workspace that options name.
        features: what features keep of the config, by the name of each that it concerns.
        revision: whether the package names the commit that it was built from.
        budget: the seconds that validating the package may take.
    """

    model: str
    export: str
    file: str
    omitted: tuple[str, ...]
    units: tuple[tuple[str, ...], ...]
    distributions: tuple[str, ...]
    backends: tuple[str, ...]
    passes: tuple[str, ...]
    operators: tuple[str, ...]
    quantized: tuple[str, ...]
    files: tuple[str, ...]
    features: Mapping[str, Any]
    revision: bool
    budget: float

    @property
    def machine(self) -> dict[str, Any]:
        """The facts of this machine that count, by backend."""
        if not self.backends:
            return {}
        # Pydantic, which most no-op runs do without.
        from pipeline.backends import (
            BACKENDS,
        )

        # Without those of plugins that fail by now.
        names = BACKENDS.keys() & self.backends
        return {name: BACKENDS[name].machine for name in sorted(names)}


class ConfigCache:
    """The configs of a workspace, as its files stand when they are first looked at."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._known: dict[Path, dict[str, Any] | None] = {}
        self._digests: dict[str, Digest | None] = {}
        self._parsed: dict[str, ParsedPackage] = {}
        self._summaries: dict[str, ConfigSummary | None] = {}
        self.toolchains: dict[tuple[str, ...], dict[str, str]] = {}

    def toolchain(self, summary: ConfigSummary) -> dict[str, str]:
        """Return the versions that count for what a config asks for, looked up once."""
        distributions = summary.distributions
        if distributions not in self.toolchains:
            self.toolchains[distributions] = toolchain(distributions)
        return self.toolchains[distributions]

    def _environment(self, summary: ConfigSummary) -> list[Any]:
        """Return what counts beside the config: versions, this machine, and its plugins' code."""
        return [self.toolchain(summary), summary.machine]

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        """The configs, by the packages that they make; more than one for a package is a mistake."""
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
        # YAML, which a no-op run does without.
        from pipeline.config.compose import (
            Folder,
        )

        return Folder(self.workspace.configs, self.workspace.environment)

    def _composed(self, path: Path) -> dict[str, Any] | None:
        """Return the packages that a file makes, and the digests of what they are made from beside
        it: files and variables of the environment. None for a file with mistakes, which is looked
        at again every time."""

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
                    path, "composed", compute, version, self._still_so
                )
        return self._known[path]

    def _still_so(self, composed: Mapping[str, Any]) -> bool:
        files = composed["files"]
        variables = composed["variables"]
        for name, digest in files.items():
            if self._digest(name) != digest:
                return False
        return all(self._variable(name) == digest for name, digest in variables.items())

    def _variable(self, name: str) -> Digest | None:
        """Hash the value of a variable, which no file may hold as it is; None where it is not set.
        One that configs may read no more has no digest."""
        environment = self.workspace.environment
        if name not in environment.names:
            return hash_bytes(b"")
        value = environment.get(name)
        if value is None:
            return None
        if name in environment.secrets:
            return Secret(name, value).digest
        return hash_bytes(b"=" + os.fsencode(value))

    def _digest(self, name: str) -> Digest | None:
        """Hash a file beside the configs, once; many of them can extend it."""
        if name not in self._digests:
            self._digests[name] = self.workspace.find_data(
                self.workspace.configs / name
            )
        return self._digests[name]

    def content(self, file: str) -> Digest:
        """Return the digest of a file that configs were parsed from, as it was read."""
        digest = self._folder.read(self.workspace.configs.parent / file)[1]
        assert digest is not None
        return digest

    def files(self, package: str) -> Iterator[tuple[str, Digest]]:
        """Yield the config of a package and those that it extends, by path, with their digests."""
        for path in self._files[package]:
            composed = self._composed(path) or {"files": ()}
            for name in (path.name, *composed["files"]):
                digest = self._digest(name)
                if digest is not None:
                    yield f"{self.workspace.configs.name}/{name}", digest

    @cached_property
    def packages(self) -> tuple[str, ...]:
        """All packages that a config asks for, those with mistakes too."""
        return tuple(sorted(self._files))

    def has(self, package: str) -> bool:
        """Tell whether a config makes a package."""
        return package in self._files

    def made_by(self, file: str) -> Iterator[str]:
        """Yield the packages that a file of the folder makes, or has a part in."""
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
        """Return a package's config, or None where it has mistakes."""
        return self._parse_config(package)[0]

    def document(self, package: str) -> Document | None:
        """Return what was written for a package, or None where a file can't be read."""
        return self._parse_config(package)[1]

    def mistakes(self, package: str) -> tuple[Problem, ...]:
        """Return what is wrong with a package's config by itself."""
        return self._parse_config(package)[2]

    def _parse_config(self, package: str) -> ParsedPackage:
        # Pydantic, which a no-op run does without.
        from pipeline.config.parser import (
            parse_package,
        )

        if package not in self._parsed:
            compositions = [self._folder.compose(path) for path in self._files[package]]
            self._parsed[package] = parse_package(package, compositions)
        return self._parsed[package]

    def summary(self, package: str) -> ConfigSummary | None:
        """Return the summary of a package's config, or None where the config has mistakes."""
        if package not in self._summaries:
            fields = None
            with suppress(OSError):  # a file that can't be read; `mistakes` says why
                fields = self._cached_summary(package)
            self._summaries[package] = _parse(fields) if fields else None
        return self._summaries[package]

    def _cached_summary(self, package: str) -> dict[str, Any] | None:
        """Cached as `derived` does it, and by the environment of the summary itself: a plugin's
        backend can be there no more, or be another one."""
        path, *further_files = self._files[package]
        composed = self._composed(path)
        if further_files or composed is None:
            return self._summarize(package)
        inputs = hash_json([code(), composed])

        def compute(path: Path) -> dict[str, Any] | None:
            summary = self._summarize(package, bool(composed["variables"]))
            return summary and {
                "for": self._environment(_parse(summary)),
                "summary": summary,
            }

        def is_valid(cached: Mapping[str, Any]) -> bool:
            return bool(cached["for"] == self._environment(_parse(cached["summary"])))

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
        """Return `compute()`, a function of a package's config, this package's code and `inputs`.

        Its value is cached, unless the config has mistakes.
        """
        path, *further_files = self._files[package]
        composed = self._composed(path)
        if further_files or composed is None:
            return compute()
        versions = [code(kind) for kind in ("link", "measure", "validate")]
        # And on nothing else may `compute` depend.
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
    """Return what features keep of a config, by name."""
    summaries = {}
    for feature in find_features():
        if feature.summarize:
            summary = load(feature.summarize)(config, has_variables)
            if summary is not None:
                summaries[feature.name] = summary
    return summaries


def _parse(fields: Mapping[str, Any]) -> ConfigSummary:
    return ConfigSummary(**{name: _frozen(value) for name, value in fields.items()})


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return value
