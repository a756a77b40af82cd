"""The plan: the actions that the sources and configs require.

It never imports torch: anything that only torch can tell, such as which methods an exporter has, is
read from the result of the export action. A plan made before that result exists reports that it is
waiting for it.

It has layers, each based on the one before: the files of a workspace (`files`), the problems with
them (`problems`), the methods that are compiled together (`units`), and here linking and
validation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.plan.actions import Action
from pipeline.plan.golden import find_golden, list_golden
from pipeline.plan.kinds.parts import hash_files
from pipeline.plan.models import once
from pipeline.plan.units import Units
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest
from pipeline.store.settings import in_ci

if TYPE_CHECKING:  # a no-op run makes no action
    from pipeline.plan.kinds.link import LinkInputs
    from pipeline.plan.kinds.validate import ValidateInputs


class Plan(Units):
    """The actions that a workspace requires, as its files were when they were first read.

    `forget(export)` makes the plan read them again after an export ran, `look_again()` after
    anything else.
    """

    @once
    def link(self, package: str) -> Action[LinkInputs] | None:
        """Return the link action, or None until the package and its family are exported."""
        from pipeline.plan.kinds.link import describe_package, link_action

        compiles = self.compiles(package)
        quantizes = self.quantizes(package)
        methods = self.methods(package)
        additions = self._add_to_link(package)
        if (
            compiles is None
            or quantizes is None
            or methods is None
            or additions is None
        ):
            return None
        config = self.complete_config(package)
        revision = self.revision if config.emit.metadata_revision else ""
        related = self._related_compiles(package)
        inputs = describe_package(
            config, compiles, quantizes, methods, additions, related, revision
        )
        return link_action(inputs)

    @once
    def _add_to_link(self, package: str) -> dict[str, Any] | None:
        """Return what features add to the key of a link, or None until a model is exported."""
        additions: dict[str, Any] = {}
        for planning in self.find_planning(package):
            fields = planning.add_to_link(package)
            if fields is None:
                return None
            additions |= fields
        return additions

    def _related_compiles(self, package: str) -> dict[str, Mapping[str, Digest]]:
        """Return the compile actions that a link reads for features, by package and unit."""
        related: dict[str, Mapping[str, Digest]] = {}
        for planning in self.find_planning(package):
            for name in planning.deciding(package):
                digests = self.compile_digests(name)
                if digests is not None:
                    related[name] = digests
        return related

    @once
    def link_digest(self, package: str) -> Digest | None:
        """Return the link action's digest, or None if the package is invalid or not exported."""
        if self.waits(package):
            return None

        def compute() -> Digest | None:
            if self.is_sound(package):
                action = self.link(package)
                if action:
                    return action.digest
            return None

        digest: Digest | None = self.derive_checked(
            package, "link", [self._add_to_link(package)], compute
        )
        return digest

    def validate(
        self, package: str, only: Sequence[str] = ()
    ) -> Action[ValidateInputs] | None:
        """Return the validate action, or None until the package is linked.

        With `only`, the action validates only these methods.
        """
        methods = self.methods(package)
        files = self.linked(package)
        if methods is None or not files:
            return None
        return self.make_validation(package, files, methods, only)

    def make_validation(
        self,
        package: str,
        files: Mapping[str, Digest],
        methods: Mapping[str, MethodSource],
        only: Sequence[str] = (),
    ) -> Action[ValidateInputs]:
        """Return the action that validates a package with these files."""
        # Imported lazily: a no-op run checks nothing.
        from pipeline.plan.checks import find_places
        from pipeline.plan.kinds.validate import ValidateInputs, validate_action

        config = self.complete_config(package)
        held_to: dict[str, Any] = {}
        record: dict[str, Any] = {}
        paths: list[str] = []
        for planning in self.find_planning(package):
            held_to.update(planning.held_to(package, files, config))
            record.update(planning.add_to_record(package, files))
            paths += planning.find_places(package, config)
        places = find_places(config, self.document(package), paths)
        examples = {
            name: hash_files(limits.examples or (), self.workspace)
            for name, limits in config.validation.methods.items()
        }
        export = str(self.export(package))
        config_files = sorted({place.rpartition(":")[0] for place in places.values()})
        inputs = ValidateInputs(
            config=config,
            files=files,
            sources=methods,
            examples=examples,
            baseline=self._baseline(package),
            places=places,
            quotable=self.models.quotable(export),
            config_files={file: self.configs.content(file) for file in config_files},
            libraries=self.inputs.libraries(package),
            held_to=held_to,
            record=record,
            only=[name for name in methods if name in only]
            if {*only} != {*methods}
            else (),
            in_ci=in_ci(),
            golden=find_golden(self.workspace, export, methods),
            written=self.written(package),
            quantizes=self.workspace.state(package).get("quantize", {}),
        )
        return validate_action(inputs)

    def _baseline(self, package: str) -> Digest | None:
        """Return the digest of a package's accepted figures, or None if it has none."""
        return self.workspace.find_data(self.workspace.baseline(package))

    def validate_digest(self, package: str) -> Digest | None:
        """Return the digest of the validate action, or None until the package is linked."""
        files = self.linked(package)
        summary = self.configs.summary(package)
        if summary is None or not files or self.waits(package):
            return None
        export = summary.export
        inputs = [
            files,
            self.configs.toolchain(summary),
            self._baseline(package),
            self.models.quotable(export),
            self.inputs.libraries(package),
            [
                planning.validate_facts(package, files)
                for planning in self.find_planning(package)
            ],
            in_ci(),
            list_golden(self.workspace, export)
            and find_golden(self.workspace, export, self.methods(package) or ()),
        ]

        def compute() -> Digest:
            methods = self.methods(package) or {}
            return self.make_validation(package, files, methods).digest

        digest: Digest | None = self.derive(package, "validate", inputs, compute)
        return digest
