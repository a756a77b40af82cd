"""The lowest layer of the plan: the configs of a workspace and the models that they name.

It reads configs, sources, the workspace's state and action results, and changes nothing but what
the workspace caches of its own files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from pipeline.store.revision import find_revision
from pipeline.store.toolchain import host
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig


class Files:
    """The configs and models of a workspace, as its files stand when they are first looked at.

    `forget(export)` makes it look again after an export ran.

    Attributes:
        pending: the `status.Status` of actions for which a run does tasks of the user's first, by
            package and kind.
        foreseen: the files of packages, by their names, that a run would take from the store.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.models = Models(workspace)
        self.pending: Mapping[tuple[str, str], Any] = {}
        self.foreseen: Mapping[str, Mapping[str, Digest]] = {}
        self._begin()

    def _begin(self) -> None:
        """Know nothing of the workspace's files yet."""
        self.configs = ConfigCache(self.workspace)
        self._packages: tuple[str, ...] | None = None
        self.inputs = NamedInputs(self.workspace, self.configs, self.models)
        self._known: dict[tuple[str, str], Any] = {}  # by method and package

    # Configs

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that this process builds, those with mistakes too."""
        if self._packages is None:
            elsewhere: set[str] = set()
            for packages in call_all("elsewhere", self.configs):
                elsewhere |= packages
            self._packages = tuple(
                package for package in self.configs.packages if package not in elsewhere
            )
        return self._packages

    def config(self, package: str) -> PackageConfig:
        """Return the config of a package, which has no mistakes."""
        config = self.configs.config(package)
        assert config is not None
        return config

    def complete_config(self, package: str) -> PackageConfig:
        """Return the config of an exported package with the constant methods of its exporter, each
        in whose place it has none."""
        config = self.config(package)
        constants = self.models.constants(str(self.export(package)))
        exported = {}
        for name, value in constants.items():
            if name not in config.omitted:
                exported[name] = value
        return config.model_copy(
            update={"constant_methods": exported | config.constant_methods}
        )

    def document(self, package: str) -> Document:
        """Return what the config of a package, which has no mistakes, was parsed from."""
        document = self.configs.document(package)
        assert document is not None
        return document

    @once
    def written(self, package: str) -> Any:
        """Return the data that a config without mistakes was parsed from."""
        return self.document(package).data

    def model(self, package: str) -> str | None:
        summary = self.configs.summary(package)
        if summary:
            return summary.model
        return None

    def file(self, package: str) -> str | None:
        """Return the name of a package's .pte in its folder, None where the config has mistakes."""
        summary = self.configs.summary(package)
        if summary:
            return f"{summary.file}.pte"
        return None

    def units(self, package: str) -> tuple[tuple[str, ...], ...]:
        """Return the methods that are compiled together, unit by unit."""
        summary = self.configs.summary(package)
        if summary:
            return summary.units
        return ()

    def quantized(self, package: str) -> tuple[str, ...]:
        """Return the methods that are quantized."""
        summary = self.configs.summary(package)
        if summary:
            return summary.quantized
        return ()

    @cached_property
    def revision(self) -> str:
        """The commit that is checked out, marked as `git describe --dirty` does; "" without one."""
        revision = find_revision(self.workspace.root)
        if revision:
            return f"{revision.commit}{'-dirty' * revision.changed}"
        return ""

    # Models

    def export(self, package: str) -> str | None:
        """Return the model of a package with its parameters, as `name_export` names them."""
        summary = self.configs.summary(package)
        if summary:
            return summary.export
        return None

    def exporter(self, package: str) -> str | None:
        """Return the export of a package, or None where an archive is there."""
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
        """Return the methods of a package, in the order of its model, or None while that is not
        exported. Raises SourceError."""
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

    def model_methods(self, package: str) -> list[str]:
        """Return the methods of a package's model, those that are omitted too. Raises
        SourceError."""
        return list(self.models.methods(str(self.export(package))) or ())

    def is_exported(self, package: str) -> bool:
        """Return whether a package's methods are known."""
        with suppress(SourceError):
            return (
                self.model(package) in self.models.sources
                and self.methods(package) is not None
            )
        return False

    def waits(self, package: str) -> bool:
        """Return whether a package's model is to be exported first."""
        with suppress(SourceError):
            return (
                self.model(package) in self.models.sources
                and self.methods(package) is None
            )
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
        """Return what follows from a package's config, its methods, the files that its options
        name, this machine and `inputs`, from the cache where nothing of this changed."""
        fingerprint = self._fingerprint(package)
        return self.configs.derived(package, what, [*inputs, fingerprint], compute)

    @once
    def _fingerprint(self, package: str) -> Digest:
        """Hash everything that a package's actions follow from, except its config."""
        summary = self.configs.summary(package)
        methods = self.methods(package) or {}
        assert summary is not None
        sources = []
        further = []
        for name, source in methods.items():
            examples = [source.examples, source.examples_of_export]
            sources.append(
                [name, source.program, source.names, source.content, *examples]
            )
            further.append([source.calibration, dict(source.renamed)])
        files = [self.workspace.find_data(path) for path in summary.files]
        model_methods = self.model_methods(package)
        if methods:
            constants = self.models.constants(summary.export)
        else:
            constants = {}
        machine = [summary.machine, host()]
        return hash_json(
            [sources, further, model_methods, [*constants.items()], *machine, files]
        )

    def remember(self) -> None:
        """Keep what was read of files, in the workspace and, of archives, in the store."""
        self.workspace.file_digests.save()
        self.models.archives.remember()

    def note_export(self, action: Action) -> None:
        """Remember which content of its exporter a model was exported with, and forget what was
        known of the export before."""
        for package in self.packages:
            if self.export(package) == action.model:
                state = {
                    **self.workspace.state(package),
                    "exporter": action.key["source"],
                }
                with suppress(OSError):  # only what `doit plan` says depends on it
                    self.workspace.write_state(package, state)
        self.forget(action.model)

    def look_again(self) -> None:
        """Forget all that was read of the workspace's files, which another task may have
        changed."""
        for name in ("exporters", "revision"):
            self.__dict__.pop(name, None)
        self.models.look_again()
        self._begin()

    def forget(self, export: str) -> None:
        """Forget what was known of an export, which ran since."""
        self.models.forget(export)
        self._forget_derived()

    def trust_last_exports(self) -> None:
        """Let the last export of each model count, also of one that exports each time: for what
        looks at a build and makes none."""
        self.models.trusts_last_exports = True
        self._forget_derived()
        self.models.clear()

    def _forget_derived(self) -> None:
        self._known.clear()
        self.inputs.forget()


def loadable(files: Mapping[str, Digest]) -> dict[str, Digest]:
    """Return those files of a package that a device loads."""
    return {
        name: blob for name, blob in files.items() if name.endswith((".pte", ".ptd"))
    }
