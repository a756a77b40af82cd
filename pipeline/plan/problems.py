"""The problems of packages: mistakes in their configs or models, and disagreements between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pipeline.moments import find_features, load
from pipeline.plan.files import Files
from pipeline.plan.golden import find_golden_mistakes, list_golden
from pipeline.plan.models import once
from pipeline.plan.planning import Planning
from pipeline.store.errors import ConfigErrors, Problem, SourceError

if TYPE_CHECKING:
    from pipeline.config.compose import Document


class CheckedFiles(Files):
    """The configs and models of a workspace, and their problems."""

    def _begin(self) -> None:
        super()._begin()
        self._planning: dict[str, Planning] = {}  # by feature

    @once
    def find_planning(self, package: str) -> list[Planning]:
        """Return the planning objects of the features that a package's config concerns."""
        summary = self.configs.summary(package)
        if summary is None or not summary.features:
            return []
        concerned = []
        for feature in find_features():
            if feature.planning and feature.name in summary.features:
                if feature.name not in self._planning:
                    self._planning[feature.name] = load(feature.planning)(self)
                concerned.append(self._planning[feature.name])
        return concerned

    def find_devices(self, package: str) -> Iterator[str]:
        """Yield the devices other than this machine that a package is validated on."""
        for planning in self.find_planning(package):
            yield from planning.find_devices(package)

    def members(self, package: str) -> list[str]:
        """Return the packages, if any, that are built whenever this one is requested."""
        members: dict[str, None] = {}
        for planning in self.find_planning(package):
            members |= dict.fromkeys(planning.members(package))
        return list(members)

    def linked_from(self, package: str) -> list[str]:
        """Return the packages whose objects the link of a package reads, starting with itself."""
        packages = {package: None}
        for planning in self.find_planning(package):
            packages |= dict.fromkeys(planning.deciding(package))
        return list(packages)

    def _forget_derived(self) -> None:
        super()._forget_derived()
        for planning in self._planning.values():
            planning.forget()

    @once
    def problems(self, package: str) -> tuple[Problem, ...]:
        """Return all problems with a package's config or source that are known now."""
        golden = self._find_golden_problems(package)
        if self.is_sound(package):
            return golden
        # A YAML alias repeats problems of a line that was written only once.
        return tuple(dict.fromkeys([*self._find_problems(package), *golden]))

    def check(self, package: str) -> None:
        """Raise ConfigErrors if the package has problems."""
        problems = self.problems(package)
        if problems:
            raise ConfigErrors(problems)

    @once
    def is_sound(self, package: str) -> bool:
        """Return whether a package has no problems, except possibly with its recorded outputs.

        No action before its validation depends on recorded outputs.
        """

        return bool(
            self.derive_checked(
                package, "sound", [], lambda: not self._find_problems(package) or None
            )
        )

    def derive_checked(
        self, package: str, what: str, inputs: list[Any], compute: Callable[[], Any]
    ) -> Any:
        """Return `compute()`, cached by `inputs` and everything that a package's link depends on.

        Returns None if the config has mistakes, or the model can't be read.
        """
        summary = self.configs.summary(package)
        if summary is None or summary.model not in self.models.sources:
            return None
        try:
            self._fingerprint(package)
            passes = self.inputs.passes(package)
            libraries = self.inputs.libraries(package)
        except SourceError:
            return None
        more = [self.configs.toolchain(summary), passes, libraries]
        if summary.revision:
            more.append(self.revision)
        plannings = self.find_planning(package)
        more += [planning.problem_facts(package) for planning in plannings]
        return self.derive(package, what, [*more, *inputs], compute)

    def _find_golden_problems(self, package: str) -> tuple[Problem, ...]:
        """Return the problems with files of recorded outputs, on which nothing else depends."""
        export = str(self.export(package))
        if not list_golden(self.workspace, export) or self.waits(package):
            return ()
        try:
            methods = self.models.methods(export) or ()
        except SourceError:  # reported as a problem of the model
            return ()
        document = self.document(package)
        return tuple(
            document.problem("model", mistake, hint)
            for mistake, hint in find_golden_mistakes(self.workspace, export, methods)
        )

    def _find_problems(self, package: str) -> tuple[Problem, ...]:
        # Imported lazily: a no-op run, whose packages are sound, doesn't need it.
        from pipeline.plan.config_checks import check_backends, check_config

        config = self.configs.config(package)
        document = self.configs.document(package)
        problems = list(self.configs.mistakes(package))
        if document is None:
            return tuple(problems)
        problems += check_backends(document)
        if config is None:
            return (*problems, *self.models.unknown_names(document))
        problems += check_config(config, document, self.workspace)
        for planning in self.find_planning(package):
            problems += planning.find_problems(package, config, document)
        if config.emit.metadata_revision and not self.revision:
            mistake = "can't name a commit: the workspace is not in a git repository"
            problems.append(
                document.problem("emit.metadata_revision", mistake, "leave it out")
            )
        try:
            self.inputs.passes(package)
        except SourceError as error:
            problems.append(document.problem("methods", str(error)))
        try:
            self.inputs.libraries(package)
        except SourceError as error:
            mistake = str(error).removeprefix("operators: ")
            # Checking the model would report the error again.
            return (*problems, document.problem("operators", mistake))
        return (*problems, *self._find_model_problems(package, document))

    def _find_model_problems(
        self, package: str, document: Document
    ) -> Iterator[Problem]:
        """Yield disagreements between a config, which has no mistakes, and its model."""
        from pipeline.plan.checks import check_model

        config = self.config(package)
        if config.model not in self.models.sources:
            if (package, "link") not in self.pending:  # a task may make the model first
                yield from self.models.problems(config.model, document)
            return
        yield from self.models.wrong_parameters(config.model, config.export, document)
        try:
            methods = self.models.methods(str(self.export(package)))
            if methods is not None:
                outline = self.models.archives.outline
                buffers = self.models.archives.buffers
                complete = self.complete_config(package)
                yield from check_model(complete, document, methods, outline, buffers)
                for planning in self.find_planning(package):
                    yield from planning.find_model_problems(complete, document, methods)
        except SourceError as error:
            yield document.problem("model", str(error))
