"""What is wrong with a config that only the catalogue, this machine, other methods or the model
tell, and where parts of it were written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.passes import FOLDER, source_files
from pipeline.plan import actions
from pipeline.program import sources
from pipeline.program.module_paths import mistakes, outline_from_json
from pipeline.program.sources import MethodSource
from pipeline.store.errors import ConfigErrors, Problem, did_you_mean, join
from pipeline.store.store import Store

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.backends import Backend, Options
    from pipeline.config.compose import Document
    from pipeline.config.load import MethodConfig, PackageConfig, Use


def unusable_backends(uses: Iterable[Use]) -> Iterator[Problem]:
    """What the backends that a config names need and this machine lacks: a line for each use."""
    from pipeline.backends import BACKENDS

    for document, path, name in uses:
        backend = BACKENDS[name]
        needs = list(backend.missing())
        if backend.unsupported:
            yield document.problem(path, f"{name} {backend.unsupported}")
        elif needs:
            what = " and ".join(need.what for need in needs)
            remedies = ", ".join(dict.fromkeys(need.remedy for need in needs))
            yield document.problem(path, f"{name} needs {what}", remedies)


def mistakes_of(config: PackageConfig, document: Document, root: Path) -> Iterator[Problem]:
    """What is wrong with a config whatever its model is.

    Args:
        root: the workspace's folder.
    """
    yield from unknown_options_of(config, document)
    yield from _missing_passes(config, document, root)
    yield from _misfitting_files(config, document, root)
    yield from _mixed_edges(config, document)


def unknown_options_of(config: PackageConfig, document: Document) -> Iterator[Problem]:
    """Options that the described executorch does not take."""
    from pipeline.backends import BACKENDS
    from pipeline.backends.constructors import outdated, unknown_options

    if outdated():  # and said to be
        return
    for name, method in config.methods.items():
        given: list[tuple[str, Backend, Options]] = [
            (join(join(f"methods.{name}.partitioners", n), spec.name), spec.backend, spec.options)
            for n, spec in enumerate(method.partitioners)
        ]
        if method.quantize is not None and method.quantize.quantizer in BACKENDS:
            path = f"methods.{name}.quantize"
            given.append((path, BACKENDS[method.quantize.quantizer], method.quantize))
        for path, backend, options in given:
            for option, known in unknown_options(backend, options):
                what = f"is no option of {backend.name} in the installed executorch"
                yield document.problem(join(path, option), what, known)


def _places_of_passes(config: PackageConfig) -> Iterator[tuple[str, str]]:
    """Path and reference of each pass that a config names."""
    lists = {f"methods.{name}.edge.passes": m.edge.passes for name, m in config.methods.items()}
    for path, passes in {**lists, "emit.passes": config.emit.passes}.items():
        for number, each in enumerate(passes):
            yield join(path, number), each.reference


def _missing_passes(config: PackageConfig, document: Document, root: Path) -> Iterator[Problem]:
    for path, reference in _places_of_passes(config):
        if not source_files(reference, root):
            module = reference.partition(":")[0]
            what = f"no module '{module}' in {FOLDER}/, and none that is installed"
            yield document.problem(path, what)


def _misfitting_files(config: PackageConfig, document: Document, root: Path) -> Iterator[Problem]:
    """Files that options name and that are not there, or not what the options make of them."""
    from pipeline.backends.workspace_files import misfits_of

    for name, method in config.methods.items():
        for place, options in method.parts_with_options():
            for option, what, known in misfits_of(options, root):
                yield document.problem(join(f"methods.{name}.{place}", option), what, known)
    for name, limits in config.validation.methods.items():
        for option, what, known in misfits_of(limits, root):
            path = join(join("validate.methods", name), option)
            yield document.problem(path, what, known)


def _mixed_edges(config: PackageConfig, document: Document) -> Iterator[Problem]:
    """Methods that are lowered in one call become edge programs in one way."""
    for unit in actions.compile_units(config):
        ways = {n: config.methods[n].edge.model_copy(update={"passes": ()}) for n in unit}
        first, *others = unit
        for name in others:
            if ways[name] != ways[first]:
                yield document.problem(
                    f"methods.{name}.edge",
                    f"differs from that of '{first}', with which it is lowered together",
                    "say the same of both; only passes may differ",
                )


def misfitting_methods(
    package: str,
    config: PackageConfig,
    document: Document,
    methods: Mapping[str, MethodSource],
    store: Store,
) -> list[Problem]:
    """What config and model do not agree on: methods, their modules, and quantizers without
    inputs."""
    from pipeline.config.load import parse_document

    try:
        parse_document(package, document, known_methods=tuple(methods))
    except ConfigErrors as errors:
        return list(errors.problems)
    found = [
        problem
        for name, method in config.methods.items()
        for problem in _wrong_modules(name, method, document, methods[name], store)
    ]
    return found + [
        document.problem(
            f"methods.{name}.quantize",
            "static quantization observes calibration inputs, and the model gives none",
            "add calibration_inputs(method) to the exporter, or say `dynamic: true`",
        )
        for name, method in config.methods.items()
        if method.quantize is not None
        and method.quantize.calibrates
        and actions.CALIBRATION not in method.files
        and actions.calibration_of(method.quantize, methods[name]) is None
    ]


def _wrong_modules(
    name: str, config: MethodConfig, document: Document, source: MethodSource, store: Store
) -> Iterator[Problem]:
    """Modules that a config names and a method lacks or has in several places, if it is known what
    it has."""
    quantized = getattr(config.quantize, "modules", None) or {}
    confines = [(f"methods.{name}.modules", config.modules or ())]
    confines += [
        (f"{join(f'methods.{name}.partitioners', n)}.{spec.name}.modules", spec.modules or ())
        for n, spec in enumerate(config.partitioners)
    ]
    if not quantized and not any(modules for _, modules in confines):
        return
    parts = store.result_of(actions.program_key(source.program))
    if parts is None:
        return
    known = sources.modules_of(parts["modules"])
    for module in quantized:
        if module not in known:
            hint, where = did_you_mean(module, known, 10), f"methods.{name}.quantize.modules"
            yield document.problem(where, f"no module '{module}' in the program", hint)
    if "outline" not in parts:  # described by an earlier version; told when it is compiled
        return
    outline = outline_from_json(parts["outline"])
    for where, modules in confines:
        for what, hint in mistakes(modules, outline):
            yield document.problem(where, what, hint)


def places_of(config: PackageConfig, document: Document) -> dict[str, str]:
    """File and line of what reports speak of, by its path in the config: methods, settings of the
    validation, and gates; as far as they are written."""
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
