"""The models of a workspace: the source of each, its export action and its methods.

This module never imports torch: anything that only torch can tell, such as which methods an
exporter has, is read from the result of the export action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.plan.actions import Action
from pipeline.plan.archives import Archives, reading
from pipeline.plan.declared import Declared, parse_declared, read_declared
from pipeline.plan.export_parameters import find_wrong, parse_export, read_parameters
from pipeline.plan.places import EXECUTABLE
from pipeline.plan.reads import Finder, Reads, Surroundings, is_inside, parse_records
from pipeline.plan.user_code import find_code
from pipeline.program import sources
from pipeline.program.sources import MethodSource, ModelSource
from pipeline.store.digest import Digest
from pipeline.store.errors import Problem, SourceError, did_you_mean, join
from pipeline.store.toolchain import code
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:
    from pipeline.config.compose import Document
    from pipeline.plan.kinds.export import ExportInputs
    from pipeline.program.module_paths import Outline

# The fields of a `MethodSource` that the result of an export has as they are.
_RECORDED = (
    "program",
    "names",
    "reference",
    "calibration",
    "examples",
    "examples_of_export",
)
_T = TypeVar("_T")


def once(method: Callable[[Any, str], _T]) -> Callable[[Any, str], _T]:
    """Decorate a method to cache its result in `_known`, for each model or package."""

    @wraps(method)
    def cached(self: Any, name: str) -> _T:
        key = method.__name__, name
        if key not in self._known:
            self._known[key] = method(self, name)
        value: _T = self._known[key]
        return value

    return cached


def _as_mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}


def check_quantized(
    method: str, modules: Iterable[Any], document: Document, outline: Outline | None
) -> Iterator[Problem]:
    """Find modules with quantization options that a method's program lacks, if that is known."""
    if outline is None:
        return
    for module in modules:
        if module not in outline.calls:
            hint = did_you_mean(str(module), sorted(outline.calls), 10)
            where = f"methods.{method}.quantize.modules"
            yield document.problem(where, f"no module '{module}' in the program", hint)


