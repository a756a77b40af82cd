"""Checks of a parsed config against its model, and the lines on which its parts were written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.plan.kinds.table import KINDS
from pipeline.plan.models import check_quantized
from pipeline.plan.patterns import check_patterns
from pipeline.plan.shared_state import check_shared_state
from pipeline.program.module_paths import Outline
from pipeline.program.sources import MethodSource
from pipeline.store.errors import Problem, did_you_mean, join
from pipeline.store.names import METADATA

if TYPE_CHECKING:  # a no-op run parses no config, and so doesn't import pydantic
    from pipeline.config.compose import Document
    from pipeline.config.models import PackageConfig


def check_model(
    config: PackageConfig,
    document: Document,
    methods: Mapping[str, MethodSource],
    outline: Callable[[MethodSource], Outline | None],
    buffers: Callable[[MethodSource], Mapping[str, Any] | None],
) -> list[Problem]:
    """Return a problem for each disagreement between a config and its model.

    This checks the methods, their modules and their state, runs the checks of action kinds that
    features add, and finds patterns that match nothing.

    Args:
        outline, buffers: return what a method's program has, or None if it isn't known. Their
            errors are passed on.
    """
    problems = list(check_methods(config, document, methods))
    if problems:
        return problems
    for name, method in config.methods.items():
        quantized = getattr(method.quantize, "modules", None)
        if quantized:
            in_method = outline(methods[name])
            problems += check_quantized(name, quantized, document, in_method)
        for kind in KINDS.values():
            if kind.find_mistakes is None:
                continue
            where = join(f"methods.{name}", kind.name)
            for mistake, remedy in kind.find_mistakes(method, methods[name]):
                problems.append(document.problem(where, mistake, remedy))
    used = {name: buffers(methods[name]) or {} for name in config.methods}
    renamed = {name: methods[name].renamed for name in config.methods}
    problems += check_shared_state(config, document, used, renamed)
    return [*problems, *check_patterns(config, document, methods, outline)]


def check_methods(
    config: PackageConfig, document: Document, methods: Collection[str]
) -> Iterator[Problem]:
    """Yield a problem for each method that the model lacks, or that the config doesn't mention."""
    if config.emit.metadata and METADATA in (*config.methods, *config.constant_methods):
        mistake = f"adds the method {METADATA}, but a method of this name exists"
        yield document.problem(
            "emit.metadata", mistake, "rename that method, or leave out metadata"
        )
    for name in config.constant_methods:
        if name in methods and name not in config.omitted:
            where = join("constant_methods", name)
            yield document.problem(where, "is also a method of the model", "rename it")
    for name in (*config.methods, *config.omitted):
        if name not in methods:
            hint = did_you_mean(name, methods)
            yield document.problem(
                join("methods", name), "is not a method of the model", hint
            )
    for name in methods:
        if name not in config.methods and name not in config.omitted:
            mistake = f"lacks '{name}', a method of the model"
            remedy = "add it (`partitioners: []` for portable operators only), "
            remedy += f"or leave it out with `{name}: omit`"
            yield document.problem("methods", mistake, remedy)


def find_places(
    config: PackageConfig, document: Document, more_paths: Iterable[str] = ()
) -> dict[str, str]:
    """Return the file and line of each setting that was written, by its path in the config.

    The settings are the methods; the validation settings and gates, of the package and of each
    method; and those at `more_paths`.
    """
    validation = config.validation
    paths = [f"methods.{name}" for name in config.methods]
    validated: dict[str, Any] = {"validate": validation}
    for name, limits in validation.methods.items():
        validated[f"validate.methods.{name}"] = limits
    for path, settings in validated.items():
        paths += [f"{path}.{key}" for key in settings.model_fields_set]
        paths += [f"{path}.gates.{gate}" for gate in settings.gates.model_fields_set]
    for name in config.methods:
        paths += validation.find_reference_limits(name)
    paths += more_paths
    places = {}
    for path in paths:
        node = document.written(path)
        if node is not None and node.line:
            places[path] = f"{node.file}:{node.line}"
    return dict(sorted(places.items()))
