"""Checks of a config against the catalogue, this machine and the workspace, without its model."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from pipeline.moments import call_all
from pipeline.store.errors import Problem, join, listed
from pipeline.store.workspace import Workspace

if TYPE_CHECKING:  # a no-op run parses no config, and so doesn't import pydantic
    from pipeline.backends import QuantizeConfig
    from pipeline.config.compose import Document
    from pipeline.config.models import MethodConfig, PackageConfig


def check_backends(document: Document) -> Iterator[Problem]:
    """Yield a problem for each use of a backend whose requirements this machine lacks.

    The config may have other mistakes.
    """
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
                lacking = ", ".join(need.what for need in needs)
                remedies = "; ".join(dict.fromkeys(need.remedy for need in needs))
                if needs:
                    yield document.problem(where, f"{name} needs {lacking}", remedies)


def _mapping(value: object) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    return {}


def check_config(
    config: PackageConfig, document: Document, workspace: Workspace
) -> Iterator[Problem]:
    """Yield the problems of a config that don't depend on its model."""
    yield from check_options(config, document)
    yield from _misfitting_files(config, document, workspace)
    yield from _mixed_edges(config, document)
    yield from _foreign_quantizers(config, document)
    yield from _emission_conflicts(config, document)


def check_options(config: PackageConfig, document: Document) -> Iterator[Problem]:
    """Find options that the installed executorch does not take."""
    from pipeline.backends import BACKENDS

    for method, settings in config.methods.items():
        for place, name, options in settings.parts_with_options():
            if name not in BACKENDS:
                continue
            unknown = call_all("unknown_options", BACKENDS[name], options)
            for option, hint in chain.from_iterable(unknown):
                mistake = f"is not an option of {name} in the installed executorch"
                yield document.problem(
                    join(f"methods.{method}.{place}", option),
                    mistake,
                    hint,
                )


def _emission_conflicts(config: PackageConfig, document: Document) -> Iterator[Problem]:
    """Find settings of `emit` that ExecuTorch does not take together."""
    emit = config.emit
    for path, planning in config.memory_plans():
        if (
            path != "emit.memory_planning"
            and emit.memory_planning.share_mutable_buffers
        ):
            mistake = (
                "applies to one method, but shared buffers are planned for all methods"
            )
            yield document.problem(
                path, mistake, "set it in `emit: {memory_planning: ...}`"
            )
        if not planning.alloc_mutable_buffers:
            where = join(path, "alloc_mutable_buffers")
            if getattr(planning, "share_mutable_buffers", False):
                mistake = "leaves no memory for methods to share"
                yield document.problem(
                    where, mistake, "leave share_mutable_buffers out"
                )
            if not emit.emit_mutable_buffer_names:
                mistake = "leaves buffers that a runtime can find only by name"
                yield document.problem(
                    where, mistake, "set `emit: {emit_mutable_buffer_names: true}`"
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
            mistake = "skips copies to and from a device whose memory isn't planned"
            yield document.problem(
                path, mistake, "leave enable_non_cpu_memory_planning out"
            )


def _misfitting_files(
    config: PackageConfig, document: Document, workspace: Workspace
) -> Iterator[Problem]:
    """Find files in options that are missing, or not of the kind that the option needs."""
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
    """Find methods that are lowered in one call but have different `edge` settings."""
    for unit in config.units:
        none: dict[str, tuple[()]] = {"passes": (), "passes_after_delegation": ()}
        ways = {n: config.methods[n].edge.model_copy(update=none) for n in unit}
        first, *following = unit
        for name in following:
            if ways[name] != ways[first]:
                mistake = f"differs from `edge` of '{first}', which is lowered in the same call"
                remedy = "give both the same `edge`; only passes may differ"
                yield document.problem(f"methods.{name}.edge", mistake, remedy)


def _foreign_quantizers(config: PackageConfig, document: Document) -> Iterator[Problem]:
    """Find methods that are quantized for a backend to which none of their partitioners lowers."""
    from pipeline.backends import QUANTIZERS, quantizes_for

    for name, method in config.methods.items():
        backends = [spec.backend for spec in method.partitioners]
        if (
            method.quantize is None or not backends
        ):  # portable operators accept any quantizer
            continue
        quantizer = method.quantize.quantizer
        if any(quantizes_for(quantizer, backend) for backend in backends):
            continue
        settings = _settings_for_quantized(method, method.quantize)
        if "" in settings:
            continue
        names = [backend.name for backend in backends]
        mistake = f"quantizes for {quantizer}, but the partitioners are {listed(names)}"
        quantizers = [
            f"`quantizer: {backend}`" for backend in names if backend in QUANTIZERS
        ]
        instead = "leave it out"
        if quantizers:
            instead = f"set {' or '.join(quantizers)}"
        remedy = f"{instead}, or add {quantizer} to the partitioners"
        if settings:
            remedy = f"{instead}, or set `{settings[0]}`"
        yield document.problem(f"methods.{name}.quantize", mistake, remedy)


def _settings_for_quantized(
    method: MethodConfig, quantize: QuantizeConfig
) -> list[str]:
    """Return the config lines with which partitioners lower another backend's quantized methods.

    A line is "" for a partitioner that needs no setting.
    """
    settings = []
    for spec in method.partitioners:
        takes_quantized = spec.backend.lowering.takes_quantized
        setting = takes_quantized and takes_quantized(spec.options, quantize)
        if setting is not None:
            settings.append(setting)
    return settings
