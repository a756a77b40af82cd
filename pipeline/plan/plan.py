"""The plan: which actions the sources and configs call for.

It reads configs, sources, the workspace's state and action results, and changes nothing but what
the workspace caches of its own files. It never imports torch: what only torch can tell (which
methods an exporter has) is asked of the result of the export action, and a plan made before that
result exists says that it waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.config.operators import may_load
from pipeline.plan.actions import Action
from pipeline.plan.checks import check_backends, check_config, check_model, find_places
from pipeline.plan.config_cache import ConfigCache
from pipeline.plan.families import Families
from pipeline.plan.golden import find_golden, find_golden_mistakes
from pipeline.plan.kinds.compile import CompileInputs, compile_action
from pipeline.plan.kinds.link import LinkInputs, describe_package, link_action
from pipeline.plan.kinds.quantize import QuantizeInputs, quantize_action
from pipeline.plan.kinds.validate import ValidateInputs, validate_action
from pipeline.plan.models import Models, once
from pipeline.plan.named_inputs import NamedInputs
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest, hash_json
from pipeline.store.errors import ConfigErrors, Problem, SourceError
from pipeline.store.revision import find_revision
from pipeline.store.settings import in_ci
from pipeline.store.toolchain import host
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig


def _digest(action: Action | None) -> Digest | None:
    return action.digest if action else None


class Plan:
    """The actions that a workspace asks for, as its files stand when they are first looked at.

    `forget(export)` makes it look again after an export ran.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.configs = ConfigCache(workspace)
        self.models = Models(workspace)
        self.inputs = NamedInputs(workspace, self.configs, self.models)
        self.families = Families(self)
        self._known: dict[tuple[str, str], Any] = {}  # by method and package

    # What is there

    @property
    def packages(self) -> tuple[str, ...]:
        """All packages that a config asks for, those with mistakes too."""
        return self.configs.packages

    def config(self, package: str) -> PackageConfig:
        """Return the config of a package, which has no mistakes."""
        config = self.configs.parsed(package).config
        assert config is not None
        return config

    def _complete(self, package: str) -> PackageConfig:
        """Return the config of an exported package with the constant methods of its exporter, each
        in whose place it has none."""
        config = self.config(package)
        constants = self.models.constants(str(self.export(package)))
        own = {name: value for name, value in constants.items() if name not in config.omitted}
        return config.model_copy(update={"constant_methods": own | config.constant_methods})

    def document(self, package: str) -> Document:
        """Return what the config of a package, which has no mistakes, was parsed from."""
        document = self.configs.parsed(package).document
        assert document is not None
        return document

    def model(self, package: str) -> str | None:
        summary = self.configs.summary(package)
        return summary.model if summary else None

    def file(self, package: str) -> str | None:
        """Return the name of a package's .pte in its folder, None where the config has mistakes."""
        summary = self.configs.summary(package)
        return f"{summary.file}.pte" if summary else None

    @once
    def problems(self, package: str) -> tuple[Problem, ...]:
        """Return all that is wrong with a package's config or source, as far as is known now."""
        golden = self._find_golden_problems(package)
        if self.link_digest(package) or self._before_link(
            package, "sound", False, lambda: not self._find_problems(package) or None
        ):
            return golden
        # What an alias of YAML repeats was written once.
        return tuple(dict.fromkeys([*self._find_problems(package), *golden]))

    def _find_golden_problems(self, package: str) -> tuple[Problem, ...]:
        """Return what is wrong with files of recorded outputs, on which nothing else depends."""
        with suppress(SourceError):  # which is told of the model
            if self.waits(package) or self.model(package) not in self.models.sources:
                return ()
            export, methods = str(self.export(package)), self._all_methods(package)
            mistakes = list(find_golden_mistakes(self.workspace, export, methods))
            if mistakes:
                document = self.document(package)
                return tuple(document.problem("model", what, hint) for what, hint in mistakes)
        return ()

    def _find_problems(self, package: str) -> tuple[Problem, ...]:
        parsed = self.configs.parsed(package)
        config, document = parsed.config, parsed.document
        found = [*parsed.problems, *(check_backends(document) if document else ())]
        if document is None:
            return tuple(found)
        if config is None:
            return (*found, *self.models.unknown_names(document))
        found += check_config(config, document, self.workspace)
        found += self.families.problems(package, document)
        if config.emit.metadata_revision and not self._revision:
            what = "has no commit to name: the workspace is in no git repository"
            found.append(document.problem("emit.metadata_revision", what, "leave it out"))
        try:
            self.inputs.passes(package)
        except SourceError as error:
            found += (document.problem("methods", str(error)),)
        try:
            self.inputs.libraries(package)
        except SourceError as error:
            what = str(error).removeprefix("operators: ")
            return (*found, document.problem("operators", what))  # an export would tell it again
        found += self.models.problems(config.model, document)
        if config.model not in self.models.sources:
            return tuple(found)
        found += self.models.wrong_parameters(config.model, config.export, document)
        try:
            methods = self.models.methods(str(self.export(package)))
            if methods is not None:
                config = self._complete(package)
                outline, buffers = self.models.outline, self.models.buffers
                found += check_model(config, document, methods, outline, buffers)
        except SourceError as error:
            found += (document.problem("model", str(error)),)
        return tuple(found)

    def check(self, package: str) -> None:
        """Raise ConfigErrors when the package has problems."""
        if problems := self.problems(package):
            raise ConfigErrors(problems)

    # What to do

    def export(self, package: str) -> str | None:
        """Return the model of a package with its parameters, as `name_export` names them."""
        summary = self.configs.summary(package)
        return summary.export if summary else None

    def exporter(self, package: str) -> str | None:
        """Return the export of a package, or None where an archive is there."""
        source = self.models.sources.get(self.model(package) or "")
        return self.export(package) if source and source.form == "exporter" else None

    @cached_property
    def exporters(self) -> tuple[str, ...]:
        """The exports that packages need."""
        return tuple(sorted({m for m in map(self.exporter, self.packages) if m}))

    def methods(self, package: str) -> dict[str, MethodSource] | None:
        """Return the methods of a package, in the order of its model, or None while that is not
        exported. Raises SourceError."""
        summary = self.configs.summary(package)
        assert summary is not None
        found = self.models.methods(summary.export)
        if found is None:
            return None
        return {name: each for name, each in found.items() if name not in summary.omitted}

    def remember(self) -> None:
        """Keep what was read of files, in the workspace and, of archives, in the store."""
        self.workspace.file_digests.save()
        self.models.remember()

    def note_export(self, action: Action) -> None:
        """Remember which content of its exporter a model was exported with, and forget what was
        known of the export before."""
        for package in self.packages:
            if self.export(package) == action.model:
                state = {**self.workspace.state(package), "exporter": action.key["source"]}
                with suppress(OSError):  # only what `doit plan` says depends on it
                    self.workspace.write_state(package, state)
        self.forget(action.model)

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
        self.families.forget()

    def units(self, package: str) -> tuple[tuple[str, ...], ...]:
        """Return the methods that are compiled together, unit by unit."""
        summary = self.configs.summary(package)
        return summary.units if summary else ()

    def quantized(self, package: str) -> tuple[str, ...]:
        """Return the methods that are quantized."""
        summary = self.configs.summary(package)
        return summary.quantized if summary else ()

    @once
    def _written(self, package: str) -> Any:
        """Return the data that a config without mistakes was parsed from."""
        return self.document(package).data

    @once
    def quantizes(self, package: str) -> dict[str, Action[QuantizeInputs]] | None:
        """Return the quantize actions by method, or None while the model is not exported."""
        methods, config = self.methods(package), self.config(package)
        if methods is None:
            return None
        actions = {}
        for name in self.quantized(package):
            inputs = QuantizeInputs(
                config=config,
                method=name,
                sources={name: methods[name]},
                files=self.inputs.option_files(config.methods[name]),
                libraries=self.inputs.libraries(package),
                written=self._written(package),
            )
            actions[name] = quantize_action(inputs)
        return actions

    @once
    def compiles(self, package: str) -> list[Action[CompileInputs]] | None:
        """Return the compile actions, or None while the model is not exported."""
        methods, quantizes = self.methods(package), self.quantizes(package)
        if methods is None or quantizes is None:
            return None
        digests = {name: action.digest for name, action in quantizes.items()}
        return [
            compile_action(self._compile_inputs(package, unit, methods, digests))
            for unit in self.units(package)
        ]

    def _compile_inputs(
        self,
        package: str,
        unit: tuple[str, ...],
        methods: Mapping[str, MethodSource],
        quantizes: Mapping[str, Digest],
    ) -> CompileInputs:
        config, passes = self.config(package), self.inputs.passes(package)
        option_files = self.inputs.option_files
        return CompileInputs(
            config=config,
            unit=unit,
            sources={name: source for name, source in methods.items() if name in unit},
            quantizes={name: quantizes[name] for name in unit if name in quantizes},
            passes={name: passes[name] for name in dict.fromkeys(config.pass_references(unit))},
            files={name: option_files(config.methods[name]) for name in unit},
            libraries=self.inputs.libraries(package),
            written=self._written(package),
        )

    @once
    def compile_digests(self, package: str) -> dict[str, Digest] | None:
        """Return the digests of the compile actions by unit, or None where the package has problems
        or waits for an export."""

        def compute() -> dict[str, Digest] | None:
            if self._find_problems(package):
                return None
            return {str(a.method): a.digest for a in self.compiles(package) or ()} or None

        found: dict[str, Digest] | None = self._before_link(package, "compiles", True, compute)
        return found

    @cached_property
    def _revision(self) -> str:
        """The commit that is checked out, marked as `git describe --dirty` does; "" without one."""
        found = find_revision(self.workspace.root)
        return f"{found.commit}{'-dirty' * found.changed}" if found else ""

    def waits(self, package: str) -> bool:
        """Return whether a package's model is to be exported first."""
        with suppress(SourceError):
            return self.model(package) in self.models.sources and self.methods(package) is None
        return False

    @once
    def link(self, package: str) -> Action[LinkInputs] | None:
        """Return the link action, or None while its model, or one of its family, is not
        exported."""
        compiles, quantizes = self.compiles(package), self.quantizes(package)
        methods, family = self.methods(package), self.families.objects(package)
        if compiles is None or quantizes is None or methods is None or family is None:
            return None
        config = self._complete(package)
        revision = self._revision if config.emit.metadata_revision else ""
        inputs = describe_package(config, compiles, quantizes, methods, family, revision)
        return link_action(inputs)

    @once
    def link_digest(self, package: str) -> Digest | None:
        """Return the digest of the link action, or None where the package has problems or waits
        for an export."""

        def compute() -> Digest | None:
            return None if self._find_problems(package) else _digest(self.link(package))

        found: Digest | None = self._before_link(package, "link", True, compute)
        return found

    def _before_link(
        self, package: str, what: str, exported: bool, compute: Callable[[], Any]
    ) -> Any:
        """Return what follows from all that a link depends on. None where the config has mistakes,
        the model can't be read, or is exported while it should not be, or the other way round."""
        summary = self.configs.summary(package)
        if summary is None or summary.model not in self.models.sources:
            return None
        try:
            methods, passes = self.methods(package), self.inputs.passes(package)
            libraries = self.inputs.libraries(package)
        except SourceError:
            return None
        if (methods is not None) != exported:
            return None
        root, settings = self.workspace.root, self.workspace.operators
        may = [may_load(each, root, settings) for each in summary.operators]
        inputs = [self.configs.toolchain(summary), passes, libraries, may]
        if summary.revision:
            inputs.append(self._revision)
        if summary.family is not None:
            inputs.append(self.families.facts(package))
            if what == "link":
                inputs.append((found := self.families.objects(package)) and found.digest)
        return self._derived(package, what, inputs, compute)

    def validate(self, package: str, only: Sequence[str] = ()) -> Action[ValidateInputs] | None:
        """Return the validate action, or None while the package is not linked; of `only` some of
        its methods, if they are given."""
        methods, files = self.methods(package), self.linked(package)
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
        """Return the action that validates a package of these files."""
        config = self._complete(package)
        targets = self._targets(config)
        places = find_places(config, self.document(package), targets)
        examples = {
            name: self.inputs.hash_files(limits.examples or ())
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
            family=self.families.hash_files(package, files),
            family_files=self.families.describe_files(package, files),
            only=[name for name in methods if name in only] if {*only} != {*methods} else (),
            targets=targets,
            in_ci=in_ci(),
            golden=find_golden(self.workspace, export, methods),
            written=self._written(package),
            quantizes=self.workspace.state(package).get("quantize", {}),
        )
        return validate_action(inputs)

    def _targets(self, config: PackageConfig) -> dict[str, dict[str, Any]]:
        """Return what the runtimes hold that a package without mistakes is held to, by target."""
        from pipeline.config.targets import find_targets, read_target

        files = find_targets(self.workspace.root)
        names = [name for name in config.target_names if name in files]
        return {name: read_target(files[name]).resolved() for name in names}

    def _baseline(self, package: str) -> Digest | None:
        """Hash the file with a package's accepted figures; None where there is none."""
        return self.workspace.find_data(self.workspace.baseline(package))

    def validate_digest(
        self, package: str, linked: Mapping[str, Mapping[str, Digest]] | None = None
    ) -> Digest | None:
        """Return the digest of the validate action, or None while the package is not linked; of the
        `linked` files of packages, if they are given."""
        given = {each: _loadable(files) for each, files in (linked or {}).items()}
        files = given.get(package) or self.linked(package)
        methods, summary = self.methods(package), self.configs.summary(package)
        if methods is None or summary is None or not files:
            return None
        quotable = self.models.quotable(summary.export)
        inputs = [
            files,
            self.configs.toolchain(summary),
            self._baseline(package),
            quotable,
            self.inputs.libraries(package),
            self.families.hash_files(package, files, given),
            in_ci(),
            [[name, method.reference] for name, method in methods.items()],
            find_golden(self.workspace, summary.export, methods),
        ]
        found: Digest | None = self._derived(
            package,
            "validate",
            inputs,
            lambda: self.make_validation(package, files, methods).digest,
        )
        return found

    def _derived(
        self,
        package: str,
        what: str,
        inputs: list[Any],
        compute: Callable[[], Any],
    ) -> Any:
        """Return what follows from a package's config, its methods, the files that its options
        name, this machine and `inputs`, from the cache where nothing of this changed."""
        return self.configs.derived(package, what, [*inputs, self._given(package)], compute)

    @once
    def _given(self, package: str) -> Digest:
        """Hash what all that follows from a package depends on beside its config."""
        summary, methods = self.configs.summary(package), self.methods(package) or {}
        assert summary is not None
        sources = [
            [name, m.program, m.names, m.content, m.examples, m.examples_of_export]
            for name, m in methods.items()
        ]
        others = [[m.calibration, dict(m.renamed)] for m in methods.values()]
        files = [self.inputs.hash_file(path) for path in summary.files] + self.inputs.targets
        every = self._all_methods(package)
        constants = self.models.constants(summary.export) if methods else {}
        return hash_json(
            [sources, others, every, [*constants.items()], summary.machine, host(), files]
        )

    def _all_methods(self, package: str) -> list[str]:
        """Return the methods of a package's model, those that are omitted too."""
        return list(self.models.methods(str(self.export(package))) or ())

    def linked(self, package: str) -> dict[str, Digest]:
        """Return the files of a linked package that a device loads."""
        return _loadable(self.workspace.state(package).get("link", {}).get("files", {}))


def _loadable(files: Mapping[str, Digest]) -> dict[str, Digest]:
    """Return those files of a package that a device loads."""
    return {name: blob for name, blob in files.items() if name.endswith((".pte", ".ptd"))}
