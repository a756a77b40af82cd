"""The plan: which actions the sources and configs call for.

It reads configs, sources, the workspace's state and action results, and changes nothing but what
the workspace caches of its own files. It never imports torch: what only torch can tell (which
methods an exporter has) is asked of the result of the export action, and a plan made before that
result exists says that it waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.config.operators import may_load
from pipeline.plan import keys
from pipeline.plan.actions import Action
from pipeline.plan.checks import check_backends, check_config, check_model, find_places
from pipeline.plan.config_cache import ConfigCache
from pipeline.plan.models import Models, once
from pipeline.plan.pass_inputs import PassInputs
from pipeline.program.sources import MethodSource
from pipeline.store.digest import Digest
from pipeline.store.errors import ConfigErrors, Problem, SourceError
from pipeline.store.toolchain import host
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:
    from pipeline.config.compose import Document
    from pipeline.config.models import MethodConfig, PackageConfig


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
        if self.link_digest(package) or self._before_link(
            package, "sound", False, lambda: not self._find_problems(package) or None
        ):
            return ()
        # What an alias of YAML repeats was written once.
        return tuple(dict.fromkeys(self._find_problems(package)))

    def _find_problems(self, package: str) -> tuple[Problem, ...]:
        parsed = self.configs.parsed(package)
        config, document = parsed.config, parsed.document
        found = [*parsed.problems, *(check_backends(document) if document else ())]
        if config is None or document is None:
            return tuple(found)
        found += check_config(config, document, self.workspace)
        found += self._check_family(package, document)
        try:
            self._passes(package)
        except SourceError as error:
            found += (document.problem("methods", str(error)),)
        try:
            self._libraries(package)
        except SourceError as error:
            what = str(error).removeprefix("operators: ")
            return (*found, document.problem("operators", what))  # an export would tell it again
        found += self.models.problems(config.model, document)
        if config.model not in self.models.sources:
            return tuple(found)
        found += self.models.wrong_parameters(config.model, config.export, document)
        try:
            methods = self.models.methods(str(self.export(package)))
        except SourceError as error:
            return (*found, document.problem("model", str(error)))
        if methods is not None:
            found += check_model(config, document, methods, self.workspace.store)
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
        self._known.clear()

    def trust_last_exports(self) -> None:
        """Let the last export of each model count, also of one that exports each time: for what
        looks at a build and makes none."""
        self.models.trusts_last_exports = True
        self._known.clear()
        self.models.clear()

    def units(self, package: str) -> tuple[tuple[str, ...], ...]:
        """Return the methods that are compiled together, unit by unit."""
        summary = self.configs.summary(package)
        return summary.units if summary else ()

    def quantized(self, package: str) -> tuple[str, ...]:
        """Return the methods that are quantized."""
        summary = self.configs.summary(package)
        return summary.quantized if summary else ()

    @once
    def quantizes(self, package: str) -> dict[str, Action] | None:
        """Return the quantize actions by method, or None while the model is not exported."""
        methods, config = self.methods(package), self.config(package)
        if methods is None:
            return None
        return {
            name: keys.quantize_action(
                config,
                name,
                methods[name],
                self._option_files(config.methods[name]),
                self._libraries(package),
            )
            for name in self.quantized(package)
        }

    def _option_files(self, method: MethodConfig) -> dict[str, list[Digest]]:
        """Hash the files that a method's options name, by the option's place. A missing one is a
        problem, which is reported before anything is done with this."""
        return {place: self._hash_files(paths) for place, paths in method.files.items()}

    def _hash_files(self, paths: Iterable[str]) -> list[Digest]:
        return [digest for digest in map(self._file, paths) if digest is not None]

    def _file(self, path: str) -> Digest | None:
        return self.workspace.find_data(path)

    @once
    def compiles(self, package: str) -> list[Action] | None:
        """Return the compile actions, or None while the model is not exported."""
        methods, config = self.methods(package), self.config(package)
        quantizes, passes = self.quantizes(package), self._passes(package)
        libraries = self._libraries(package)
        if methods is None or quantizes is None:
            return None
        files = {name: self._option_files(method) for name, method in config.methods.items()}
        return [
            keys.compile_action(config, unit, methods, quantizes, passes, files, libraries)
            for unit in self.units(package)
        ]

    @once
    def _passes(self, package: str) -> dict[str, dict[str, str | None]]:
        """Return the inputs of a config's passes, by reference and name."""
        summary = self.configs.summary(package)
        return {each: self._pass_inputs.find(each) for each in (summary.passes if summary else ())}

    @cached_property
    def _pass_inputs(self) -> PassInputs:
        return PassInputs(self.workspace)

    @once
    def _libraries(self, package: str) -> list[tuple[str, dict[str, str | None]]]:
        """Return the libraries of operators that a package has, with their inputs: those of the
        workspace, then the config's own."""
        summary, inputs = self.configs.summary(package), PassInputs(self.workspace)
        found, settings = dict(self.models.libraries), self.workspace.operators
        for each in summary.operators if summary else ():
            if may_load(each, self.workspace.root, settings):  # others are a problem, and not read
                found.setdefault(each, inputs.find_library(each))
        return list(found.items())

    @once
    def family(self, package: str) -> tuple[str, ...]:
        """Return all packages of a package's family, by name; none where it has no family."""
        summary = self.configs.summary(package)
        if summary is None or summary.family is None:
            return ()
        return tuple(self._families[summary.family["name"]])

    @cached_property
    def _families(self) -> dict[str, list[str]]:
        """The packages of each family, by name."""
        found: dict[str, list[str]] = {}
        for package in self.packages:
            summary = self.configs.summary(package)
            if summary is not None and summary.family is not None:
                found.setdefault(summary.family["name"], []).append(package)
        return found

    def _check_family(self, package: str, document: Document) -> Iterator[Problem]:
        summary = self.configs.summary(package)
        for other in self.family(package):
            theirs = self.configs.summary(other)
            assert summary is not None and theirs is not None
            if summary.family != theirs.family:
                what = f"shares otherwise than the package '{other}' of this family"
                yield document.problem("family", what, "give all the same `share`")
                return

    @once
    def _members(self, package: str) -> dict[str, dict[str, Digest]] | None:
        """Return the compile actions by unit of each package of a family, without those that have
        mistakes; None while a model of it is not exported."""
        found = {member: self._compile_digests(member) for member in self.family(package)}
        if any(own is None and self._waits(member) for member, own in found.items()):
            return None
        return {member: own for member, own in found.items() if own is not None}

    @once
    def _compile_digests(self, package: str) -> dict[str, Digest] | None:
        def compute() -> dict[str, Digest] | None:
            if self._find_problems(package):
                return None
            return {str(a.method): a.digest for a in self.compiles(package) or ()} or None

        found: dict[str, Digest] | None = self._before_link(package, "compiles", True, compute)
        return found

    def _waits(self, package: str) -> bool:
        with suppress(SourceError):
            return self.model(package) in self.models.sources and self.methods(package) is None
        return False

    @once
    def link(self, package: str) -> Action | None:
        """Return the link action, or None while its model, or one of its family, is not
        exported."""
        compiles, methods = self.compiles(package), self.methods(package)
        members = self._members(package)
        if compiles is None or methods is None or members is None:
            return None
        return keys.link_action(self._complete(package), compiles, methods, members)

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
            methods, passes = self.methods(package), self._passes(package)
            libraries = self._libraries(package)
        except SourceError:
            return None
        if (methods is not None) != exported:
            return None
        root, settings = self.workspace.root, self.workspace.operators
        may = [may_load(each, root, settings) for each in summary.operators]
        inputs = [self.configs.toolchain(summary), passes, libraries, may]
        if summary.family is not None:
            families = map(self.configs.summary, self.family(package))
            inputs.append([each and each.family for each in families])
            if what == "link":
                inputs.append(self._members(package))
        return self._derived(package, what, methods or {}, inputs, compute)

    def validate(self, package: str) -> Action | None:
        """Return the validate action, or None while the package is not linked."""
        methods, files = self.methods(package), self._linked(package)
        if methods is None or not files:
            return None
        return self.make_validation(package, files, methods)

    def make_validation(
        self, package: str, files: Mapping[str, Digest], methods: Mapping[str, MethodSource]
    ) -> Action:
        """Return the action that validates a package of these files."""
        config = self._complete(package)
        places = find_places(config, self.document(package))
        examples = {
            name: self._hash_files(limits.examples or ())
            for name, limits in config.validation.methods.items()
        }
        baseline = self._baseline(package)
        quotable = self.models.quotable(str(self.export(package)))
        written = {place.rpartition(":")[0] for place in places.values()}
        configs = {file: self.configs.content(file) for file in sorted(written)}
        return keys.validate_action(
            config,
            files,
            methods,
            examples,
            baseline,
            places,
            quotable,
            configs,
            self._libraries(package),
            self._family_files(package, files),
        )

    def _family_files(self, package: str, files: Mapping[str, Digest]) -> keys.FamilyFiles:
        """Return the files of the packages of a family, as they are linked now, with sizes in
        bytes; this package has `files`."""
        family = {member: self._linked(member) for member in self.family(package)}
        if package in family:
            family[package] = dict(files)
        found: dict[str, dict[str, tuple[Digest, int]]] = {member: {} for member in family}
        for member, own in family.items():
            for name, content in own.items():
                with suppress(OSError):  # a file that is gone is made again first
                    path = self.workspace.package(member) / name
                    found[member][name] = content, path.stat().st_size
        return found

    def _baseline(self, package: str) -> Digest | None:
        """Hash the file with a package's accepted figures; None where there is none."""
        return self.workspace.find_data(self.workspace.baseline(package))

    def validate_digest(
        self, package: str, linked: Mapping[str, Digest] | None = None
    ) -> Digest | None:
        """Return the digest of the validate action, or None while the package is not linked; of a
        package of the `linked` files, if they are given."""
        files = self._linked(package) if linked is None else _loadable(linked)
        methods, summary = self.methods(package), self.configs.summary(package)
        if methods is None or summary is None or not files:
            return None
        quotable = self.models.quotable(summary.export)
        given = [files, self.configs.toolchain(summary), self._baseline(package), quotable]
        inputs = [*given, self._libraries(package), self._family_files(package, files)]
        found: Digest | None = self._derived(
            package,
            "validate",
            methods,
            inputs,
            lambda: self.make_validation(package, files, methods).digest,
        )
        return found

    def _derived(
        self,
        package: str,
        what: str,
        methods: Mapping[str, MethodSource],
        inputs: list[Any],
        compute: Callable[[], Any],
    ) -> Any:
        """Return what follows from a package's config, its methods, the files that its options
        name, this machine and `inputs`, from the cache where nothing of this changed."""
        summary = self.configs.summary(package)
        assert summary is not None
        sources = [
            [name, m.program, m.names, m.content, m.examples, m.calibration]
            for name, m in methods.items()
        ]
        files = [self._file(path) for path in summary.files]
        every = list(self.models.methods(summary.export) or ())  # those that are omitted too
        constants = self.models.constants(summary.export) if methods else {}
        given = [*inputs, sources, every, [*constants.items()], summary.machine, host(), files]
        return self.configs.derived(package, what, given, compute)

    def _linked(self, package: str) -> dict[str, Digest]:
        """Return the files of a linked package that a device loads."""
        return _loadable(self.workspace.state(package).get("link", {}).get("files", {}))


def _loadable(files: Mapping[str, Digest]) -> dict[str, Digest]:
    """Return those files of a package that a device loads."""
    return {name: blob for name, blob in files.items() if name.endswith((".pte", ".ptd"))}
