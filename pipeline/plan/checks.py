"""Checks of a parsed config against the catalogue, this machine, the workspace and the model, and
where parts of it were written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.passes import NOT_OFFERED, remedy, source_files
from pipeline.plan import keys
from pipeline.program.module_paths import Outline, check_names
from pipeline.program.sources import MethodSource
from pipeline.store.errors import Problem, did_you_mean, join
from pipeline.store.store import Store
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.backends import Options
    from pipeline.config.compose import Document
    from pipeline.config.models import MethodConfig, PackageConfig


def check_backends(document: Document) -> Iterator[Problem]:
    """Yield a problem for each use of a backend that this machine lacks something for, in a config
    that may have mistakes."""
    from pipeline.backends import BACKENDS

    for method, written in _mapping(document.data.get("methods")).items():
        path, settings = join("methods", method), _mapping(written)
        items = settings.get("partitioners")
        uses = [(join(path, "quantize"), _mapping(settings.get("quantize")).get("quantizer"))]
        for number, item in enumerate(items if isinstance(items, list) else ()):
            where = join(join(path, "partitioners"), number)
            uses += [(where, name) for name in (item if isinstance(item, dict) else [item])]
        for where, name in uses:
            if isinstance(name, str) and name in BACKENDS:
                needs = list(BACKENDS[name].host.missing())
                what = " and ".join(need.what for need in needs)
                remedies = ", ".join(dict.fromkeys(need.remedy for need in needs))
                if needs:
                    yield document.problem(where, f"{name} needs {what}", remedies)


def _mapping(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def check_config(
    config: PackageConfig, document: Document, workspace: Workspace
) -> Iterator[Problem]:
    """Yield what is wrong with a config whatever its model is."""
    yield from check_options(config, document)
    yield from _missing_passes(config, document, workspace.root)
    yield from _misfitting_files(config, document, workspace)
    yield from _mixed_edges(config, document)


def check_options(config: PackageConfig, document: Document) -> Iterator[Problem]:
    """Find options that the described executorch does not take."""
    from pipeline.backends import BACKENDS
    from pipeline.backends.constructors import outdated, unknown_options

    if outdated():  # and said to be
        return
    for method, settings in config.methods.items():
        for place, name, options in settings.parts_with_options():
            unknown = unknown_options(BACKENDS[name], options) if name in BACKENDS else ()
            for option, known in unknown:
                what = f"is no option of {name} in the installed executorch"
                yield document.problem(join(f"methods.{method}.{place}", option), what, known)


def _missing_passes(config: PackageConfig, document: Document, root: Path) -> Iterator[Problem]:
    lists = {f"methods.{name}.edge.passes": m.edge.passes for name, m in config.methods.items()}
    for path, passes in {**lists, "emit.passes": config.emit.passes}.items():
        for number, each in enumerate(passes):
            if not source_files(each.reference, root):
                what = f"the pass {each.reference} {NOT_OFFERED}"
                yield document.problem(join(path, number), what, remedy(each.reference))


def _misfitting_files(
    config: PackageConfig, document: Document, workspace: Workspace
) -> Iterator[Problem]:
    """Find files that options name and that are missing, or not of the kind that they need."""
    from pipeline.backends.workspace_files import find_misfits

    parts = [
        (f"methods.{name}.{place}", options)
        for name, method in config.methods.items()
        for place, _, options in method.parts_with_options()
    ]
    parts += [(join("validate.methods", n), each) for n, each in config.validation.methods.items()]
    for path, options in parts:
        for option, what, known in find_misfits(options, workspace.root, workspace.data):
            yield document.problem(join(path, option), what, known)


def _mixed_edges(config: PackageConfig, document: Document) -> Iterator[Problem]:
    """Find methods that are lowered in one call and would become edge programs in other ways."""
    for unit in config.units:
        ways = {n: config.methods[n].edge.model_copy(update={"passes": ()}) for n in unit}
        first, *others = unit
        for name in others:
            if ways[name] != ways[first]:
                what = f"differs from that of '{first}', with which it is lowered together"
                remedy = "say the same of both; only passes may differ"
                yield document.problem(f"methods.{name}.edge", what, remedy)


def check_model(
    config: PackageConfig, document: Document, methods: Mapping[str, MethodSource], store: Store
) -> list[Problem]:
    """Return where config and model disagree: methods, their modules, and quantizers without
    inputs."""
    if found := list(check_methods(config, document, methods)):
        return found
    for name, method in config.methods.items():
        found += _wrong_modules(name, method, document, methods[name], store)
        if (
            method.quantize is not None
            and method.quantize.calibrates
            and keys.CALIBRATION not in method.files
            and keys.calibration_digests(method.quantize, methods[name]) is None
        ):
            what = "static quantization observes calibration inputs, and the model gives none"
            remedy = "add calibration_inputs(method) to the exporter, or say `dynamic: true`"
            found.append(document.problem(f"methods.{name}.quantize", what, remedy))
    return found


def check_methods(
    config: PackageConfig, document: Document, methods: Collection[str]
) -> Iterator[Problem]:
    """Find methods that the model lacks, or that the config leaves out."""
    for name in config.constant_methods:
        if name in methods:
            where = join("constant_methods", name)
            yield document.problem(where, "is a method of the model too", "rename it")
    for name in config.methods:
        if name not in methods:
            hint = did_you_mean(name, methods)
            yield document.problem(join("methods", name), "is no method of the model", hint)
    for name in methods:
        if name not in config.methods:
            what = f"leaves out '{name}', a method of the model"
            remedy = "add it; `partitioners: []` is for portable operators only"
            yield document.problem("methods", what, remedy)


def _wrong_modules(
    name: str, config: MethodConfig, document: Document, source: MethodSource, store: Store
) -> Iterator[Problem]:
    """Find modules that a config names and a method lacks or has in several places, if it is known
    what it has."""
    quantized = getattr(config.quantize, "modules", None) or {}
    filters = {f"methods.{name}.modules": config.modules or ()}
    for number, spec in enumerate(config.partitioners):
        where = join(f"methods.{name}.partitioners", number)
        filters[f"{where}.{spec.name}.modules"] = spec.modules or ()
    if not quantized and not any(filters.values()):
        return
    entry = store.get_by_key(keys.program_key(source.program))
    if entry is None or "outline" not in entry.result:  # checked when it is compiled
        return
    outline = Outline(**entry.result["outline"])
    for module in quantized:
        if module not in outline.calls:
            hint = did_you_mean(module, sorted(outline.calls), 10)
            where = f"methods.{name}.quantize.modules"
            yield document.problem(where, f"no module '{module}' in the program", hint)
    for where, modules in filters.items():
        for what, hint in check_names(modules, outline):
            yield document.problem(where, what, hint)


def find_places(config: PackageConfig, document: Document) -> dict[str, str]:
    """Return file and line of the methods, settings of the validation and gates that are written,
    by their path in the config."""
    validation = config.validation
    paths = [f"methods.{name}" for name in config.methods]
    paths += [f"validate.{name}" for name in validation.model_fields_set]
    given: dict[str, Options] = {"validate": validation.gates}
    given |= {f"validate.methods.{name}": own.gates for name, own in validation.methods.items()}
    paths += [f"{p}.gates.{name}" for p, gates in given.items() for name in gates.model_fields_set]
    found = {}
    for path in paths:
        node = document.written(path)
        if node is not None and node.mark.line:
            found[path] = f"{node.mark.file}:{node.mark.line}"
    return dict(sorted(found.items()))
