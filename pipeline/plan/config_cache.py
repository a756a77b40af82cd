"""What a workspace's configs say, and what is remembered of it from run to run.

Where nothing changed, not even a config is parsed: what was worked out from one is remembered with
the digests of all that it was worked out from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.plan import actions
from pipeline.store.digest import Digest, of_bytes, of_json
from pipeline.store.errors import Problem
from pipeline.store.toolchain import code, planning_code, toolchain
from pipeline.store.workspace import Workspace, config_files, makes_packages

if TYPE_CHECKING:
    from pipeline.config.compose import Composition, Document, Folder
    from pipeline.config.load import Configs


@dataclass(frozen=True)
class Outline:
    """What a config says by itself: its model, its compile units, the distributions whose versions
    count for them, the backends for which this machine counts, the passes that it names, which
    methods are quantized, and the files of the workspace that options name."""

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


class Remembered:
    """The configs of a workspace, as its files stand when they are first looked at."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._known: dict[Path, dict[str, Any] | None] = {}
        self._digests: dict[str, Digest | None] = {}
        self._configs: dict[str, Configs] = {}
        self._outlines: dict[str, Outline | None] = {}

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        """The configs by the packages that they make; more than one for a package is a mistake."""
        files: dict[str, list[Path]] = {}
        for stem, paths in config_files(self.workspace.configs).items():
            for path in paths if makes_packages(stem) else ():
                composed = self._composed(path)
                for package in composed["packages"] if composed else self._compose(path).packages:
                    files.setdefault(package, []).append(path)
        return files

    @cached_property
    def _folder(self) -> Folder:
        from pipeline.config.compose import Folder  # YAML, which a no-op run does without

        return Folder(self.workspace.configs, os.environ)

    def _compose(self, path: Path) -> Composition:
        return self._folder.compose(path)

    def _composed(self, path: Path) -> dict[str, Any] | None:
        """The packages that a file makes, and all that they were made from beside it: files and
        variables of the environment, by digest. None for a file with mistakes, which is looked at
        again every time."""

        def compute(path: Path) -> dict[str, Any] | None:
            composition = self._compose(path)
            if composition.problems:
                return None
            return {
                "code": planning_code(),
                "packages": composition.packages,
                "files": composition.reads,
                "variables": {name: _variable(name) for name in composition.variables},
            }

        if path not in self._known:
            digests = self.workspace.file_digests
            self._known[path] = None
            with suppress(OSError):  # a file that can't be read; `parsed` says why
                self._known[path] = digests.traced(path, "composed", compute, self._still_so)
        return self._known[path]

    def _still_so(self, composed: Mapping[str, Any]) -> bool:
        files, variables = composed["files"], composed["variables"]
        return (
            composed["code"] == planning_code()
            and all(self._digest(name) == digest for name, digest in files.items())
            and all(_variable(name) == digest for name, digest in variables.items())
        )

    def _digest(self, name: str) -> Digest | None:
        """Of a file beside the configs; many of them can extend one."""
        if name not in self._digests:
            path = self.workspace.configs / name
            self._digests[name] = self.workspace.file_digests.find(path)
        return self._digests[name]

    @cached_property
    def packages(self) -> tuple[str, ...]:
        """All packages that a config asks for, those with mistakes too."""
        return tuple(sorted(self._files))

    def parsed(self, package: str) -> Configs:
        """One package's config, or what is wrong with it."""
        from pipeline.config.load import Configs  # pydantic, which a no-op run does without

        if package not in self._configs:
            found = self._configs[package] = Configs()
            for path in self._files[package]:
                found.add(self._compose(path), package)
        return self._configs[package]

    def document(self, package: str) -> Document:
        """What its config was made of. Raises KeyError where it has mistakes."""
        return self.parsed(package).documents[package]

    def problems(self, package: str) -> tuple[Problem, ...]:
        """What is wrong with a package's config, its model aside."""
        return self.parsed(package).problems.get(package, ())

    def outline(self, package: str) -> Outline | None:
        """None where the config has mistakes."""
        if package not in self._outlines:
            told = None
            with suppress(OSError):  # a file that can't be read; `parsed` says why
                told = self._recalled_outline(package)
            self._outlines[package] = (
                Outline(told[0], _tuples(told[1]), *map(tuple, told[2:])) if told else None
            )
        return self._outlines[package]

    def _recalled_outline(self, package: str) -> list[Any] | None:
        """As `derived` does it, and given by the versions of what the outline itself names: a
        plugin's backend can be there no more, or be another one."""
        path, *others = self._files[package]
        composed = self._composed(path)
        if others or composed is None:
            return self._outline(package)
        given = of_json([code(), composed])

        def compute(path: Path) -> dict[str, Any] | None:
            told = self._outline(package)
            if told is None:
                return None
            return {"given": given, "versions": toolchain(told[2]), "told": told}

        def still_so(known: Mapping[str, Any]) -> bool:
            return known["given"] == given and known["versions"] == toolchain(known["told"][2])

        digests = self.workspace.file_digests
        known = digests.traced(path, f"outline {package}", compute, still_so)
        return known and known["told"]

    def _outline(self, package: str) -> list[Any] | None:
        config = self.parsed(package).configs.get(package)
        if config is None:
            return None
        from pipeline.backends import BACKENDS

        specs = [method.quantize for method in config.methods.values() if method.quantize]
        distributions = {name for spec in specs for name in spec.entry.distributions}
        used = {b.name: b for b in actions.backends_of(config, config.methods)}
        used |= {s.quantizer: BACKENDS[s.quantizer] for s in specs if s.quantizer in BACKENDS}
        asking = [n for n, b in sorted(used.items()) if b.facts or b.cannot_run or b.requirements]
        return [
            config.model,
            actions.compile_units(config),
            sorted({*distributions, *actions.distributions_of(config, config.methods)}),
            asking,
            sorted(set(actions.references_of(config, config.methods))),
            actions.quantized_methods(config),
            sorted(
                {f for m in config.methods.values() for own in m.files.values() for f in own}
                | {
                    f
                    for limits in config.validation.methods.values()
                    for f in limits.examples or ()
                }
            ),
        ]

    def derived(self, package: str, what: str, inputs: Any, compute: Callable[[], Any]) -> Any:
        """What follows from a package's config, this package's code and `inputs`. What follows
        from mistakes is not remembered."""
        path, *others = self._files[package]
        composed = self._composed(path)
        if others or composed is None:
            return compute()
        own = [code(kind) for kind in ("link", "measure", "validate")]
        given = of_json([own, composed, inputs])  # and on nothing else may `compute` depend
        return self.workspace.file_digests.derived(
            path, f"{what} {package}", lambda _: compute(), given
        )


def _variable(name: str) -> Digest | None:
    """The digest of its value, since what is remembered stands in a file; None where it is not
    set."""
    value = os.environ.get(name)
    return None if value is None else of_bytes(os.fsencode(value))


def _tuples(units: Iterable[Iterable[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(unit) for unit in units)
