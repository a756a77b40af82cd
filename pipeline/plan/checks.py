"""Checks of a parsed config against the catalogue, this machine, the workspace and the model, and
where parts of it were written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.operators import FOLDER, may_load
from pipeline.config.operators import remedy as operators_remedy
from pipeline.config.passes import NOT_OFFERED, remedy, source_files
from pipeline.plan.calibration import calibration_remedy, lacks_calibration
from pipeline.plan.kinds.parts import CALIBRATION
from pipeline.plan.patterns import check_patterns
from pipeline.plan.shared_state import check_shared_state
from pipeline.program.module_names import check_names
from pipeline.program.module_paths import Outline
from pipeline.program.sources import MethodSource
from pipeline.store.errors import Problem, did_you_mean, join, listed
from pipeline.store.names import METADATA
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:  # a no-op run parses no config, and does without pydantic
    from pipeline.backends import Options, QuantizeConfig
    from pipeline.config.compose import Document
    from pipeline.config.emission import MemoryPlan
    from pipeline.config.models import MethodConfig, PackageConfig


def check_backends(document: Document) -> Iterator[Problem]:
    """Yield a problem for each use of a backend that this machine lacks something for, in a config
    that may have mistakes."""
    from pipeline.backends import BACKENDS

    for method, written in _mapping(document.data.get("methods")).items():
        path = join("methods", method)
        settings = _mapping(written)
        items = settings.get("partitioners")
        uses = [
            (
                join(path, "quantize"),
                _mapping(settings.get("quantize")).get("quantizer"),
            )
        ]
        for number, item in enumerate(items if isinstance(items, list) else ()):
            where = join(join(path, "partitioners"), number)
            uses += [
                (where, name) for name in (item if isinstance(item, dict) else [item])
            ]
        for where, name in uses:
            if isinstance(name, str) and name in BACKENDS:
                needs = list(BACKENDS[name].host.missing())
                lacking = " and ".join(need.what for need in needs)
                remedies = ", ".join(dict.fromkeys(need.remedy for need in needs))
                if needs:
                    yield document.problem(
                        where,
                        f"{name} needs {lacking}",
                        remedies,
                    )


def _mapping(value: object) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    return {}


def check_config(
    config: PackageConfig, document: Document, workspace: Workspace
) -> Iterator[Problem]:
    """Yield what is wrong with a config whatever its model is."""
    yield from check_options(config, document)
    yield from _missing_passes(config, document, workspace.root)
    yield from _strange_libraries(config, document, workspace)
    yield from _misfitting_files(config, document, workspace)
    yield from _mixed_edges(config, document)
    yield from _foreign_quantizers(config, document)
    yield from _emission_conflicts(config, document)


def check_options(config: PackageConfig, document: Document) -> Iterator[Problem]:
    """Find options that the described executorch does not take."""
    from pipeline.backends import BACKENDS
    from pipeline.backends.constructors import outdated, unknown_options

    if outdated():  # and said to be
        return
    for method, settings in config.methods.items():
        for place, name, options in settings.parts_with_options():
            if name not in BACKENDS:
                continue
            for option, hint in unknown_options(BACKENDS[name], options):
                mistake = f"is no option of {name} in the installed executorch"
                yield document.problem(
                    join(f"methods.{method}.{place}", option),
                    mistake,
                    hint,
                )


def _missing_passes(
    config: PackageConfig, document: Document, root: Path
) -> Iterator[Problem]:
    lists = {
        f"methods.{name}.{place}": [spec.reference for spec in passes]
        for name, method in config.methods.items()
        for place, passes in method.passes.items()
    }
    lists["emit.passes"] = [spec.reference for spec in config.emit.passes]
    for path, planning in _plans(config):
        lists[f"{path}.algorithm"] = list(planning.algorithm)
    for path, references in lists.items():
        for number, reference in enumerate(references):
            if ":" in reference and not source_files(reference, root):
                mistake = f"the pass {reference} {NOT_OFFERED}"
                yield document.problem(
                    join(path, number),
                    mistake,
                    remedy(reference),
                )


def _plans(config: PackageConfig) -> Iterator[tuple[str, MemoryPlan]]:
    """Yield how memory is planned, with the place where that stands."""
    yield "emit.memory_planning", config.emit.memory_planning
    for name, method in config.methods.items():
        if method.emit.memory_planning is not None:
            yield f"methods.{name}.emit.memory_planning", method.emit.memory_planning


def _emission_conflicts(config: PackageConfig, document: Document) -> Iterator[Problem]:
    """Find settings of emission that ExecuTorch does not take together."""
    emit = config.emit
    for path, planning in _plans(config):
        if (
            path != "emit.memory_planning"
            and emit.memory_planning.share_mutable_buffers
        ):
            mistake = "is of one method, and buffers that methods share are planned for all of them"
            yield document.problem(
                path, mistake, "say it in `emit: {memory_planning: ...}`"
            )
        if not planning.alloc_mutable_buffers:
            where = join(path, "alloc_mutable_buffers")
            if getattr(planning, "share_mutable_buffers", False):
                mistake = "leaves no memory that methods could share"
                yield document.problem(
                    where, mistake, "leave share_mutable_buffers out"
                )
            if not emit.emit_mutable_buffer_names:
                mistake = "leaves buffers that a runtime can only find by name"
                yield document.problem(
                    where, mistake, "say `emit: {emit_mutable_buffer_names: true}`"
                )
    skips = {"emit.propagate_device": emit.propagate_device} | {
        f"methods.{name}.emit.propagate_device": method.emit.propagate_device
        for name, method in config.methods.items()
    }
    for path, setting in skips.items():
        if (
            setting
            and any(setting.resolved().values())
            and not emit.enable_non_cpu_memory_planning
        ):
            mistake = "skips copies to and from a device whose memory is not planned"
            yield document.problem(
                path, mistake, "leave enable_non_cpu_memory_planning out"
            )


def _strange_libraries(
    config: PackageConfig, document: Document, workspace: Workspace
) -> Iterator[Problem]:
    for number, library in enumerate(config.operators):
        if not may_load(library, workspace.root, workspace.operators):
            neither = "not"
            if workspace.operators.folder:
                neither = f"neither in {FOLDER}/ nor"
            mistake = f"{library} is {neither} listed by the workspace's settings"
            where = join("operators", number)
            yield document.problem(
                where, mistake, operators_remedy(workspace.operators)
            )


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
    parts += [
        (join("validate.methods", n), limits)
        for n, limits in config.validation.methods.items()
    ]
    for path, options in parts:
        for option, mistake, hint in find_misfits(
            options, workspace.root, workspace.data
        ):
            yield document.problem(join(path, option), mistake, hint)


def _mixed_edges(config: PackageConfig, document: Document) -> Iterator[Problem]:
    """Find methods that are lowered in one call and would become edge programs in other ways."""
    for unit in config.units:
        none: dict[str, tuple[()]] = {"passes": (), "passes_after_delegation": ()}
        ways = {n: config.methods[n].edge.model_copy(update=none) for n in unit}
        first, *following = unit
        for name in following:
            if ways[name] != ways[first]:
                mistake = (
                    f"differs from that of '{first}', with which it is lowered together"
                )
                remedy = "say the same of both; only passes may differ"
                yield document.problem(f"methods.{name}.edge", mistake, remedy)


def _foreign_quantizers(config: PackageConfig, document: Document) -> Iterator[Problem]:
    """Find methods that are quantized for a backend that none of their partitioners lowers to."""
    from pipeline.backends import QUANTIZERS, quantizes_for

    for name, method in config.methods.items():
        backends = [spec.backend for spec in method.partitioners]
        if (
            method.quantize is None or not backends
        ):  # portable operators compute with any
            continue
        quantizer = method.quantize.quantizer
        if any(quantizes_for(quantizer, backend) for backend in backends):
            continue
        settings = _settings_for_quantized(method, method.quantize)
        if "" in settings:
            continue
        names = [backend.name for backend in backends]
        mistake = f"quantizes for {quantizer}, and the partitioners are {listed(names)}"
        quantizers = [
            f"`quantizer: {backend}`" for backend in names if backend in QUANTIZERS
        ]
        instead = "leave it out"
        if quantizers:
            instead = f"say {' or '.join(quantizers)}"
        remedy = f"{instead}, or add {quantizer} to the partitioners"
        if settings:
            remedy = f"{instead}, or set `{settings[0]}`"
        yield document.problem(f"methods.{name}.quantize", mistake, remedy)


def _settings_for_quantized(
    method: MethodConfig, quantize: QuantizeConfig
) -> list[str]:
    """Return the config lines, each of which lets a partitioner lower what another backend's
    quantizer makes; "" for a partitioner that needs none."""
    settings = []
    for spec in method.partitioners:
        takes_quantized = spec.backend.lowering.takes_quantized
        setting = None
        if takes_quantized:
            setting = takes_quantized(spec.options, quantize)
        if setting is not None:
            settings.append(setting)
    return settings


def check_model(
    config: PackageConfig,
    document: Document,
    methods: Mapping[str, MethodSource],
    outline: Callable[[MethodSource], Outline | None],
    buffers: Callable[[MethodSource], Mapping[str, Any] | None],
) -> list[Problem]:
    """Return where config and model disagree: methods, their modules, their state, quantizers
    without inputs, and patterns that fit nothing.

    Args:
        outline, buffers: tell what a method's program has, None where that is not known. Their
            errors are raised.
    """
    problems = list(check_methods(config, document, methods))
    if problems:
        return problems
    for name, method in config.methods.items():
        problems += _wrong_modules(name, method, document, methods[name], outline)
        if method.quantize is None or CALIBRATION in method.files:
            continue
        if lacks_calibration(method.quantize, methods[name]):
            mistake = "static quantization observes calibration inputs, and the model gives none"
            remedy = calibration_remedy(method.quantize, methods[name])
            problems.append(
                document.problem(f"methods.{name}.quantize", mistake, remedy)
            )
    used = {name: buffers(methods[name]) or {} for name in config.methods}
    renamed = {name: methods[name].renamed for name in config.methods}
    problems += check_shared_state(config, document, used, renamed)
    return [*problems, *check_patterns(config, document, methods, outline)]


def check_methods(
    config: PackageConfig, document: Document, methods: Collection[str]
) -> Iterator[Problem]:
    """Find methods that the model lacks, or that the config leaves out."""
    if config.emit.metadata and METADATA in (*config.methods, *config.constant_methods):
        mistake = f"adds the method {METADATA}, and there is one of this name"
        yield document.problem(
            "emit.metadata", mistake, "rename that one, or leave metadata out"
        )
    for name in config.constant_methods:
        if name in methods and name not in config.omitted:
            where = join("constant_methods", name)
            yield document.problem(where, "is a method of the model too", "rename it")
    for name in (*config.methods, *config.omitted):
        if name not in methods:
            hint = did_you_mean(name, methods)
            yield document.problem(
                join("methods", name), "is no method of the model", hint
            )
    for name in methods:
        if name not in config.methods and name not in config.omitted:
            mistake = f"leaves out '{name}', a method of the model"
            remedy = "add it; `partitioners: []` is for portable operators only, "
            remedy += f"`{name}: omit` leaves it out"
            yield document.problem("methods", mistake, remedy)


def _wrong_modules(
    name: str,
    config: MethodConfig,
    document: Document,
    source: MethodSource,
    outline: Callable[[MethodSource], Outline | None],
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
    modules_of_source = outline(source)
    if modules_of_source is None:  # checked when it is compiled
        return
    for module in quantized:
        if module not in modules_of_source.calls:
            hint = did_you_mean(module, sorted(modules_of_source.calls), 10)
            where = f"methods.{name}.quantize.modules"
            yield document.problem(where, f"no module '{module}' in the program", hint)
    for where, modules in filters.items():
        for mistake, hint in check_names(modules, modules_of_source):
            yield document.problem(where, mistake, hint)


def find_places(
    config: PackageConfig, document: Document, more_paths: Iterable[str] = ()
) -> dict[str, str]:
    """Return file and line of the methods, settings of the validation and gates that are written,
    and of further settings, by their path in the config."""
    validation = config.validation
    paths = [f"methods.{name}" for name in config.methods]
    paths += [f"validate.{name}" for name in validation.model_fields_set]
    gate_settings: dict[str, Options] = {"validate": validation.gates}
    gate_settings |= {
        f"validate.methods.{name}": limits.gates
        for name, limits in validation.methods.items()
    }
    paths += [
        f"{p}.gates.{name}"
        for p, gates in gate_settings.items()
        for name in gates.model_fields_set
    ]
    for name in config.methods:
        paths += validation.find_reference_limits(name)
    paths += more_paths
    places = {}
    for path in paths:
        node = document.written(path)
        if node is not None and node.mark.line:
            places[path] = f"{node.mark.file}:{node.mark.line}"
    return dict(sorted(places.items()))
