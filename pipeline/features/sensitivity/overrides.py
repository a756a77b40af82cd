"""The config overrides that keep modules in float, and where in the config's files they belong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from pipeline.backends.options import OneOf

if TYPE_CHECKING:
    from pipeline.config.compose import Document

FLOAT = "none"
OPERATOR = "operator "  # precedes a kind of operator in the names of kept units
_DEFAULTS = "defaults.quantize"
Place = tuple[str, str, list[str]]


def keep_in_float(
    kept: Sequence[str], units: Sequence[str], spec: Any
) -> dict[str, dict[str, Any]]:
    """Return the overrides that keep modules and operators in float.

    Modules inside them are quantized as before. Overrides are keyed by `modules` and `operators`,
    and then by name.

    Args:
        units: the modules with quantized operators of their own, and the kinds of operators outside
            all modules, such as `operator add`.
        spec: the quantizer with its options, a `backends.quantize_options.MixedQuantize`.
    """
    modules: dict[str, Any] = {}
    operators: dict[str, Any] = {}
    for name in kept:
        if name.startswith(OPERATOR):
            operators[name.removeprefix(OPERATOR)] = FLOAT
        else:
            modules[name] = FLOAT
    if not _takes_options(spec):  # inner modules stay in float with the outer one
        units = ()
    for name in sorted(units):  # each after the modules around it
        if name in modules or name in spec.modules:
            continue
        outer = _find_outer(name, {**spec.modules, **modules})
        if modules.get(outer) == FLOAT:
            modules[name] = _repeat_options(name, spec)
    overrides = {"modules": modules, "operators": operators}
    return {kind: members for kind, members in overrides.items() if members}


def is_all(modules: Sequence[str], method: Mapping[str, Any]) -> bool:
    """Return whether nothing of a method stays quantized with these modules in float."""
    return {row["module"] for row in method["modules"]} <= {*modules}


def _takes_options(spec: Any) -> bool:
    """Return whether `modules` of a quantizer accepts options, and not just `none`."""
    fields = getattr(getattr(type(spec), "scheme", None), "model_fields", None)
    return bool(fields)


def find_operator_kinds(spec: Any) -> frozenset[str] | None:
    """Return the kinds of operators that `operators` of a quantizer accepts, such as `conv2d`.

    Returns None if it accepts any kind.
    """
    field = type(spec).model_fields.get("operators")
    if field is None:
        return frozenset()
    names: set[str] = set()
    for rule in get_args(get_args(field.annotation)[0])[1:]:
        if isinstance(rule, OneOf):
            names.update(rule.names)
    return frozenset(names) or None


def _find_outer(name: str, overrides: Mapping[str, Any]) -> str:
    """Return the innermost module around another that has an override, or ""."""
    while name:
        name = name.rpartition(".")[0]
        if name in overrides:
            return name
    return ""


def _repeat_options(name: str, spec: Any) -> dict[str, Any]:
    """Return the options that a module was quantized with.

    They come from a module around it, if that has options. Otherwise one of the method's options is
    repeated, since an override names at least one.
    """
    outer = _find_outer(name, spec.modules)
    if outer and spec.modules[outer] != FLOAT:
        options: dict[str, Any] = spec.modules[outer].model_dump(exclude_unset=True)
        return options
    fields = type(spec).scheme.model_fields
    names = [field for field in fields if field in spec.model_fields_set] or [*fields]
    return {names[0]: getattr(spec, names[0])}


def add_overrides(data: Any, method: str, overrides: Mapping[str, Any]) -> Any:
    """Return the data of a config with these overrides of a method."""
    # Methods share the settings from `defaults` as one object.
    settings = data["methods"][method]
    quantize = dict(settings.get("quantize") or {})
    for kind, members in overrides.items():
        quantize[kind] = {**(quantize.get(kind) or {}), **members}
    methods = {**data["methods"], method: {**settings, "quantize": quantize}}
    return {**data, "methods": methods}


def find_places(document: Document, method: str, kind: str) -> Iterator[Place]:
    """Yield the places where the overrides of a method may belong, the best first.

    A place is the name of a file, the path of a mapping in it, and the keys from there to the
    overrides.

    Args:
        kind: `modules` or `operators`.
    """
    quantize = document.written(f"methods.{method}.quantize")
    if quantize is None:
        return
    written = document.written(f"methods.{method}.quantize.{kind}")
    if written is not None:
        yield written.file, written.path, []
    file, path = quantize.file, quantize.path
    yield file, path, [kind]
    keys = ["methods", method, "quantize", kind]
    if path.endswith(_DEFAULTS):
        yield file, path.removesuffix(_DEFAULTS).removesuffix("."), keys
    yield document.file, "", keys


def find_method_places(document: Document, method: str) -> Iterator[Place]:
    """Yield the places where a method's settings may belong, the best first, as `find_places`."""
    written = document.written(f"methods.{method}")
    if written is not None:
        yield written.file, written.path, []
    yield document.file, "", ["methods", method]