class Models:
    """The models, as their files were when they were first read.

    An export is a model with parameters, identified by the name that `name_export` gives it;
    without parameters, this is the name of the model. `forget(export)` causes an export to be read
    again after it ran.

    Attributes:
        trusts_last_exports: whether the last export of a model is accepted as current even if that
            can't be known, for commands that only inspect a build.
    """

    def __init__(
        self, workspace: Workspace, surroundings: Surroundings | None = None
    ) -> None:
        self.workspace = workspace
        self.surroundings = surroundings or Surroundings.present()
        self.trusts_last_exports = False
        self._exported: set[str] = set()
        self._known: dict[tuple[str, str], Any] = {}  # by method and model
        self.archives = Archives(workspace)

    @cached_property
    def _search(self) -> tuple[dict[str, ModelSource], dict[str, str], str | None]:
        """Find the usable models, mistakes in others by name, and a mistake that affects all."""
        try:
            return *sources.find_sources(self.workspace.models), None
        except SourceError as error:
            return {}, {}, str(error)

    @property
    def sources(self) -> Mapping[str, ModelSource]:
        """The sources by model, without unusable ones."""
        return self._search[0]

    def problems(self, model: str, document: Document) -> Iterator[Problem]:
        """Yield the reasons why a model that a config names can't be used."""
        models, wrong, wrong_with_all = self._search
        if model in models:
            return
        mistake = wrong_with_all or wrong.get(model)
        if mistake is not None:
            yield document.problem("model", mistake)
            return
        remedy = f"known: none; put one into {self.workspace.models.name}/"
        if models:
            remedy = did_you_mean((self.workspace.models / model).name, sorted(models))
        yield document.problem("model", f"no model '{model}'", remedy)

    def unknown_names(self, document: Document) -> Iterator[Problem]:
        """Yield a problem for each unknown name in a config that has other mistakes.

        These are the model, its methods, and the methods' modules to quantize.
        """
        data = _as_mapping(document.data)
        model = data.get("model")
        written = _as_mapping(data.get("methods"))
        if not isinstance(model, str):
            return
        yield from self.problems(model, document)
        if model not in self.sources or "export" in data:
            return
        with suppress(SourceError):  # reported once there is no other mistake
            methods = self.methods(model) or {}
            for name in filter(lambda key: isinstance(key, str), methods and written):
                if name in methods:
                    quantize = _as_mapping(_as_mapping(written[name]).get("quantize"))
                    modules = _as_mapping(quantize.get("modules"))
                    outline = self.archives.outline(methods[name]) if modules else None
                    yield from check_quantized(name, modules, document, outline)
                else:
                    where = join("methods", name)
                    hint = did_you_mean(name, methods)
                    yield document.problem(where, "is not a method of the model", hint)

    def source(self, export: str) -> ModelSource:
        """Return the source of an export. Raises SourceError if its model is not there."""
        model = parse_export(export)[0]
        if model not in self.sources:
            folder = self.workspace.models.name
            raise SourceError(f"{folder}/: model '{model}' was removed; run again")
        return self.sources[model]

    def wrong_parameters(
        self, model: str, given: Mapping[str, Any], document: Document
    ) -> Iterator[Problem]:
        """Yield a problem for each mismatch between a config's parameters and its exporter's."""
        source = self.sources[model]
        if source.form != "exporter":
            if given:
                mistake = f"has parameters, but no exporter makes {sources.shown(source.path)}"
                yield document.problem("export", mistake, "leave them out")
            return
        digests = self.workspace.file_digests
        file = sources.shown(source.path)
        with suppress(OSError):  # an unreadable file; exporting reports the error
            declared = digests.cached(
                source.path, "parameters", read_parameters, origin=code("plan")
            )
            for name, mistake, remedy in (
                find_wrong(declared, given, file) if declared else ()
            ):
                yield document.problem(
                    f"export.{name}" if name else "model",
                    mistake,
                    remedy,
                )

    @once
    def export(self, export: str) -> Action[ExportInputs]:
        """Return the action of an export. Raises SourceError.

        This is the action of the latest recorded run that fits the current files and has its result
        in the store, or else the action of the latest run.
        """
        latest = None
        for action in self.candidates(export):
            if self.workspace.store.get(action.digest) is not None:
                return action
            latest = latest or action
        assert latest is not None
        return latest

    def declared(self, export: str) -> Declared | None:
        """Return the inputs that an exporter declares, or None if it declares none.

        Raises SourceError.
        """
        path = self.source(export).path
        digests = self.workspace.file_digests
        with reading(path):
            record = digests.cached(path, "inputs", read_declared, origin=code("plan"))
        return parse_declared(record, str(path.relative_to(self.workspace.root)))

    def candidates(self, export: str) -> Iterator[Action[ExportInputs]]:
        """Yield the action of an export according to each of its recorded runs, the latest first.

        Raises SourceError.
        """
        from pipeline.plan.kinds.export import ExportInputs, export_action, reads_key

        digests = self.workspace.file_digests
        store = self.workspace.store
        path = self.source(export).path
        parameters = parse_export(export)[1]
        where = str(path.relative_to(self.workspace.root))
        with reading(path):
            content = digests.hash(path)
        declared = self.declared(export)
        files = declared.find(self.finder.places, where) if declared else []
        entry = store.get_by_key(reads_key(export, content))
        for reads in parse_records(entry.result if entry else {}) or [Reads()]:
            inputs = ExportInputs(
                model=export,
                path=where,
                source=content,
                surroundings=self.surroundings,
                reads=self.finder.find(reads, files),
                distributions=reads.distributions,
                declared=declared,
                unfollowed=reads.unfollowed,
                parameters=parameters,
                libraries=self.libraries,
            )
            yield export_action(inputs)

    @cached_property
    def libraries(self) -> list[tuple[str, dict[str, str | None]]]:
        """The workspace's operator libraries, with their inputs. Raises SourceError."""
        listed = self.workspace.operators
        return list(find_code("operators", listed, self.workspace).items())

    @cached_property
    def origin(self) -> str:
        """What the descriptions of archives depend on besides their content."""
        return code("describe") + self.workspace.store.corrections

    @cached_property
    def finder(self) -> Finder:
        """Finds what is now at the places that exports read."""
        return Finder(self.workspace, self.surroundings)

    def is_current(self, export: str) -> bool:
        """Return whether the last run of an export is current. Raises SourceError.

        It is if everything it does can be tracked, if it has just run, or if last exports are
        trusted.
        """
        unfollowed = self.export(export).inputs.unfollowed
        return not unfollowed or export in self._exported or self.trusts_last_exports

    def quotable(self, export: str) -> dict[str, Digest]:
        """Return digests of the workspace's Python files that an export read, for reports to quote.

        An archive has none: the files that its traces name are arbitrary.
        """
        if self.source(export).form != "exporter":
            return {}
        action = self.export(export)
        read = action.key["reads"]["files"]
        exporter = str(self.source(export).path.relative_to(self.workspace.root))
        modules = {
            name: Digest(content.removesuffix(EXECUTABLE))
            for name, content in read.items()
            if name.endswith(".py") and is_inside(name) and content is not None
        }
        return {**modules, exporter: action.key["source"]}

    @once
    def methods(self, export: str) -> dict[str, MethodSource] | None:
        """Return the methods of an export in the order of its model, or None until it has run.

        Raises SourceError.
        """
        source = self.source(export)
        if source.form != "exporter":
            describe = partial(self.archives.describe, origin=self.origin)
            return sources.method_sources(source, describe)
        result = self._exported_result(export)
        if result is None:
            return None
        store = self.workspace.store
        archive = store.blob_path(result["archive"])
        return {
            method["name"]: MethodSource(
                archive=archive,
                entry=method["name"],
                content=result["archive"],
                batches=tuple(method["batches"]),
                exported=True,
                renamed=tuple(method["renamed"].items()),
                **{field: method[field] for field in _RECORDED},
            )
            for method in result["methods"]
        }

    @once
    def fingerprint(self, export: str) -> list[Any]:
        """Return what determines the methods of an export. Raises SourceError.

        An archive's bytes do, and its path doesn't matter; they are known without a description.
        """
        source = self.source(export)
        if source.form == "exporter":
            methods = (self.methods(export) or {}).items()
            return [[name, method[1:]] for name, method in methods]
        digests = self.workspace.file_digests
        with reading(source.path):
            return [[path.stem, digests.hash(path)] for path in source.archives]

    def constants(self, export: str) -> dict[str, Any]:
        """Return the constant methods that an exporter computed. Raises SourceError."""
        if self.source(export).form != "exporter":
            return {}
        result = self._exported_result(export)
        return dict(result["constant_methods"]) if result else {}

    @once
    def _exported_result(self, export: str) -> Mapping[str, Any] | None:
        """Return the result of an export's current run, or None until it has run."""
        entry = self.workspace.store.get(self.export(export).digest)
        if entry is not None and self.is_current(export):
            return entry.result
        return None

    def forget(self, export: str) -> None:
        self._known = {
            key: value for key, value in self._known.items() if key[1] != export
        }
        self._exported.add(export)
        for name in ("finder", "libraries", "origin"):
            self.__dict__.pop(name, None)

    def clear(self) -> None:
        self._known.clear()

    def look_again(self) -> None:
        """Forget everything that was read of models, and the environment in which exporters run."""
        self.clear()
        for name in ("_search", "finder", "libraries", "origin"):
            self.__dict__.pop(name, None)
        self.surroundings = Surroundings.present()
