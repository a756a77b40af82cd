"""The lowest layer of the plan: the configs of a workspace and the models that they name.

It reads configs, sources, the workspace's state and action results, and changes nothing except the
workspace's cache of its own files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.moments import call_all
from pipeline.plan.actions import Action
from pipeline.plan.config_cache import ConfigCache
from pipeline.plan.models import Models, once
from pipeline.plan.named_inputs import NamedInputs
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest, hash_json
from pipeline.store.errors import SourceError
from pipeline.store.toolchain import host
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig


class Files:
    """The configs and models of a workspace, as its files were when they were first read.

    `forget(export)` makes it read them again after an export ran.

    Attributes:
        pending: the `status.Status` of actions that must wait for tasks of the user, by package and
            kind.
        foreseen: by package, the files that a run would take from the store, by name.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.models = Models(workspace)
        self.pending: Mapping[tuple[str, str], Any] = {}
        self.foreseen: Mapping[str, Mapping[str, Digest]] = {}
        self._begin()

    def _begin(self) -> None:
        """Start without any knowledge of the workspace's files."""
        self.configs = ConfigCache(self.workspace)
        self._packages: tuple[str, ...] | None = None
        self.inputs = NamedInputs(self.workspace, self.configs, self.models)
        self._known: dict[tuple[str, str], Any] = {}  # by method and package

    # Configs

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that this process builds, including those with mistakes."""
        if self._packages is None:
            elsewhere: set[str] = set()
            for packages in call_all("elsewhere", self.configs):
                elsewhere |= packages
            self._packages = tuple(
                package for package in self.configs.packages if package not in elsewhere
            )
        return self._packages

    def config(self, package: str) -> PackageConfig:
        """Return the config of a package without mistakes."""
        config = self.configs.config(package)
        assert config is not None
        return config

    def complete_config(self, package: str) -> PackageConfig:
        """Return the config of an exported package, with its exporter's constant methods added.

        The config's own constant methods take precedence, and omitted ones are left out.
        """
        config = self.config(package)
        constants = self.models.constants(str(self.export(package)))
        exported = {
            n: value for n, value in constants.items() if n not in config.omitted
        }
        return config.model_copy(
            update={"constant_methods": exported | config.constant_methods}
        )

    def document(self, package: str) -> Document:
        """Return the document from which the config of a package without mistakes was parsed."""
        document = self.configs.document(package)
        assert document is not None
        return document

    @once
    def written(self, package: str) -> Any:
        """Return the data from which a config without mistakes was parsed."""
        return self.document(package).data

    def model(self, package: str) -> str | None:
        summary = self.configs.summary(package)
        return summary.model if summary else None

    def file(self, package: str) -> str | None:
        """Return the name of a package's .pte in its folder, or None if the config has mistakes."""
        summary = self.configs.summary(package)
        return f"{summary.file}.pte" if summary else None

    def units(self, package: str) -> tuple[tuple[str, ...], ...]:
        """Return the methods that are compiled together, unit by unit."""
        summary = self.configs.summary(package)
        return tuple(map(tuple, summary.units)) if summary else ()

    def quantized(self, package: str) -> Sequence[str]:
        """Return the methods that are quantized."""
        summary = self.configs.summary(package)
        return summary.quantized if summary else ()

    @cached_property
    def revision(self) -> str:
        """The checked-out commit, marked like in `git describe --dirty`, or "" if there is none."""
        # Imported lazily: few configs name a commit.
        from pipeline.store.revision import find_revision

        revision = find_revision(self.workspace.root)
        if revision:
            return f"{revision.commit}{'-dirty' * revision.changed}"
        return ""

    # Models

    def export(self, package: str) -> str | None:
        """Return the model of a package with its parameters, as named by `name_export`."""
        summary = self.configs.summary(package)
        return summary.export if summary else None

    def exporter(self, package: str) -> str | None:
        """Return the export of a package, or None if its model is an archive."""
        source = self.models.sources.get(self.model(package) or "")
        if source and source.form == "exporter":
            return self.export(package)
        return None

    @cached_property
    def exporters(self) -> tuple[str, ...]:
        """The exports that packages need."""
        return tuple(
            sorted({export for export in map(self.exporter, self.packages) if export})
        )

    @once
    def methods(self, package: str) -> dict[str, MethodSource] | None:
        """Return a package's methods in the order of its model, or None until it is exported.

        Raises SourceError.
        """
        summary = self.configs.summary(package)
        assert summary is not None
        methods = self.models.methods(summary.export)
        if methods is None:
            return None
        return {
            name: source
            for name, source in methods.items()
            if name not in summary.omitted
        }

    def waits(self, package: str) -> bool:
        """Return whether a package's model must be exported first."""
        exporter = self.exporter(package)
        with suppress(SourceError):
            return exporter is not None and self.models.methods(exporter) is None
        return False

    def linked(self, package: str) -> dict[str, Digest]:
        """Return the files of a linked package that a device loads."""
        files = self.foreseen.get(package)
        if files is None:
            files = self.workspace.state(package).get("link", {}).get("files", {})
        return loadable(files)

    # What is remembered, and forgotten

    def derive(
        self, package: str, what: str, inputs: list[Any], compute: Callable[[], Any]
    ) -> Any:
        """Return `compute()`, cached while everything that it depends on is unchanged.

        It may depend on the package's config, its methods, the files that its options name, this
        machine and `inputs`.
        """
        fingerprint = self._fingerprint(package)
        return self.configs.derived(package, what, [*inputs, fingerprint], compute)

    @once
    def _fingerprint(self, package: str) -> Digest:
        """Return the digest of everything except the config that determines a package's actions."""
        summary = self.configs.summary(package)
        assert summary is not None
        return hash_json(
            [
                self.models.origin,
                self.models.fingerprint(summary.export),
                [*self.models.constants(summary.export).items()],
                summary.machine,
                host(),
                [self.workspace.find_data(path) for path in summary.files],
            ]
        )

    def remember(self) -> None:
        """Save what was read: about files in the workspace's cache, about archives in the store."""
        self.workspace.file_digests.save()
        self.models.archives.remember()

    def note_export(self, action: Action) -> None:
        """Record an exporter's content for a finished export, and forget its earlier results."""
        for package in self.packages:
            if self.export(package) == action.model:
                state = {
                    **self.workspace.state(package),
                    "exporter": action.key["source"],
                }
                with suppress(OSError):  # only the output of `doit plan` depends on it
                    self.workspace.write_state(package, state)
        self.forget(action.model)

    def look_again(self) -> None:
        """Forget everything read from the workspace's files; another task may have changed them."""
        for name in ("exporters", "revision"):
            self.__dict__.pop(name, None)
        self.models.look_again()
        self._begin()

    def forget(self, export: str) -> None:
        """Forget what was known about an export, because it has run since."""
        self.models.forget(export)
        self._forget_derived()

    def trust_last_exports(self) -> None:
        """Accept the last export of each model, even of a model that is exported in every run.

        For commands that only inspect a build.
        """
        self.models.trusts_last_exports = True
        self._forget_derived()
        self.models.clear()

    def _forget_derived(self) -> None:
        self._known.clear()
        self.inputs.forget()


def loadable(files: Mapping[str, Digest]) -> dict[str, Digest]:
    """Return the files of a package that a device loads."""
    return {
        name: blob for name, blob in files.items() if name.endswith((".pte", ".ptd"))
    }
